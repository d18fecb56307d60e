// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/file_work.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>

#include "bench/suite/basics.h"
#include "bench/suite/direct_loop.h"

namespace weightfs::bench {
namespace {

Error WrongBytes(const std::string& path, uint64_t offset) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: wrong bytes at {}: the benchmark measures nothing that is not right", path, offset)};
}

Error ShortFile(const std::string& path, uint64_t size) {
  return {ErrorCode::kIo, fmt::format("{}: ends before {} bytes", path, size)};
}

// O_DIRECT has no meaning in memory, though newer kernels accept it there. A device's name lies in memory, the device
// not.
Result<File> OpenDirect(const std::string& path, int flags) {
  struct statfs filesystem = {};
  struct stat status = {};
  const bool regular = stat(path.c_str(), &status) != 0 || !S_ISBLK(status.st_mode);
  const bool in_memory = regular && statfs(path.c_str(), &filesystem) == 0 && filesystem.f_type == TMPFS_MAGIC;
  return File::Open(path, flags | (in_memory ? 0 : O_DIRECT));
}

// Requests in order.
std::function<std::optional<uint64_t>()> InOrder(uint64_t size, uint64_t call) {
  return [next = uint64_t{0}, size, call]() mutable -> std::optional<uint64_t> {
    if (next + call > size) return std::nullopt;
    return std::exchange(next, next + call);
  };
}

std::function<bool(const std::byte*, uint64_t)> Checker(const FileJob& job) {
  if (!job.check) return {};
  return [&job](const std::byte* data, uint64_t offset) {
    return std::memcmp(data, job.content.At(offset), job.call) == 0;
  };
}

std::function<uint64_t(uint64_t)> Translator(const FileJob& job) {
  if (job.places == nullptr) return {};
  return [&job](uint64_t offset) { return (*job.places)[offset / kMiB] + offset % kMiB; };
}

}  // namespace

Result<void> ReadFile(const FileJob& job) {
  ASSIGN_OR_RETURN(File file, File::Open(job.path, O_RDONLY));
  // One call of the whole goes on where the kernel stopped (2 GiB less a page); others always start at `into`.
  for (uint64_t at = 0; at < job.size;) {
    if (IsSet(job.cancel)) return Interrupted();
    const uint64_t in_call = at % job.call;
    std::byte* const memory = job.into + in_call;
    const ssize_t got = read(file.get(), memory, std::min(job.call - in_call, job.size - at));
    if (got < 0) return SystemError(job.path, "cannot be read");
    if (got == 0) return ShortFile(job.path, job.size);
    if (job.check && std::memcmp(memory, job.content.At(at), static_cast<size_t>(got)) != 0) {
      return WrongBytes(job.path, at);
    }
    at += static_cast<uint64_t>(got);
  }
  return file.Close(job.path);
}

Result<void> WriteFile(const FileJob& job) {
  ASSIGN_OR_RETURN(File file, File::Open(job.path, O_WRONLY | O_CREAT | (job.over_existing ? 0 : O_TRUNC)));
  for (uint64_t at = 0; at < job.size;) {
    if (IsSet(job.cancel)) return Interrupted();
    const uint64_t rest = std::min(job.call - at % job.call, job.size - at);
    const ssize_t put = write(file.get(), job.content.At(at), rest);
    if (put <= 0) return SystemError(job.path, "cannot be written");
    at += static_cast<uint64_t>(put);
  }
  if (fsync(file.get()) != 0) return SystemError(job.path, "fsync");
  return file.Close(job.path);
}

Result<void> MapFile(const FileJob& job) {
  ASSIGN_OR_RETURN(File file, File::Open(job.path, O_RDONLY));
  void* const mapped = mmap(nullptr, job.size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return SystemError(job.path, "cannot be mapped");
  const auto* bytes = static_cast<const std::byte*>(mapped);
  uint64_t sum = 0;
  for (uint64_t at = 0; at < job.size && !IsSet(job.cancel); at += kMiB) {
    sum += SumWords(bytes + at, std::min(kMiB, job.size - at));
  }
  uint64_t expected = sum;
  if (job.check) {
    expected = 0;
    for (uint64_t at = 0; at < job.size; at += kMiB) {
      expected += SumWords(job.content.At(at), std::min(kMiB, job.size - at));
    }
  }
  munmap(mapped, job.size);
  if (IsSet(job.cancel)) return Interrupted();
  // A sum that nobody looks at might never be made.
  [[maybe_unused]] volatile const uint64_t looked_at = sum;
  if (sum != expected) return WrongBytes(job.path, 0);
  return file.Close(job.path);
}

Result<void> ReadByAio(const FileJob& job, unsigned depth) {
  ASSIGN_OR_RETURN(File file, OpenDirect(job.path, O_RDONLY));
  DirectLoop loop{.descriptor = file.get(), .depth = depth, .request = job.call, .next = InOrder(job.size, job.call)};
  loop.memory = [&job](unsigned slot, uint64_t) { return job.into + slot * job.call; };
  loop.translate = Translator(job);
  loop.check = Checker(job);
  loop.cancel = job.cancel;
  ASSIGN_OR_RETURN(const uint64_t done, Run(loop));
  if (done * job.call != job.size) return ShortFile(job.path, job.size);
  return file.Close(job.path);
}

Result<void> WriteByAio(const FileJob& job, unsigned depth) {
  ASSIGN_OR_RETURN(File file, OpenDirect(job.path, O_WRONLY));
  DirectLoop loop{.descriptor = file.get(), .write = true, .depth = depth, .request = job.call};
  loop.next = InOrder(job.size, job.call);
  loop.memory = [&job](unsigned, uint64_t offset) { return const_cast<std::byte*>(job.content.At(offset)); };
  loop.cancel = job.cancel;
  ASSIGN_OR_RETURN(const uint64_t done, Run(loop));
  if (done * job.call != job.size) return ShortFile(job.path, job.size);
  if (fsync(file.get()) != 0) return SystemError(job.path, "fsync");
  return file.Close(job.path);
}

namespace {

Result<uint64_t> ReadRandomlyBuffered(const RandomJob& job, const std::function<std::optional<uint64_t>()>& next) {
  ASSIGN_OR_RETURN(const File file, File::Open(job.file.path, O_RDONLY));
  uint64_t done = 0;
  while (const auto offset = next()) {
    if (IsSet(job.file.cancel)) return Interrupted();
    const ssize_t got = pread(file.get(), job.file.into, job.file.call, static_cast<off_t>(*offset));
    if (got != static_cast<ssize_t>(job.file.call)) return SystemError(job.file.path, "cannot be read");
    if (job.file.check && std::memcmp(job.file.into, job.file.content.At(*offset), job.file.call) != 0) {
      return WrongBytes(job.file.path, *offset);
    }
    ++done;
  }
  return done;
}

}  // namespace

Result<uint64_t> ReadRandomly(const RandomJob& job) {
  std::mt19937_64 random(job.seed);
  const uint64_t places = job.file.size / job.file.call;
  const double end = Now() + job.seconds;
  const auto next = [&]() -> std::optional<uint64_t> {
    if (Now() >= end) return std::nullopt;
    return random() % places * job.file.call;
  };
  if (job.buffered) return ReadRandomlyBuffered(job, next);
  ASSIGN_OR_RETURN(const File file, OpenDirect(job.file.path, O_RDONLY));
  DirectLoop loop{.descriptor = file.get(), .depth = job.depth, .request = job.file.call, .next = next};
  loop.memory = [&job](unsigned slot, uint64_t) { return job.file.into + slot * job.file.call; };
  loop.translate = Translator(job.file);
  loop.check = Checker(job.file);
  loop.cancel = job.file.cancel;
  return Run(loop);
}

Result<void> PrepareRawFile(const FileJob& job) {
  ASSIGN_OR_RETURN(File file, File::Open(job.path, O_WRONLY | O_CREAT | O_TRUNC));
  if (const int failed = posix_fallocate(file.get(), 0, static_cast<off_t>(job.size)); failed != 0) {
    errno = failed;
    return SystemError(job.path, "has no room");
  }
  RETURN_IF_ERROR(file.Close(job.path));
  return WriteByAio(job, 32);
}

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <vector>

#include "common/units.h"

namespace weightfs::bench {
namespace {

// close(2) may report the failure of an earlier write.
Result<void> Close(UniqueFd& file, std::string_view path) {
  if (file.Close() != 0) return SystemError(path, "close");
  return {};
}

// Returns the sum of the 8-byte words, like a program that accesses every byte. `size` is a multiple of 8.
uint64_t SumWords(const std::byte* data, uint64_t size) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  return std::accumulate(words, words + size / sizeof(uint64_t), uint64_t{0});
}

Error WrongBytes(const std::string& path, uint64_t offset) {
  return {ErrorCode::kCorrupt,
          fmt::format("{}: wrong bytes at {}: the benchmark measures nothing that is not right", path, offset)};
}

template <typename Work>
Amount ForEach(const SmallFiles& files, const Work& work) {
  for (unsigned index = 0; index < files.count; ++index) RETURN_IF_ERROR(work(index, files.Path(index)));
  return files.count;
}

}  // namespace

Result<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) return SystemError(path, "cannot be opened");
  return file;
}

Result<void> Sync(const UniqueFd& file, std::string_view path) {
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  return {};
}

Result<Memory> AllocateTouched(uint64_t size, PageSize pages) {
  constexpr uint64_t kHugePage = 2 * kMiB;
  const uint64_t length = RoundUp(size, kHugePage);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, length)));
  if (memory == nullptr) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("no memory for a buffer of {} MiB; give a smaller --size", size / kMiB)};
  }
  madvise(memory.get(), length, pages == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(memory.get(), 1, length);
  return memory;
}

Amount ReadFile(const FileJob& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_RDONLY));
  // A call for the whole file continues where the kernel stopped (at 2 GiB less a page); all others start at `into`.
  for (uint64_t at = 0; at < job.size;) {
    const uint64_t in_call = at % job.call;
    const ssize_t got = read(file.get(), job.into + in_call, std::min(job.call - in_call, job.size - at));
    if (got < 0) return SystemError(job.path, "cannot be read");
    if (got == 0) return Error{ErrorCode::kIo, fmt::format("{}: ends before {} bytes", job.path, job.size)};
    if (job.check && std::memcmp(job.into + in_call, job.content.At(at), static_cast<size_t>(got)) != 0) {
      return WrongBytes(job.path, at);
    }
    at += static_cast<uint64_t>(got);
  }
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

Amount WriteFile(const FileJob& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_WRONLY | O_CREAT | O_TRUNC));
  for (uint64_t at = 0; at < job.size;) {
    const ssize_t put = write(file.get(), job.content.At(at), std::min(job.call - at % job.call, job.size - at));
    if (put <= 0) return SystemError(job.path, "cannot be written");
    at += static_cast<uint64_t>(put);
  }
  if (job.sync) RETURN_IF_ERROR(Sync(file, job.path));
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

Amount MapFile(const FileJob& job) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenFile(job.path, O_RDONLY));
  void* const mapped = mmap(nullptr, job.size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return SystemError(job.path, "cannot be mapped");
  uint64_t sum = 0, expected = 0;
  for (uint64_t at = 0; at < job.size; at += job.call) {
    const uint64_t length = std::min(job.call, job.size - at);
    sum += SumWords(static_cast<const std::byte*>(mapped) + at, length);
    if (job.check) expected += SumWords(job.content.At(at), length);
  }
  munmap(mapped, job.size);
  // Prevents the compiler from removing the unused sum.
  [[maybe_unused]] volatile const uint64_t used = sum;
  if (job.check && sum != expected) return WrongBytes(job.path, 0);
  RETURN_IF_ERROR(Close(file, job.path));
  return job.size;
}

std::string SmallFiles::Name(unsigned index) { return fmt::format("file-{:06}", index); }

Amount CreateAll(const SmallFiles& files) {
  if (mkdir(files.directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return SystemError(files.directory, "cannot be made");
  }
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(UniqueFd file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
    if (write(file.get(), files.Bytes(index), files.size) != static_cast<ssize_t>(files.size)) {
      return SystemError(path, "cannot be written");
    }
    if (files.durable) RETURN_IF_ERROR(Sync(file, path));
    return Close(file, path);
  });
}

Amount StatAll(const SmallFiles& files) {
  return ForEach(files, [&](unsigned, const std::string& path) -> Result<void> {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) return SystemError(path, "stat");
    if (static_cast<uint64_t>(status.st_size) == files.size) return {};
    return Error{ErrorCode::kCorrupt, fmt::format("{}: has {} bytes, not {}", path, status.st_size, files.size)};
  });
}

Amount ListAll(const SmallFiles& files) {
  DIR* const directory = opendir(files.directory.c_str());
  if (directory == nullptr) return SystemError(files.directory, "cannot be listed");
  unsigned count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] == '.' ? 0 : 1;
  closedir(directory);
  if (count == files.count) return count;
  return Error{ErrorCode::kCorrupt, fmt::format("{}: lists {} files of {}", files.directory, count, files.count)};
}

Amount ReadAll(const SmallFiles& files) {
  std::vector<std::byte> bytes(files.size);
  return ForEach(files, [&](unsigned index, const std::string& path) -> Result<void> {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
    if (read(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      return SystemError(path, "cannot be read");
    }
    if (files.check && std::memcmp(bytes.data(), files.Bytes(index), bytes.size()) != 0) return WrongBytes(path, 0);
    return {};
  });
}

Amount RemoveAll(const SmallFiles& files) {
  return ForEach(files, [](unsigned, const std::string& path) -> Result<void> {
    if (unlink(path.c_str()) != 0) return SystemError(path, "cannot be removed");
    return {};
  });
}

}  // namespace weightfs::bench

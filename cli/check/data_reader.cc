// SPDX-License-Identifier: Apache-2.0
#include "cli/check/data_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "common/unique_fd.h"

namespace weightfs::cli {
namespace {

constexpr uint64_t kStep = kMiB;                 // the largest request of the kernel to a mount
constexpr std::chrono::milliseconds kTick{100};  // between checks for an interrupt

}  // namespace

DataReader::DataReader(ByteCount rate, std::function<bool(ByteCount)> read)
    : rate_(rate), read_(std::move(read)), memory_(kStep / kBlockSize) {}

Result<void> DataReader::ReadFile(const std::string& path, DamagedFile* damaged) {
  damaged->path = path;
  UniqueFd file(open(path.c_str(), O_RDONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) return SystemError(path, "cannot be opened");
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return SystemError(path, "cannot be accessed");
  if (!S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<uint64_t>(status.st_size);
  for (uint64_t at = 0; at < size;) {
    const off_t data = lseek(file.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0) return errno == ENXIO ? Result<void>() : SystemError(path, "cannot be searched for data");
    const off_t hole = lseek(file.get(), data, SEEK_HOLE);
    if (hole < 0) return errno == ENXIO ? Result<void>() : SystemError(path, "cannot be searched for data");
    at = static_cast<uint64_t>(hole);
    const uint64_t begin = RoundDown(static_cast<uint64_t>(data), kBlockSize);
    RETURN_IF_ERROR(ReadRange(file.get(), path, begin, at, damaged));
  }
  return {};
}

Result<void> DataReader::ReadRange(int file, const std::string& path, uint64_t begin, uint64_t end,
                                   DamagedFile* damaged) {
  while (begin < end) {
    const uint64_t size = std::min(end - begin, kStep);
    const ssize_t done = pread(file, memory_.data(), RoundUp(size, kBlockSize), static_cast<off_t>(begin));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno != EIO) return SystemError(path, "cannot be read");
    if (done == 0) return {};  // the file was shortened meanwhile
    if (done < 0) FindDamage(file, begin, begin + size, damaged);
    const uint64_t step = done < 0 ? size : std::min<uint64_t>(size, static_cast<uint64_t>(done));
    RETURN_IF_ERROR(Account(ByteCount{step}));
    begin += step;
  }
  return {};
}

// Finds the unreadable blocks of a range that cannot be read as a whole.
void DataReader::FindDamage(int file, uint64_t begin, uint64_t end, DamagedFile* damaged) {
  for (uint64_t at = begin; at < end; at += kBlockSize) {
    if (pread(file, memory_.data(), kBlockSize, static_cast<off_t>(at)) >= 0 || errno != EIO) continue;
    if (damaged->offsets.size() < kListedBlocks) damaged->offsets.push_back(at);
    ++damaged->blocks;
  }
}

// Reports a transfer, and waits until the rate permits the next one.
Result<void> DataReader::Account(ByteCount size) {
  if (!read_(size)) return ErrorCode::kShutdown;
  if (rate_.value == 0) return {};
  const auto now = std::chrono::steady_clock::now();
  next_ = std::max(next_, now) + std::chrono::nanoseconds(size.value * 1'000'000'000 / rate_.value);
  while (std::chrono::steady_clock::now() < next_) {
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(next_ - std::chrono::steady_clock::now(), kTick));
    if (!read_(ByteCount{0})) return ErrorCode::kShutdown;
  }
  return {};
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// Reads files of a mount with O_DIRECT, so that the mount reads their blocks from the devices and verifies them.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs::cli {

// The damage of one file.
struct DamagedFile {
  std::string path;
  std::vector<uint64_t> offsets;  // bytes; of the first unreadable blocks, at most kListedBlocks
  uint64_t blocks = 0;            // all unreadable blocks
};
inline constexpr size_t kListedBlocks = 16;

// Not thread-safe.
class DataReader {
 public:
  // `rate`: bytes per second, 0: unlimited. `read` is called with the bytes after each transfer, and with 0
  // while the rate delays the next one; false ends the read.
  DataReader(ByteCount rate, std::function<bool(ByteCount)> read);

  // Reads all data of a regular file, without its holes. `damaged` stays empty for an intact file. Returns errors of
  // opening and reading other than EIO; kShutdown if `read` returned false. Does not follow a final symbolic link.
  Result<void> ReadFile(const std::string& path, DamagedFile* damaged);

 private:
  struct alignas(kBlockSize) Block {
    std::byte bytes[kBlockSize];
  };

  Result<void> ReadRange(int file, const std::string& path, uint64_t begin, uint64_t end, DamagedFile* damaged);
  void FindDamage(int file, uint64_t begin, uint64_t end, DamagedFile* damaged);
  Result<void> Account(ByteCount size);

  const ByteCount rate_;
  const std::function<bool(ByteCount)> read_;
  std::vector<Block> memory_;                     // aligned for O_DIRECT
  std::chrono::steady_clock::time_point next_{};  // the earliest time of the next transfer
};

}  // namespace weightfs::cli

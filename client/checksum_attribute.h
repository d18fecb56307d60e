// SPDX-License-Identifier: Apache-2.0
// Stores the checksums of a whole file in an extended attribute, for filesystems that keep no checksums of their own. A
// write stores them, and a read compares them.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/memory_view.h"
#include "common/result.h"

namespace weightfs::client {

// The checksums of one operation. Externally synchronized, except NoteWritten. It does nothing on a weightfs mount,
// because the mount checks every block.
class ChecksumAttribute {
 public:
  static constexpr const char* kName = "user.weightfs.crc32c";

  // The operation reads or writes [offset, offset + memory.size()) of the file. `whole_file`: a write replaces the
  // whole file.
  ChecksumAttribute(bool writes, bool whole_file, std::string path, MemoryView memory, uint64_t offset)
      : writes_(writes), whole_file_(whole_file), path_(std::move(path)), memory_(std::move(memory)), offset_(offset) {}

  // Must be called before the first transfer, with the file's size at that time. Errors: EOPNOTSUPP for GPU memory;
  // EINVAL if the operation does not cover the whole file. For a read: ENODATA if the file has no checksums, if it
  // changed after they were made, or if this library does not know their version. For a write: EOPNOTSUPP if the
  // filesystem does not support such attributes. A write removes the old checksums.
  Result<void> Begin(int descriptor, uint64_t file_size);
  // After Begin of a write: true if NoteWritten must be given all bytes that are sent.
  bool needs_checksums() const { return writes_ && needed_; }
  // Adds the bytes that are sent to `offset` of the file. Each byte is passed once. Thread-safe.
  void NoteWritten(uint64_t offset, std::span<const std::byte> bytes);
  // Must be called after the last transfer. A write stores the checksums. A read compares them and returns EIO with the
  // first block that differs.
  Result<void> End(int descriptor) const;

 private:
  Result<void> Load(int descriptor);
  Result<void> Store(int descriptor) const;
  Error Failed(int error_number, const std::string& what) const;

  const bool writes_;
  const bool whole_file_;
  const std::string path_;
  const MemoryView memory_;
  const uint64_t offset_;
  bool needed_ = true;
  uint32_t block_shift_ = 0;
  std::vector<uint32_t> expected_;           // read: one CRC-32C per block
  std::vector<std::atomic<uint32_t>> sent_;  // write: CRC-32C per block, accumulated from its parts
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Checksums of a whole file in an extended attribute of it, for filesystems that keep none themselves: written with the
// file, compared when it is read back.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/memory_view.h"
#include "common/result.h"

namespace weightfs::client {

// The checksums of one operation. Used by one thread at a time, but for NoteWritten. On a weightfs mount, which checks
// every block anyway, it does nothing.
class ChecksumAttribute {
 public:
  static constexpr const char* kName = "user.weightfs.crc32c";

  // The operation reads or writes [offset, offset + memory.size()) of the file. `whole_file`: a write replaces it.
  ChecksumAttribute(bool writes, bool whole_file, std::string path, MemoryView memory, uint64_t offset)
      : writes_(writes), whole_file_(whole_file), path_(std::move(path)), memory_(std::move(memory)), offset_(offset) {}

  // Before the first transfer, with the file's size at that time. EOPNOTSUPP for memory of a GPU, EINVAL unless the
  // operation is of the whole file. A read: ENODATA where there are no checksums, the file was changed after they were
  // made, or this library does not know their version. A write: EOPNOTSUPP where the filesystem has no such attributes;
  // old ones are gone.
  Result<void> Begin(int descriptor, uint64_t file_size);
  // After Begin of a write: whether NoteWritten is to see all that is sent.
  bool needs_checksums() const { return writes_ && needed_; }
  // Takes the bytes that are sent to `offset` of the file; any thread, each byte once.
  void NoteWritten(uint64_t offset, std::span<const std::byte> bytes);
  // After the last transfer. A write stores them; a read compares: EIO with the first block that differs.
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
  std::vector<uint32_t> expected_;           // of a read: one CRC-32C for each block
  std::vector<std::atomic<uint32_t>> sent_;  // of a write: the contributions to them
};

}  // namespace weightfs::client

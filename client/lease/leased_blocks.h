// SPDX-License-Identifier: Apache-2.0
// The locations and checksums of the blocks of a lease, and the base class of all that transfer them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/lease/lease_connection.h"
#include "client/target.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "lease/channel.h"

namespace weightfs::client {

// Blocks are numbered as in their operation: the blocks of one file, or of many files in sequence. Thread-safe after
// the last call to Add.
class LeasedBlocks final : public Layout {
 public:
  // Allocates the checksums of [first, first + count). ENOMEM.
  Result<void> Reset(uint64_t first, uint64_t count);
  // Takes the descriptors that the extents of a message refer to.
  void Adopt(std::vector<UniqueFd> devices);
  // Adds the extents of a message, in the order of the operation; their block numbers are relative to `first`. EPROTO
  // for extents that no correct mount sends.
  Result<void> Add(std::span<const lease::Extent> extents, uint64_t first);
  // Takes the mount's answer to a kRead of `length` bytes at `offset`, which may reach past the end of the file.
  // Returns the size of the file. EPROTO for an answer that no correct mount sends.
  Result<uint64_t> TakeReadAnswer(lease::Message message, uint64_t offset, uint64_t length);

  // EFBIG if the kernel would refuse to write the blocks: it compares offsets in a pool file with the process's
  // RLIMIT_FSIZE as if they were offsets in the file itself.
  Result<void> CheckWritable() const;

  uint64_t first() const { return first_; }
  uint64_t count() const { return count_; }
  // Element i belongs to block first() + i.
  uint32_t* checksums() const { return checksums_.get(); }

  Run Locate(uint64_t offset, uint64_t length) const override;
  DirectAlignment alignment() const override { return alignment_; }
  // Same as in Access.
  void NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const;

  struct Damage {
    uint64_t block = 0;     // block number in the operation
    std::string what = {};  // "its checksum is ..., at byte ... of DEVICE"
  };
  // The first block, at or behind the start of `blocks`, whose checksum does not match, of those that the mount has not
  // verified.
  std::optional<Damage> FindDamage(uint64_t offset, std::span<const std::byte> blocks) const;

 private:
  struct Extent {
    uint64_t block;
    uint64_t count;
    uint64_t device_block;
    uint32_t device;
    bool verified;
  };
  // Merges an extent that continues the previous one.
  Result<void> AddOne(uint64_t block, const lease::Extent& extent);
  const Extent* Find(uint64_t block) const;

  uint64_t first_ = 0;
  uint64_t count_ = 0;
  std::unique_ptr<uint32_t[]> checksums_;
  std::vector<UniqueFd> devices_;
  DirectAlignment alignment_{.offset = 4096, .memory = 1};
  std::vector<Extent> extents_;
};

// The base class of all that transfer leased blocks.
class LeasedAccess : public Access {
 public:
  const Layout& layout() const override { return blocks_; }
  bool leased() const override { return true; }
  void NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const override {
    blocks_.NoteWritten(offset, blocks);
  }

 protected:
  // Takes the mount's answer to a reservation of [first, first + count).
  Result<void> TakeReservation(lease::Message message, uint64_t first, uint64_t count);

  std::unique_ptr<Lease> lease_;
  LeasedBlocks blocks_;
};

// EPROTO for an answer that no correct mount sends.
Error MalformedAnswer();
// EPIPE if the lease ended with its mount: others may have its blocks, so a checksum mismatch is no damage.
Result<void> CheckLease(const Lease& lease, const std::string& path);
// EIO for a checksum mismatch: names the file and the offset, and says what can be done.
Error DamagedRead(const std::string& path, uint64_t offset, const std::string& what);

}  // namespace weightfs::client

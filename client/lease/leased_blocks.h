// SPDX-License-Identifier: Apache-2.0
// The locations and checksums of the blocks of a lease, and the common part of all targets over a lease.
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

// Blocks are numbered as their operation does: those of a file, or of many files one behind the other. After the last
// Add everything may be called from any thread.
class LeasedBlocks {
 public:
  // Room for the checksums of [first, first + count). ENOMEM.
  Result<void> Reset(uint64_t first, uint64_t count);
  // The descriptors that the extents of a message are about.
  void Adopt(std::vector<UniqueFd> devices);
  // The extents of a message, whose blocks are counted from `first`, in the order of the operation. EPROTO for extents
  // that no correct mount sends.
  Result<void> Add(std::span<const lease::Extent> extents, uint64_t first);

  // EFBIG where the kernel would refuse to write them, for it compares places in a pool file with the limit of the
  // process (RLIMIT_FSIZE) as if they were the file's own.
  Result<void> CheckWritable() const;

  uint64_t first() const { return first_; }
  uint64_t count() const { return count_; }
  // Of block first() + i.
  uint32_t* checksums() const { return checksums_.get(); }

  // As Target has them.
  Target::Run Locate(uint64_t offset, uint64_t length) const;
  DirectAlignment alignment() const { return alignment_; }
  void NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const;

  struct Damage {
    uint64_t block = 0;     // of the operation
    std::string what = {};  // "its checksum is ..., at byte ... of DEVICE"
  };
  // The first block at or behind the start of `blocks` whose checksum is another than it should be.
  std::optional<Damage> FindDamage(uint64_t offset, std::span<const std::byte> blocks) const;

 private:
  struct Run {
    uint64_t block;
    uint64_t count;
    uint64_t device_block;
    uint32_t device;
  };
  // An extent that continues the last one becomes part of it.
  Result<void> AddOne(uint64_t block, const lease::Extent& extent);
  const Run* Find(uint64_t block) const;

  uint64_t first_ = 0;
  uint64_t count_ = 0;
  std::unique_ptr<uint32_t[]> checksums_;
  std::vector<UniqueFd> devices_;
  DirectAlignment alignment_{.offset = 4096, .memory = 1};
  std::vector<Run> runs_;
};

// The common part of all targets over a lease.
class LeasedTarget : public Target {
 public:
  Run Locate(uint64_t offset, uint64_t length) const override { return blocks_.Locate(offset, length); }
  DirectAlignment alignment() const override { return blocks_.alignment(); }
  bool leased() const override { return true; }
  void NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const override {
    blocks_.NoteWritten(offset, blocks);
  }

 protected:
  // The mount's answer to a reservation of [first, first + count).
  Result<void> TakeReservation(lease::Message message, uint64_t first, uint64_t count);

  std::unique_ptr<Lease> lease_;
  LeasedBlocks blocks_;
};

// EPROTO for an answer that no correct mount sends.
Error MalformedAnswer();
// EIO for a block whose checksum is another: which file, where, and what can be done.
Error DamagedRead(const std::string& path, uint64_t offset, const std::string& what);

}  // namespace weightfs::client

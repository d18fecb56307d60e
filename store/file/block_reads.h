// SPDX-License-Identifier: Apache-2.0
// Verified reads of file blocks: each block is checked against its checksum and read again after a mismatch.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/device_set.h"
#include "engine/extent_allocator.h"
#include "store/space/space_manager.h"

namespace weightfs {

// A group of device reads of one file that complete together. The group is in a read epoch from its creation to the end
// of its last read, so create it while holding the Inode::mutex under which the extents are looked up. Call Add and
// Fail before Submit, from one thread.
class BlockReads {
 public:
  struct Context {
    DeviceSet& devices;
    SpaceManager& space;
    std::atomic<uint64_t>& checksum_errors;
    bool verify;
  };
  enum class Use { kWhole, kParts };  // kParts: the caller uses what can be read beside an error
  using Failed = std::vector<std::span<const std::byte>>;  // memory that could not be filled
  // Runs on a completion thread or in Submit, without locks. Gets the first error.
  using Done = std::function<void(Result<void>, Failed)>;

  static std::shared_ptr<BlockReads> Create(const Context& context, InodeId ino, Use use, Done done);
  ~BlockReads();
  BlockReads(const BlockReads&) = delete;
  BlockReads& operator=(const BlockReads&) = delete;

  // Reads the run, which holds the file's blocks from `first` on, into `memory`. Takes one checksum per block.
  void Add(FileBlock first, const DeviceRun& run, std::byte* memory, std::span<const uint32_t> checksums);
  // Fills `memory` with zeros.
  void AddZeros(std::span<std::byte> memory);
  // Reports that `memory` cannot be filled; the other reads continue.
  void Fail(const Error& error, std::span<const std::byte> memory);

  // Submits the reads of several groups together. Call it once per group, without locks.
  static void Submit(std::span<const std::shared_ptr<BlockReads>> groups);

 private:
  class Transfer;
  BlockReads(const Context& context, InodeId ino, Use use, Done done);
  void Complete();

  const Context context_;
  const InodeId ino_;
  const Use use_;
  std::optional<ReadEpoch> epoch_;  // ends before `done_` runs
  Done done_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::span<std::byte>> zeros_;
  std::atomic<int> pending_{1};  // Submit holds one reference
  Mutex mutex_;
  std::optional<Error> error_ GUARDED_BY(mutex_);
  Failed failed_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

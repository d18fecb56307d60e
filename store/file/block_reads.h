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

// A group of device reads of one file that end together. It is in a read epoch from its creation to the end of the
// last read, so it is created under the hold of Inode::mutex that looks the extents up. Add and Fail come before
// Submit, from one thread.
class BlockReads {
 public:
  struct Context {
    DeviceSet& devices;
    SpaceManager& space;
    std::atomic<uint64_t>& checksum_errors;
    bool verify;
  };
  using Failed = std::vector<std::span<const std::byte>>;  // memory that could not be filled
  // Runs on a completion thread, or in Submit, without locks. The error is the first one.
  using Done = std::function<void(Result<void>, Failed)>;

  static std::shared_ptr<BlockReads> Create(const Context& context, InodeId ino, Done done);
  ~BlockReads();
  BlockReads(const BlockReads&) = delete;
  BlockReads& operator=(const BlockReads&) = delete;

  // Reads the run, which holds the file's blocks from `first` on, into `memory`. One checksum for each block.
  void Add(FileBlock first, const DeviceRun& run, std::byte* memory, std::span<const uint32_t> checksums);
  // Fills `memory` with zeros.
  void AddZeros(std::span<std::byte> memory);
  // `memory` cannot be filled; the other reads go on.
  void Fail(const Error& error, std::span<const std::byte> memory);

  // Submits the reads of several groups together. Called once for each group, without locks.
  static void Submit(std::span<const std::shared_ptr<BlockReads>> groups);

 private:
  class Transfer;
  BlockReads(const Context& context, InodeId ino, Done done);
  void Complete();

  const Context context_;
  const InodeId ino_;
  std::optional<ReadEpoch> epoch_;  // ends before `done_` runs
  Done done_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<std::span<std::byte>> zeros_;
  std::atomic<int> pending_{1};  // one is Submit's
  Mutex mutex_;
  std::optional<Error> error_ GUARDED_BY(mutex_);
  Failed failed_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

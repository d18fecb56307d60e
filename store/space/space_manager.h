// SPDX-License-Identifier: Apache-2.0
// The free space of all devices: reservations, allocation for files, and the release of what readers still use.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/extent_allocator.h"
#include "store/space/space_pins.h"
#include "store/types.h"

namespace weightfs {

class SpaceManager;

// Blocks promised to a file whose data is still in memory; gives back what is left. Externally synchronised.
class SpaceReservation {
 public:
  SpaceReservation() = default;
  SpaceReservation(const SpaceReservation&) = delete;
  SpaceReservation& operator=(const SpaceReservation&) = delete;
  ~SpaceReservation() { TrimTo(BlockCount{0}); }

  BlockCount held() const { return held_; }
  void TrimTo(BlockCount keep);
  // Takes over what `other` holds.
  void Absorb(SpaceReservation& other);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  BlockCount held_;
};

// Keeps what blocks hold as long as it lives. Move-only; gone before the SpaceManager.
class SpacePin {
 public:
  SpacePin() = default;
  SpacePin(SpacePin&& other) noexcept : space_(other.space_), runs_(std::exchange(other.runs_, {})) {}
  SpacePin& operator=(SpacePin&& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(runs_, other.runs_);
    return *this;
  }
  ~SpacePin();

  // Takes over what `other` pins.
  void Join(SpacePin other);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  std::vector<DeviceRun> runs_;
};

// Blocks taken for a lease holder, who writes them past the store. Those that no file has got by its end are free again
// as soon as nobody can write them any more. Move-only; gone before the SpaceManager.
class BlockReservation {
 public:
  BlockReservation() = default;
  BlockReservation(BlockReservation&& other) noexcept
      : space_(other.space_), runs_(std::exchange(other.runs_, {})), writer_(other.writer_) {}
  BlockReservation& operator=(BlockReservation&& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(runs_, other.runs_);
    std::swap(writer_, other.writer_);
    return *this;
  }
  ~BlockReservation();

  // The writer, not 0, gets descriptors; and says that none of his writes is under way.
  void BeginWrites(uint64_t writer) { writer_ = writer; }
  void EndWrites() { writer_ = 0; }

  const std::vector<DeviceRun>& runs() const { return runs_; }
  BlockCount count() const;
  // Nobody gets the blocks before the next mount.
  void Forget() { runs_.clear(); }
  // Hands the first `count` blocks (it has as many) to a file, which counts them from here on.
  std::vector<DeviceRun> Take(BlockCount count);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  std::vector<DeviceRun> runs_;
  uint64_t writer_ = 0;
};

// Thread-safe. Invariant: the allocators together hold at least as many free blocks as are reserved, so that the
// write-out of reserved data never fails for want of space.
class SpaceManager {
 public:
  struct Device {
    BlockRun space;  // the data area
  };

  static Result<std::unique_ptr<SpaceManager>> Create(const std::vector<Device>& devices);

  // Mount: `run` belongs to a committed extent. kCorrupt when it is outside the data area or already taken.
  Result<void> MarkUsed(const DeviceRun& run);

  // Grows `reservation` by `count`; kNoSpace (and no change) when that many are not free. `privileged` may use the
  // blocks held back for operations that free space.
  Result<void> Reserve(SpaceReservation* reservation, BlockCount count, bool privileged = false);

  struct Request {
    InodeId ino;
    FileBlock first;  // where in the file, for striping
    BlockCount count;
    std::optional<DeviceRun> after;  // the file's extent before it
    bool stream = false;             // more will follow: preallocate ahead
    uint64_t expected = 0;           // blocks the file is known to need yet (a size set ahead), 0 unknown
  };
  // Blocks for `count` file blocks, in file order, paid from `reservation`. Fails only where the invariant is broken.
  Result<std::vector<DeviceRun>> Allocate(const Request& request, SpaceReservation* reservation);

  // The same, for a holder who writes the blocks himself.
  Result<BlockReservation> ReserveBlocks(const Request& request, SpaceReservation* reservation);

  // Pins blocks that a file has mapped, under that inode's mutex: what Retire gets of them is free after the last pin.
  SpacePin Pin(std::vector<DeviceRun> runs);
  BlockCount pinned() const EXCLUDES(mutex_);
  BlockCount granted() const { return {granted_.load()}; }

  // `has_writer` tells whether a writer has descriptors left. Before the first reservation of blocks.
  void AskForWriters(std::function<bool(uint64_t writer)> has_writer) { has_writer_ = std::move(has_writer); }
  // Frees the blocks of ended reservations whose writers are gone by now. True when some writers are not.
  bool CollectOrphanedReservations() EXCLUDES(collecting_, mutex_);

  // Gives the file's preallocated rest back (at close).
  void ReleasePreallocation(InodeId ino);
  void ReleaseAllPreallocations();

  // Readers of a device are in a read epoch from before they look up an extent until their I/O ends.
  uint64_t EnterRead();
  void LeaveRead(uint64_t epoch);
  // Frees the runs once every reader that entered before has left and nobody pins them. Only after the commit that
  // dropped them.
  void Retire(std::vector<DeviceRun> runs);

  // Blocks that files show as used, data in memory included, and those of leases that no file has: df's view.
  void AddUsed(int64_t blocks) { used_ += blocks; }
  // `leaving`: blocks still mapped or reserved that count as free already.
  SpaceStatistics Statistics(BlockCount leaving) const;
  BlockCount total() const { return total_; }

 private:
  friend class SpaceReservation;
  friend class SpacePin;
  friend class BlockReservation;
  struct Preallocation {
    DeviceId device;
    BlockRun rest;
    BlockCount next_size;
  };
  struct Retired {
    uint64_t after;  // the last read epoch that may read it
    std::vector<DeviceRun> runs;
  };

  explicit SpaceManager(size_t devices) : pins_(devices) {}
  Result<BlockRun> TakeRunLocked(const Request& request, DeviceId device, BlockCount count) REQUIRES(mutex_);
  void Free(const std::vector<DeviceRun>& runs) EXCLUDES(mutex_);
  void CollectRetired(std::vector<DeviceRun>* ready) REQUIRES(mutex_);
  void Unpin(const std::vector<DeviceRun>& runs) EXCLUDES(mutex_);
  // Blocks of a lease whose holder ended without saying that it writes no more.
  struct OrphanedReservation {
    uint64_t writer;
    std::vector<DeviceRun> runs;
  };
  void Leave(OrphanedReservation orphaned) EXCLUDES(mutex_);
  bool TryFree(const OrphanedReservation& orphaned);
  void GiveBack(BlockCount count) EXCLUDES(mutex_);

  std::vector<std::unique_ptr<ExtentAllocator>> allocators_;
  BlockCount total_, held_back_;
  std::atomic<int64_t> used_{0};
  std::atomic<uint64_t> granted_{0};
  mutable Mutex mutex_;
  uint64_t free_ GUARDED_BY(mutex_) = 0;  // blocks that the allocators can give, those on their way there not counted
  uint64_t reserved_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<InodeId, std::vector<Preallocation>> preallocations_ GUARDED_BY(mutex_);
  // readers_[i] counts the readers of epoch first_epoch_ + i; the last epoch is the current one.
  std::deque<uint32_t> readers_ GUARDED_BY(mutex_) = {0};
  uint64_t first_epoch_ GUARDED_BY(mutex_) = 1;
  std::deque<Retired> retired_ GUARDED_BY(mutex_);
  SpacePins pins_ GUARDED_BY(mutex_);
  Mutex collecting_;  // taken before mutex_
  std::function<bool(uint64_t writer)> has_writer_;
  std::vector<OrphanedReservation> orphaned_ GUARDED_BY(mutex_);  // while their writers are there
};

// One read epoch of a reader, from its beginning to its end. Not thread-safe.
class ReadEpoch {
 public:
  explicit ReadEpoch(SpaceManager& space) : space_(space), epoch_(space.EnterRead()) {}
  ~ReadEpoch() { space_.LeaveRead(epoch_); }
  ReadEpoch(const ReadEpoch&) = delete;
  ReadEpoch& operator=(const ReadEpoch&) = delete;

 private:
  SpaceManager& space_;
  const uint64_t epoch_;
};

}  // namespace weightfs

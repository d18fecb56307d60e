// SPDX-License-Identifier: Apache-2.0
// The free space of all devices: reservations, allocation for files, and deferred release of space that readers still
// use.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/extent_allocator.h"
#include "store/space/retired_space.h"
#include "store/space/space_pins.h"
#include "store/types.h"

namespace weightfs {

class SpaceManager;

// Blocks reserved for a file whose data is still in memory. Releases the rest when destroyed. Externally synchronized.
class SpaceReservation {
 public:
  SpaceReservation() = default;
  SpaceReservation(const SpaceReservation&) = delete;
  SpaceReservation& operator=(const SpaceReservation&) = delete;
  ~SpaceReservation();

  BlockCount held() const { return held_; }
  void TrimTo(BlockCount keep);
  // Takes over the reservation of `other`.
  void Absorb(SpaceReservation& other);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  BlockCount held_;
  bool ahead_ = false;  // between ReserveAhead and WaitUntilBacked
};

// Keeps the content of blocks unchanged during its lifetime. Move-only; destroy it before the SpaceManager.
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

  // Takes over the pins of `other`.
  void Join(SpacePin other);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  std::vector<DeviceRun> runs_;
};

// Blocks allocated to a lease holder, who writes them directly. When it ends, blocks that no file has taken are freed
// as soon as nobody can write them any more. Move-only; destroy it before the SpaceManager.
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

  // BeginWrites: the writer (not 0) gets descriptors. EndWrites: none of its writes is in progress.
  void BeginWrites(uint64_t writer) { writer_ = writer; }
  void EndWrites() { writer_ = 0; }

  const std::vector<DeviceRun>& runs() const { return runs_; }
  BlockCount count() const;
  // Leaves the blocks allocated until the next mount.
  void Forget() { runs_.clear(); }
  // Transfers the first `count` blocks to a file, which counts them as used from then on. The reservation must have as
  // many.
  std::vector<DeviceRun> Take(BlockCount count);

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  std::vector<DeviceRun> runs_;
  uint64_t writer_ = 0;
};

// Thread-safe. Invariant: the allocators together hold at least as many free blocks as are reserved, so the writeback
// of reserved data never runs out of space. Between ReserveAhead and WaitUntilBacked, the blocks of that reservation do
// not count.
class SpaceManager {
 public:
  // `spaces`: the data area of each device.
  static Result<std::unique_ptr<SpaceManager>> Create(const std::vector<BlockRun>& spaces);

  // Marks a run of a committed extent as used, at mount. Returns kCorrupt when it is outside the data area or already
  // used.
  Result<void> MarkUsed(const DeviceRun& run);

  // Grows `reservation` by `count`. Returns kNoSpace, and changes nothing, when too few blocks are free. A privileged
  // call may use the reserve for operations that free space.
  Result<void> Reserve(SpaceReservation* reservation, BlockCount count, bool privileged = false);

  // Same, for the log of the catalog, which leaves a part of that reserve to operations that free space.
  Result<void> ReserveForLog(SpaceReservation* reservation, BlockCount count);

  // Same as Reserve, for a caller that is about to free `freed` blocks: they count as free already. Nobody else gets
  // the blocks, and the caller allocates none before WaitUntilBacked has returned. Returns kAgain if the blocks do not
  // suffice yet: another such reservation waits for its own, or retired blocks come free. Try again after
  // WaitForRetired.
  Result<void> ReserveAhead(SpaceReservation* reservation, BlockCount count, BlockCount freed) EXCLUDES(mutex_);
  // Waits until as many blocks are free as are reserved, so that the blocks of a reservation of ReserveAhead are there.
  // Its caller has retired the blocks that it freed. Returns kIo if that did not happen: no block will come free. Call
  // it without locks, and outside of a read epoch.
  Result<void> WaitUntilBacked(SpaceReservation* reservation) EXCLUDES(mutex_);

  // True if Reserve would succeed once all retired blocks, and `freed` more, are free.
  bool WouldFit(BlockCount count, BlockCount freed, bool privileged) const EXCLUDES(mutex_);
  // The blocks of the runs that no read lease pins: Retire frees them at once, or after reads in progress.
  BlockCount Unpinned(const std::vector<DeviceRun>& runs) const EXCLUDES(mutex_);

  struct Request {
    InodeId ino;
    FileBlock first;  // position in the file, for striping
    BlockCount count;
    std::optional<DeviceRun> after;  // the extent that precedes it in the file
    bool stream = false;             // more blocks will follow: preallocate
    uint64_t expected = 0;           // remaining blocks of the file, from a size set in advance; 0: unknown
  };
  // Allocates `count` blocks in file order and charges them to `reservation`. Fails only when the invariant is broken.
  Result<std::vector<DeviceRun>> Allocate(const Request& request, SpaceReservation* reservation);

  // Same, for a lease holder who writes the blocks directly.
  Result<BlockReservation> ReserveBlocks(const Request& request, SpaceReservation* reservation);

  // Pins blocks that a file has mapped, under that inode's mutex. If they are retired meanwhile, they are freed after
  // the last pin.
  SpacePin Pin(std::vector<DeviceRun> runs);
  BlockCount pinned() const EXCLUDES(mutex_);
  BlockCount granted() const { return {granted_.load()}; }

  // `has_writer` tells whether a writer still has descriptors. Call this before the first reservation of blocks.
  void AskForWriters(std::function<bool(uint64_t writer)> has_writer) { has_writer_ = std::move(has_writer); }
  // Frees the blocks of ended reservations whose writers are gone. Returns true when some writers remain.
  bool CollectOrphanedReservations() EXCLUDES(collecting_, mutex_);

  // Releases the unused preallocation of the file, at close.
  void ReleasePreallocation(InodeId ino);
  void ReleaseAllPreallocations();

  // A reader of a device is in a read epoch from before it looks up an extent until its I/O ends.
  uint64_t EnterRead();
  void LeaveRead(uint64_t epoch);
  // Frees the runs once every reader that entered before has left and no pin remains: on this thread, or on that of the
  // next call that frees, allocates or lacks blocks. Call this only after the commit that dropped them, so that nobody
  // can pin them any more.
  void Retire(const std::vector<DeviceRun>& runs) EXCLUDES(mutex_);
  // Retired blocks that no lease pins and that are not free yet.
  BlockCount waiting() const EXCLUDES(mutex_);
  // Waits until Reserve, or ReserveAhead with `freed` blocks, would succeed, but not beyond `deadline`, and only while
  // the retired blocks, or those that a ReserveAhead waits for, can make it succeed. Call it without locks, and outside
  // of a read epoch.
  void WaitForRetired(BlockCount count, BlockCount freed, bool privileged,
                      std::chrono::steady_clock::time_point deadline) EXCLUDES(mutex_);

  // Adjusts the used blocks that df shows: blocks that files map, and blocks of leases that no file has. Statistics
  // adds the reserved blocks.
  void AddUsed(int64_t blocks) { used_ += blocks; }
  // Adjusts how many of these blocks count as free already: those of files that are about to be deleted.
  void AddLeaving(int64_t blocks) { leaving_ += blocks; }
  // Adjusts the bytes that the log will need for changes of files that are accepted, but not committed.
  void AddUncommitted(int64_t bytes) { uncommitted_ += bytes; }
  ByteCount uncommitted() const { return {static_cast<uint64_t>(std::max<int64_t>(0, uncommitted_.load()))}; }
  SpaceStatistics Statistics() const;
  BlockCount total() const { return total_; }

 private:
  friend class SpaceReservation;
  friend class SpacePin;
  friend class BlockReservation;

  // Blocks allocated on one device ahead of a file that is written in sequence.
  struct Preallocation {
    BlockRun rest;
    BlockCount next_size;
  };
  using Preallocations = std::map<std::pair<InodeId, DeviceId>, Preallocation>;

  explicit SpaceManager(size_t devices) : pins_(devices) {}
  Result<BlockRun> TakeRunLocked(const Request& request, DeviceId device, BlockCount count) REQUIRES(mutex_);
  Result<void> ReserveBeside(SpaceReservation* reservation, BlockCount count, BlockCount others) EXCLUDES(mutex_);
  void ReserveLocked(SpaceReservation* reservation, BlockCount count) REQUIRES(mutex_);
  bool FitsLocked(BlockCount count, BlockCount freed, bool privileged) const REQUIRES(mutex_) {
    return FitsBesideLocked(count, freed, privileged ? BlockCount{} : held_back_);
  }
  bool FitsBesideLocked(BlockCount count, BlockCount freed, BlockCount others) const REQUIRES(mutex_) {
    return count.value == 0 || free_ + freed.value >= reserved_ + others.value + count.value;
  }
  std::vector<DeviceRun> TakePreallocationsLocked(Preallocations::iterator begin, Preallocations::iterator end)
      REQUIRES(mutex_);
  uint64_t ReturnToAllocators(const std::vector<DeviceRun>& runs);
  void Free(const std::vector<DeviceRun>& runs) EXCLUDES(mutex_);
  // Frees the retired blocks whose readers have left, without the lock.
  void FreeRetiredLocked(MutexLock& lock) REQUIRES(mutex_);
  // Waits until the condition holds, but not beyond `deadline`, and frees these blocks meanwhile.
  template <typename Condition>
  void WaitForFreedLocked(MutexLock& lock, std::chrono::steady_clock::time_point deadline, Condition condition)
      REQUIRES(mutex_);
  void Unpin(const std::vector<DeviceRun>& runs) EXCLUDES(mutex_);
  // Calls `operation` for the runs in steps, each in one hold of the mutex.
  template <typename Operation>
  void InSteps(const std::vector<DeviceRun>& runs, Operation operation) const EXCLUDES(mutex_);
  // Blocks of a lease that ended while its writer may still have writes in flight.
  struct OrphanedReservation {
    uint64_t writer;
    std::vector<DeviceRun> runs;
  };
  void Leave(OrphanedReservation orphaned) EXCLUDES(mutex_);
  bool TryFree(const OrphanedReservation& orphaned);
  void EndAhead(SpaceReservation* reservation) EXCLUDES(mutex_);
  void GiveBack(BlockCount count) EXCLUDES(mutex_);

  std::vector<std::unique_ptr<ExtentAllocator>> allocators_;
  BlockCount total_, held_back_;
  std::atomic<int64_t> used_{0}, leaving_{0}, uncommitted_{0};
  std::atomic<uint64_t> granted_{0};
  mutable Mutex mutex_;
  uint64_t free_ GUARDED_BY(mutex_) = 0;  // blocks in the allocators, excluding blocks that Free has not returned yet
  uint64_t reserved_ GUARDED_BY(mutex_) = 0;
  Preallocations preallocations_ GUARDED_BY(mutex_);
  RetiredSpace retired_ GUARDED_BY(mutex_);  // without parked blocks
  size_t ahead_ GUARDED_BY(mutex_) = 0;      // reservations between ReserveAhead and WaitUntilBacked
  // Fewer retired blocks wait, or a reservation without blocks has ended, or readers have left retired blocks.
  std::condition_variable freed_;
  SpacePins pins_ GUARDED_BY(mutex_);
  Mutex collecting_;  // locked before mutex_
  std::function<bool(uint64_t writer)> has_writer_;
  std::vector<OrphanedReservation> orphaned_ GUARDED_BY(mutex_);  // until their writers are gone
};

// A read epoch that lasts as long as this object. Not thread-safe.
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

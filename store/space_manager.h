// The free space of all devices: reservations, allocation for files, and the release of what readers still use.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/extent_allocator.h"
#include "store/extent_map.h"
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

 private:
  friend class SpaceManager;
  SpaceManager* space_ = nullptr;
  BlockCount held_;
};

// Thread-safe. Invariant: the allocators together hold at least as many free blocks as are reserved, so that the
// write-out of reserved data never fails for want of space.
class SpaceManager {
 public:
  struct Device {
    BlockRun space;     // the data area
  };

  static Result<std::unique_ptr<SpaceManager>> Create(const std::vector<Device>& devices);

  // Mount: `run` belongs to a committed extent. kCorrupt when it is outside the data area or already taken.
  Result<void> MarkUsed(const DeviceRun& run);

  // Grows `reservation` by `count`; kNoSpace (and no change) when that many are not free. `privileged` may use the
  // blocks held back for operations that free space.
  Result<void> Reserve(SpaceReservation* reservation, BlockCount count, bool privileged = false);

  struct Request {
    InodeId ino;
    FileBlock first;                     // where in the file, for striping
    BlockCount count;
    std::optional<DeviceRun> after;      // the file's extent before it
    bool stream = false;                 // more will follow: preallocate ahead
    uint64_t expected = 0;               // blocks the file is known to need yet (a size set ahead), 0 unknown
  };
  // Blocks for `count` file blocks, in file order, paid from `reservation`. Fails only where the invariant is broken.
  Result<std::vector<DeviceRun>> Allocate(const Request& request, SpaceReservation* reservation);

  // Gives the file's preallocated rest back (at close).
  void ReleaseWindow(InodeId ino);
  void ReleaseAllWindows();

  // Readers of the device hold a ticket from before they look up an extent until their I/O ends.
  uint64_t EnterRead();
  void LeaveRead(uint64_t ticket);
  // Frees the runs once every reader that entered before has left. Only after the commit that dropped them.
  void Retire(std::vector<DeviceRun> runs);

  // Blocks that files show as used, data in memory included: df's view.
  void AddUsed(int64_t blocks) { used_ += blocks; }
  // `leaving`: blocks still mapped or reserved that count as free already.
  SpaceStatistics Statistics(BlockCount leaving) const;
  BlockCount total() const { return total_; }
  // Free and not promised, as a Reserve now would see it.
  BlockCount Reservable() const EXCLUDES(mutex_);

 private:
  friend class SpaceReservation;
  struct Window {
    DeviceId device;
    BlockRun rest;
    BlockCount next_size;
  };
  struct Retired {
    uint64_t after;      // the last ticket that may read it
    std::vector<DeviceRun> runs;
  };

  SpaceManager() = default;
  uint64_t FreeLocked() const REQUIRES(mutex_);
  Result<BlockRun> TakeRunLocked(const Request& request, DeviceId device, BlockCount count) REQUIRES(mutex_);
  void FreeRun(const DeviceRun& run);
  void CollectRetired(std::vector<DeviceRun>* ready) REQUIRES(mutex_);
  void GiveBack(BlockCount count) EXCLUDES(mutex_);

  std::vector<std::unique_ptr<ExtentAllocator>> allocators_;
  BlockCount total_, held_back_;
  std::atomic<int64_t> used_{0};
  mutable Mutex mutex_;
  uint64_t reserved_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<InodeId, std::vector<Window>> windows_ GUARDED_BY(mutex_);
  // Tickets are epochs: readers_[i] counts those of epoch first_epoch_ + i; the last one is the current.
  std::deque<uint32_t> readers_ GUARDED_BY(mutex_) = {0};
  uint64_t first_epoch_ GUARDED_BY(mutex_) = 1;
  std::deque<Retired> retired_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/space/space_manager.h"

#include <iterator>

#include "common/assert.h"
#include "common/log.h"

namespace weightfs {
namespace {

constexpr BlockCount kFirstPreallocation{2 * kMiB / kBlockSize};
constexpr BlockCount kLargestPreallocation{256 * kMiB / kBlockSize};
// The minimum length of a run that is aligned to 2 MiB.
constexpr BlockCount kAlignedRun{2 * kMiB / kBlockSize};
// With several devices, consecutive stripes of a file are on consecutive devices.
constexpr uint64_t kStripeBlocks = 8 * kMiB / kBlockSize;

// Runs that one hold of the mutex covers: a file may have a million.
constexpr size_t kRunsAtOnce = 1000;

constexpr auto kForever = std::chrono::steady_clock::time_point::max();

}  // namespace

SpaceReservation::~SpaceReservation() {
  TrimTo(BlockCount{0});
  if (ahead_) space_->EndAhead(this);
}

void SpaceReservation::TrimTo(BlockCount keep) {
  if (held_ <= keep) return;
  space_->GiveBack(held_ - keep);
  held_ = keep;
}

void SpaceReservation::Absorb(SpaceReservation& other) {
  if (other.held_.value == 0) return;
  WEIGHTFS_ASSERT(space_ == nullptr || space_ == other.space_);
  space_ = other.space_;
  held_ += std::exchange(other.held_, {});
}

Result<std::unique_ptr<SpaceManager>> SpaceManager::Create(const std::vector<BlockRun>& spaces) {
  std::unique_ptr<SpaceManager> space(new SpaceManager(spaces.size()));
  for (const BlockRun& run : spaces) {
    ASSIGN_OR_RETURN(auto allocator, ExtentAllocator::Create({.space = run}));
    space->allocators_.push_back(std::move(allocator));
    space->total_ += run.count;
  }
  {
    MutexLock lock(space->mutex_);
    space->free_ = space->total_.value;
  }
  space->held_back_ = {std::min(space->total_.value / 100, 64 * kMiB / kBlockSize)};
  return space;
}

Result<void> SpaceManager::MarkUsed(const DeviceRun& run) {
  if (run.device.value >= allocators_.size()) return ErrorCode::kCorrupt;
  RETURN_IF_ERROR(allocators_[run.device.value]->MarkUsed(run.run));
  used_ += static_cast<int64_t>(run.run.count.value);
  MutexLock lock(mutex_);
  free_ -= run.run.count.value;
  return {};
}

bool SpaceManager::WouldFit(BlockCount count, BlockCount freed, bool privileged) const {
  MutexLock lock(mutex_);
  return FitsLocked(count, retired_.waiting() + freed, privileged);
}

template <typename Operation>
void SpaceManager::InSteps(const std::vector<DeviceRun>& runs, Operation operation) const {
  for (size_t at = 0; at < runs.size(); at += kRunsAtOnce) {
    const std::span<const DeviceRun> step = std::span(runs).subspan(at, std::min(kRunsAtOnce, runs.size() - at));
    MutexLock lock(mutex_);
    operation(step);
  }
}

BlockCount SpaceManager::Unpinned(const std::vector<DeviceRun>& runs) const {
  BlockCount count;
  InSteps(runs, [&](std::span<const DeviceRun> step) REQUIRES(mutex_) {
    for (const DeviceRun& run : step) count += run.run.count - pins_.PinnedIn(run);
  });
  return count;
}

void SpaceManager::ReserveLocked(SpaceReservation* reservation, BlockCount count) {
  reserved_ += count.value;
  reservation->space_ = this;
  reservation->held_ += count;
}

Result<void> SpaceManager::Reserve(SpaceReservation* reservation, BlockCount count, bool privileged) {
  return ReserveBeside(reservation, count, privileged ? BlockCount{} : held_back_);
}

Result<void> SpaceManager::ReserveForLog(SpaceReservation* reservation, BlockCount count) {
  return ReserveBeside(reservation, count, BlockCount{held_back_.value / 8});
}

// Leaves `others` blocks.
Result<void> SpaceManager::ReserveBeside(SpaceReservation* reservation, BlockCount count, BlockCount others) {
  MutexLock lock(mutex_);
  if (!FitsBesideLocked(count, {}, others)) FreeRetiredLocked(lock);
  if (!FitsBesideLocked(count, {}, others)) return ErrorCode::kNoSpace;
  ReserveLocked(reservation, count);
  return {};
}

// What other reservations of this kind will free is counted nowhere, so two that are granted are always backed.
Result<void> SpaceManager::ReserveAhead(SpaceReservation* reservation, BlockCount count, BlockCount freed) {
  MutexLock lock(mutex_);
  if (!FitsLocked(count, freed, false)) {
    const bool comes = reserved_ > free_ || FitsLocked(count, freed + retired_.waiting(), false);
    return comes ? ErrorCode::kAgain : ErrorCode::kNoSpace;
  }
  ReserveLocked(reservation, count);
  reservation->ahead_ = true;
  ++ahead_;
  return {};
}

void SpaceManager::EndAhead(SpaceReservation* reservation) {
  MutexLock lock(mutex_);
  reservation->ahead_ = false;
  --ahead_;
  freed_.notify_all();
}

Result<void> SpaceManager::WaitUntilBacked(SpaceReservation* reservation) {
  const bool ahead = reservation->ahead_;
  if (ahead) EndAhead(reservation);
  MutexLock lock(mutex_);
  WaitForFreedLocked(lock, kForever, [&]() REQUIRES(mutex_) {
    return reserved_ <= free_ || (ahead && ahead_ == 0 && retired_.waiting().value == 0);
  });
  if (reserved_ <= free_) return {};
  return Error{ErrorCode::kIo, "the content of the file could not be dropped, for whose space it is written"};
}

void SpaceManager::GiveBack(BlockCount count) {
  MutexLock lock(mutex_);
  WEIGHTFS_ASSERT(count.value <= reserved_);
  const bool was_backed = reserved_ <= free_;
  reserved_ -= count.value;
  if (!was_backed) freed_.notify_all();
}

// Returns a run of at most `count` blocks on `device`: from the file's preallocation, from a new preallocation for a
// stream, or from a plain allocation.
Result<BlockRun> SpaceManager::TakeRunLocked(const Request& request, DeviceId device, BlockCount count) {
  ExtentAllocator& allocator = *allocators_[device.value];
  std::optional<DeviceBlock> after;
  if (request.after && request.after->device == device) after = request.after->run.end();
  const auto found = preallocations_.find({request.ino, device});
  Preallocation* preallocation = found == preallocations_.end() ? nullptr : &found->second;
  if (preallocation != nullptr && preallocation->rest.count.value > 0) {
    const BlockCount step = std::min(count, preallocation->rest.count);
    const BlockRun run{preallocation->rest.start, step};
    preallocation->rest = {run.end(), preallocation->rest.count - step};
    return run;
  }
  if (preallocation != nullptr && !after) after = preallocation->rest.start;
  ExtentAllocator::Request wanted{.count = count,
                                  .after = after,
                                  .aligned = count >= kAlignedRun || request.stream,
                                  .group_hint = static_cast<unsigned>(request.ino.value)};
  BlockCount size = preallocation != nullptr ? preallocation->next_size : kFirstPreallocation;
  if (request.stream) {
    if (request.expected > 0) size = std::clamp(BlockCount{request.expected}, size, kLargestPreallocation);
    // A preallocation may use only blocks that are not reserved.
    const uint64_t spare = free_ > reserved_ ? free_ - reserved_ : 0;
    wanted.count = std::max(count, std::min(size, BlockCount{spare / 4}));
  }
  ASSIGN_OR_RETURN(const BlockRun run, allocator.Allocate(wanted));
  WEIGHTFS_ASSERT(run.count.value <= free_);
  free_ -= run.count.value;
  const BlockCount step = std::min(count, run.count);
  if (request.stream) {
    preallocations_[{request.ino, device}] = {.rest = {run.start + step, run.count - step},
                                              .next_size = std::min(BlockCount{size.value * 2}, kLargestPreallocation)};
  }
  return BlockRun{run.start, step};
}

Result<std::vector<DeviceRun>> SpaceManager::Allocate(const Request& request, SpaceReservation* reservation) {
  std::vector<DeviceRun> runs;
  Request step = request;
  const size_t devices = allocators_.size();
  {
    MutexLock lock(mutex_);
    FreeRetiredLocked(lock);
    while (step.count.value > 0) {
      const uint64_t stripe = step.first.value / kStripeBlocks;
      BlockCount count = step.count;
      if (devices > 1) count = std::min(count, BlockCount{(stripe + 1) * kStripeBlocks - step.first.value});
      Result<BlockRun> run = ErrorCode::kNoSpace;
      DeviceId device;
      for (size_t attempt = 0; attempt < devices && !run; ++attempt) {
        device.value = static_cast<uint16_t>((stripe + request.ino.value + attempt) % devices);
        run = TakeRunLocked(step, device, count);
      }
      if (!run) break;
      // Charge the reservation even if the blocks come from an earlier preallocation.
      const BlockCount paid = std::min(run->count, reservation->held_);
      reservation->held_ -= paid;
      reserved_ -= paid.value;
      runs.push_back({device, *run});
      step.first += run->count;
      step.count -= run->count;
      step.after = runs.back();
    }
  }
  if (step.count.value == 0) return runs;
  Free(runs);
  return ErrorCode::kNoSpace;
}

std::vector<DeviceRun> SpaceManager::TakePreallocationsLocked(Preallocations::iterator begin,
                                                              Preallocations::iterator end) {
  std::vector<DeviceRun> runs;
  for (auto file = begin; file != end; ++file) runs.push_back({file->first.second, file->second.rest});
  preallocations_.erase(begin, end);
  return runs;
}

void SpaceManager::ReleasePreallocation(InodeId ino) {
  std::vector<DeviceRun> runs;
  {
    MutexLock lock(mutex_);
    runs = TakePreallocationsLocked(preallocations_.lower_bound({ino, DeviceId{}}),
                                    preallocations_.upper_bound({ino, DeviceId{UINT16_MAX}}));
  }
  if (!runs.empty()) Free(runs);
}

void SpaceManager::ReleaseAllPreallocations() {
  std::vector<DeviceRun> runs;
  {
    MutexLock lock(mutex_);
    runs = TakePreallocationsLocked(preallocations_.begin(), preallocations_.end());
  }
  Free(runs);
}

// Returns how many blocks the allocators can provide from now on. Only then may they count as free, because reserved
// blocks may be allocated at any time.
uint64_t SpaceManager::ReturnToAllocators(const std::vector<DeviceRun>& runs) {
  uint64_t freed = 0;
  for (const DeviceRun& run : runs) {
    if (allocators_[run.device.value]->Free(run.run)) {
      freed += run.run.count.value;
      continue;
    }
    spdlog::critical("device {}: blocks {}+{} were freed twice; they stay allocated until the next mount",
                     run.device.value, run.run.start.value, run.run.count.value);
  }
  return freed;
}

void SpaceManager::Free(const std::vector<DeviceRun>& runs) {
  const uint64_t freed = ReturnToAllocators(runs);
  MutexLock lock(mutex_);
  free_ += freed;
  freed_.notify_all();
}

uint64_t SpaceManager::EnterRead() {
  MutexLock lock(mutex_);
  return retired_.EnterRead();
}

// Freeing the runs of large files takes long, so it is not left to a thread that reads.
void SpaceManager::LeaveRead(uint64_t epoch) {
  MutexLock lock(mutex_);
  retired_.LeaveRead(epoch);
  if (retired_.HasReady()) freed_.notify_all();
}

void SpaceManager::Retire(const std::vector<DeviceRun>& runs) {
  if (runs.empty()) return;
  InSteps(runs, [this](std::span<const DeviceRun> step) REQUIRES(mutex_) {
    std::vector<DeviceRun> unpinned;
    const BlockCount parked = pins_.parked();
    for (const DeviceRun& run : step) pins_.Park(run, &unpinned);
    used_ += static_cast<int64_t>((pins_.parked() - parked).value);
    retired_.Add(std::move(unpinned));
  });
  MutexLock lock(mutex_);
  FreeRetiredLocked(lock);
}

void SpaceManager::WaitForRetired(BlockCount count, BlockCount freed, bool privileged,
                                  std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(mutex_);
  WaitForFreedLocked(lock, deadline, [&]() REQUIRES(mutex_) {
    const bool is_backed = reserved_ <= free_;
    return FitsLocked(count, freed, privileged) ||
           (is_backed && !FitsLocked(count, freed + retired_.waiting(), privileged));
  });
}

template <typename Condition>
void SpaceManager::WaitForFreedLocked(MutexLock& lock, std::chrono::steady_clock::time_point deadline,
                                      Condition condition) {
  do {
    FreeRetiredLocked(lock);
  } while (!condition() && freed_.wait_until(lock.native(), deadline) == std::cv_status::no_timeout);
}

void SpaceManager::FreeRetiredLocked(MutexLock& lock) {
  while (const auto runs = retired_.TakeReady()) {
    lock.Unlock();
    const uint64_t freed = ReturnToAllocators(*runs);
    lock.Lock();
    free_ += freed;
    retired_.Freed(BlocksOf(*runs));
    freed_.notify_all();
  }
}

SpacePin SpaceManager::Pin(std::vector<DeviceRun> runs) {
  SpacePin pin;
  pin.space_ = this;
  pin.runs_ = std::move(runs);
  InSteps(pin.runs_, [this](std::span<const DeviceRun> step) REQUIRES(mutex_) {
    for (const DeviceRun& run : step) pins_.Add(run);
  });
  return pin;
}

void SpaceManager::Unpin(const std::vector<DeviceRun>& runs) {
  InSteps(runs, [this](std::span<const DeviceRun> step) REQUIRES(mutex_) {
    std::vector<DeviceRun> unpinned;
    const BlockCount parked = pins_.parked();
    for (const DeviceRun& run : step) pins_.Remove(run, &unpinned);
    used_ -= static_cast<int64_t>((parked - pins_.parked()).value);
    retired_.Add(std::move(unpinned));
  });
  MutexLock lock(mutex_);
  FreeRetiredLocked(lock);
}

BlockCount SpaceManager::waiting() const {
  MutexLock lock(mutex_);
  return retired_.waiting();
}

BlockCount SpaceManager::pinned() const {
  MutexLock lock(mutex_);
  return pins_.pinned();
}

SpacePin::~SpacePin() {
  if (!runs_.empty()) space_->Unpin(runs_);
}

void SpacePin::Join(SpacePin other) {
  if (other.runs_.empty()) return;
  space_ = other.space_;
  auto taken = std::exchange(other.runs_, {});
  runs_.insert(runs_.end(), taken.begin(), taken.end());
}

Result<BlockReservation> SpaceManager::ReserveBlocks(const Request& request, SpaceReservation* reservation) {
  BlockReservation grant;
  grant.space_ = this;
  ASSIGN_OR_RETURN(grant.runs_, Allocate(request, reservation));
  granted_ += request.count.value;
  AddUsed(static_cast<int64_t>(request.count.value));
  return grant;
}

BlockReservation::~BlockReservation() {
  if (!runs_.empty()) space_->Leave({writer_, std::move(runs_)});
}

// A holder may be gone while one of its writes is still in flight. That write must not overwrite another file's data.
void SpaceManager::Leave(OrphanedReservation orphaned) {
  if (TryFree(orphaned)) return;
  MutexLock lock(mutex_);
  orphaned_.push_back(std::move(orphaned));
}

bool SpaceManager::TryFree(const OrphanedReservation& orphaned) {
  if (orphaned.writer != 0 && has_writer_ && has_writer_(orphaned.writer)) return false;
  const BlockCount count = BlocksOf(orphaned.runs);
  granted_ -= count.value;
  AddUsed(-static_cast<int64_t>(count.value));
  Free(orphaned.runs);
  return true;
}

bool SpaceManager::CollectOrphanedReservations() {
  MutexLock collecting(collecting_);  // otherwise a concurrent call would miss the reservations under examination
  std::vector<OrphanedReservation> left;
  {
    MutexLock lock(mutex_);
    left.swap(orphaned_);
  }
  std::erase_if(left, [this](const OrphanedReservation& orphaned) { return TryFree(orphaned); });
  if (left.empty()) return false;
  MutexLock lock(mutex_);
  std::move(left.begin(), left.end(), std::back_inserter(orphaned_));
  return true;
}

BlockCount BlockReservation::count() const { return BlocksOf(runs_); }

std::vector<DeviceRun> BlockReservation::Take(BlockCount count) {
  std::vector<DeviceRun> taken;
  if (space_ == nullptr) return taken;
  space_->granted_ -= count.value;
  space_->AddUsed(-static_cast<int64_t>(count.value));
  size_t whole = 0;
  while (count.value > 0) {
    DeviceRun& run = runs_[whole];
    const BlockCount step = std::min(count, run.run.count);
    taken.push_back({run.device, {run.run.start, step}});
    run.run = {run.run.start + step, run.run.count - step};
    if (run.run.count.value == 0) ++whole;
    count -= step;
  }
  runs_.erase(runs_.begin(), runs_.begin() + static_cast<ptrdiff_t>(whole));
  return taken;
}

SpaceStatistics SpaceManager::Statistics() const {
  // Repeat if a file was deleted between the reads, because it would count twice.
  int64_t leaving, used;
  uint64_t reserved;
  do {
    leaving = leaving_.load();
    used = std::max<int64_t>(0, used_.load());
    MutexLock lock(mutex_);
    reserved = reserved_;
  } while (leaving_.load() != leaving);
  uint64_t taken = static_cast<uint64_t>(used) + reserved;
  taken -= std::min(taken, static_cast<uint64_t>(std::max<int64_t>(0, leaving)));
  SpaceStatistics statistics;
  statistics.total = total_;
  statistics.free = {total_.value > taken ? total_.value - taken : 0};
  statistics.available = {statistics.free > held_back_ ? statistics.free.value - held_back_.value : 0};
  return statistics;
}

}  // namespace weightfs

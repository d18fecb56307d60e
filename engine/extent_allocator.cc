// SPDX-License-Identifier: Apache-2.0
#include "engine/extent_allocator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <limits>
#include <span>

#include "common/mutex.h"
#include "engine/free_extent_tree.h"

namespace weightfs {
namespace {

constexpr uint64_t kMaxGroups = 64;
constexpr uint64_t kMaxGroupBlocks = std::numeric_limits<uint32_t>::max();
// The minimum size of groups chosen by us. A group boundary ends a run.
constexpr uint64_t kMinGroupBlocks = 4 * kGiB / kBlockSize;
// Maximum number of searches per Allocate. A search may miss space that is freed meanwhile.
constexpr int kMaxSearches = 16;

// The allocation strategies, in order of increasing fragmentation.
enum class Strategy {
  kAlignedClass,  // a free extent of the request's size class
  kAlignedSplit,  // split a larger free extent
  kAlignedPart,   // fewer blocks than requested
  kSlack,         // a small free extent, or the unaligned end of a large one
  kPlainSplit,    // split a large free extent
  kPlainPart,     // fewer blocks than requested
};
constexpr std::array kAlignedOrder{Strategy::kAlignedClass, Strategy::kAlignedSplit, Strategy::kAlignedPart,
                                   Strategy::kSlack,        Strategy::kPlainSplit,   Strategy::kPlainPart};
constexpr std::span kPlainOrder = std::span(kAlignedOrder).subspan(3);

// A request in units of a group.
struct Demand {
  uint32_t count;
  uint32_t minimum;
  bool aligned;
};

// One allocation group. It publishes a summary of its tree, so that other threads can skip it without taking the lock.
// A stale summary costs a useless visit, or hides space that Allocate finds in a later search.
class alignas(64) Group {
 public:
  Group(uint32_t alignment, FreeExtent space) : alignment_(alignment), tree_(alignment) { AddLocked(space); }

  Mutex& mutex() { return mutex_; }
  const FreeExtentTree& tree() const REQUIRES(mutex_) { return tree_; }

  // Add or remove blocks. They return false, and change nothing, when a block was already free, or was not free.
  bool AddLocked(FreeExtent extent) REQUIRES(mutex_) {
    const bool added = tree_.Add(extent);
    if (added) free_ += BlockCount{extent.length};
    PublishLocked();
    return added;
  }
  bool RemoveLocked(FreeExtent extent) REQUIRES(mutex_) {
    const bool removed = tree_.Remove(extent);
    if (removed) free_ -= BlockCount{extent.length};
    PublishLocked();
    return removed;
  }

  // The run length that the group offers for `strategy`; 0 when it cannot serve the request. Takes no lock.
  uint32_t Offer(Strategy strategy, const Demand& demand, uint32_t class_bit) const;

  // Allocates a run with `strategy`. Without `wait`, returns nothing if another thread holds the group's lock.
  std::optional<FreeExtent> Take(Strategy strategy, const Demand& demand, bool wait) EXCLUDES(mutex_);

  // Allocates the run that begins at `offset`, if it satisfies the request.
  std::optional<FreeExtent> TakeFrom(uint32_t offset, const Demand& demand) EXCLUDES(mutex_);

  void AddTo(ExtentAllocator::Statistics& total) EXCLUDES(mutex_);

 private:
  void PublishLocked() REQUIRES(mutex_) {
    const FreeExtentTree::Summary now = tree_.summary();
    if (now == last_published_) return;
    last_published_ = now;
    longest_.store(now.longest, std::memory_order_relaxed);
    longest_aligned_.store(now.longest_aligned, std::memory_order_relaxed);
    longest_slack_.store(now.longest_slack, std::memory_order_relaxed);
    classes_.store(now.classes, std::memory_order_relaxed);
  }

  std::optional<FreeExtent> ChooseLocked(Strategy strategy, const Demand& demand) const REQUIRES(mutex_);
  FreeExtent CutPlain(FreeExtent chunk, uint32_t count) const;
  uint32_t LeastAligned(const Demand& demand) const {
    return std::max(demand.minimum, std::min(demand.count, alignment_));
  }

  const uint32_t alignment_;
  Mutex mutex_;
  FreeExtentTree tree_ GUARDED_BY(mutex_);
  BlockCount free_ GUARDED_BY(mutex_);
  FreeExtentTree::Summary last_published_ GUARDED_BY(mutex_);

  alignas(64) std::atomic<uint32_t> longest_{0};
  std::atomic<uint32_t> longest_aligned_{0};
  std::atomic<uint32_t> longest_slack_{0};
  std::atomic<uint32_t> classes_{0};
};

uint32_t Group::Offer(Strategy strategy, const Demand& demand, uint32_t class_bit) const {
  const auto at_least = [](const std::atomic<uint32_t>& length, uint32_t needed) {
    const uint32_t offered = length.load(std::memory_order_relaxed);
    return offered >= needed ? offered : 0;
  };
  switch (strategy) {
    case Strategy::kAlignedClass:
      if ((classes_.load(std::memory_order_relaxed) & class_bit) == 0) return 0;
      return at_least(longest_aligned_, demand.count);
    case Strategy::kAlignedSplit: return at_least(longest_aligned_, demand.count);
    case Strategy::kAlignedPart: return at_least(longest_aligned_, LeastAligned(demand));
    case Strategy::kSlack: return at_least(longest_slack_, demand.count);
    case Strategy::kPlainSplit: return at_least(longest_, demand.count);
    case Strategy::kPlainPart: return at_least(longest_, demand.minimum);
  }
  return 0;
}

// Small runs come from the unaligned ends of a free extent. If an aligned unit must be broken, it is the last one,
// because a file may be growing into the first one.
FreeExtent Group::CutPlain(FreeExtent chunk, uint32_t count) const {
  const uint32_t head = (0 - chunk.start) & (alignment_ - 1);
  const uint32_t tail = chunk.end() & (alignment_ - 1);
  const bool small = chunk.length < head + alignment_;
  if (small || count >= alignment_ || (tail < count && head >= count)) return {chunk.start, count};
  return {chunk.end() - count, count};
}

std::optional<FreeExtent> Group::ChooseLocked(Strategy strategy, const Demand& demand) const {
  std::optional<FreeExtent> chunk;
  switch (strategy) {
    case Strategy::kAlignedClass:
    case Strategy::kAlignedSplit:
      chunk = tree_.FindAligned(demand.count, strategy == Strategy::kAlignedClass);
      if (!chunk) return std::nullopt;
      return FreeExtent{tree_.AlignUp(chunk->start), demand.count};
    case Strategy::kAlignedPart: {
      const uint32_t count = std::min(demand.count, tree_.summary().longest_aligned);
      if (count < LeastAligned(demand)) return std::nullopt;
      return FreeExtent{tree_.AlignUp(tree_.FindAligned(count, false)->start), count};
    }
    case Strategy::kSlack:
      chunk = tree_.FindSlack(demand.count);
      if (!chunk) return std::nullopt;
      return CutPlain(*chunk, demand.count);
    case Strategy::kPlainSplit:
    case Strategy::kPlainPart: {
      const uint32_t count = std::min(demand.count, tree_.summary().longest);
      if (count < (strategy == Strategy::kPlainPart ? demand.minimum : demand.count)) return std::nullopt;
      return CutPlain(*tree_.FindPlain(count), count);
    }
  }
  return std::nullopt;
}

// The analysis cannot follow a lock that may fail.
std::optional<FreeExtent> Group::Take(Strategy strategy, const Demand& demand, bool wait) NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<std::mutex> lock(mutex_.native(), std::defer_lock);
  if (wait)
    lock.lock();
  else if (!lock.try_lock())
    return std::nullopt;
  const auto run = ChooseLocked(strategy, demand);
  if (run) RemoveLocked(*run);
  return run;
}

std::optional<FreeExtent> Group::TakeFrom(uint32_t offset, const Demand& demand) {
  MutexLock lock(mutex_);
  auto run = tree_.From(offset);
  if (!run) return std::nullopt;
  if (run->length >= demand.count) {
    run->length = demand.count;
  } else if (demand.aligned) {
    // The next run will begin on an alignment boundary, so file and device offsets stay aligned with each other.
    const uint32_t end = run->end() & ~(alignment_ - 1);
    run->length = end > offset ? end - offset : 0;
  }
  if (run->length < demand.minimum) return std::nullopt;
  RemoveLocked(*run);
  return run;
}

void Group::AddTo(ExtentAllocator::Statistics& total) {
  MutexLock lock(mutex_);
  total.free += free_;
  total.free_extents += tree_.size();
  total.largest_free = std::max(total.largest_free, BlockCount{tree_.summary().longest});
  total.memory += {sizeof(Group) - sizeof(FreeExtentTree) + tree_.memory()};
}

class GroupedExtentAllocator final : public ExtentAllocator {
 public:
  GroupedExtentAllocator(const Options& options, uint64_t group_blocks, uint64_t group_count);

  Result<BlockRun> Allocate(const Request& request) override;
  Result<void> MarkUsed(BlockRun run) override;
  Result<void> Free(BlockRun run) override;
  Statistics statistics() const override;

 private:
  // Holds the locks of all groups that a run touches.
  class RangeLock;

  uint64_t GroupOf(DeviceBlock block) const { return (block.value - base_) / group_blocks_; }
  uint64_t GroupStart(uint64_t group) const { return base_ + group * group_blocks_; }
  BlockRun ToRun(uint64_t group, FreeExtent extent) const {
    return {{GroupStart(group) + extent.start}, {extent.length}};
  }
  bool InSpace(BlockRun run) const {
    return run.start >= space_.start && run.count <= space_.count &&
           run.start - space_.start <= space_.count - run.count;
  }
  // The part of `run` inside `group`.
  FreeExtent PartIn(uint64_t group, BlockRun run) const;

  // Changes all blocks of the run, if `may` is true of all of them, or none.
  bool ChangeAll(BlockRun run, bool (FreeExtentTree::*may)(FreeExtent) const, bool (Group::*change)(FreeExtent));

  std::optional<BlockRun> Continue(DeviceBlock after, const Demand& demand);
  std::optional<BlockRun> Search(const Demand& demand, uint64_t home);
  std::optional<BlockRun> TakeFirst(Strategy strategy, const Demand& demand, uint64_t home);
  std::optional<BlockRun> TakeLongest(Strategy strategy, const Demand& demand, uint64_t home);

  const BlockRun space_;
  const uint64_t alignment_;
  const uint64_t base_;          // start of the first group: the space's start rounded down, so that
                                 // an aligned offset in a group is an aligned block
  const uint64_t group_blocks_;  // a multiple of the alignment
  std::vector<std::unique_ptr<Group>> groups_;
  // The number of completed Free calls; incremented after their blocks are published.
  alignas(64) std::atomic<uint64_t> frees_{0};
};

class GroupedExtentAllocator::RangeLock {
 public:
  // The analysis cannot follow a set of locks that is known only at run time.
  RangeLock(GroupedExtentAllocator& allocator, uint64_t first, uint64_t last) NO_THREAD_SAFETY_ANALYSIS
      : groups_(std::span(allocator.groups_).subspan(first, last - first + 1)) {
    for (auto& group : groups_) group->mutex().lock();
  }
  ~RangeLock() NO_THREAD_SAFETY_ANALYSIS {
    for (auto& group : groups_) group->mutex().unlock();
  }
  RangeLock(const RangeLock&) = delete;
  RangeLock& operator=(const RangeLock&) = delete;

 private:
  std::span<std::unique_ptr<Group>> groups_;
};

GroupedExtentAllocator::GroupedExtentAllocator(const Options& options, uint64_t group_blocks, uint64_t group_count)
    : space_(options.space),
      alignment_(options.alignment.value),
      base_(RoundDown(options.space.start.value, options.alignment.value)),
      group_blocks_(group_blocks) {
  groups_.reserve(group_count);
  for (uint64_t i = 0; i < group_count; ++i) {
    groups_.push_back(std::make_unique<Group>(static_cast<uint32_t>(alignment_), PartIn(i, space_)));
  }
}

FreeExtent GroupedExtentAllocator::PartIn(uint64_t group, BlockRun run) const {
  const uint64_t start = std::max(run.start.value, GroupStart(group));
  const uint64_t end = std::min(run.end().value, GroupStart(group) + group_blocks_);
  return {static_cast<uint32_t>(start - GroupStart(group)), static_cast<uint32_t>(end - start)};
}

Result<BlockRun> GroupedExtentAllocator::Allocate(const Request& request) {
  if (request.count.value == 0 || request.minimum > request.count) return ErrorCode::kInvalid;
  if (request.minimum.value > group_blocks_) return ErrorCode::kNoSpace;
  const Demand demand{static_cast<uint32_t>(std::min(request.count.value, group_blocks_)),
                      static_cast<uint32_t>(std::max<uint64_t>(request.minimum.value, 1)), request.aligned};
  if (request.after && InSpace({*request.after, {1}}))
    if (const auto run = Continue(*request.after, demand)) return *run;
  for (int i = 0; i < kMaxSearches; ++i) {
    const uint64_t frees_before = frees_.load(std::memory_order_acquire);
    if (const auto run = Search(demand, request.group_hint % groups_.size())) return *run;
    // The search may have missed blocks that were freed in a group after it had passed that group.
    if (frees_.load(std::memory_order_acquire) == frees_before) break;
  }
  return ErrorCode::kNoSpace;
}

std::optional<BlockRun> GroupedExtentAllocator::Continue(DeviceBlock after, const Demand& demand) {
  const uint64_t group = GroupOf(after);
  const auto run = groups_[group]->TakeFrom(static_cast<uint32_t>(after.value - GroupStart(group)), demand);
  if (!run) return std::nullopt;
  return ToRun(group, *run);
}

// A free extent of the right class in another group is better than splitting a larger one in the home group.
std::optional<BlockRun> GroupedExtentAllocator::Search(const Demand& demand, uint64_t home) {
  for (const Strategy strategy : demand.aligned ? std::span<const Strategy>(kAlignedOrder) : kPlainOrder) {
    const bool part = strategy == Strategy::kAlignedPart || strategy == Strategy::kPlainPart;
    const auto run = part ? TakeLongest(strategy, demand, home) : TakeFirst(strategy, demand, home);
    if (run) return run;
  }
  return std::nullopt;
}

std::optional<BlockRun> GroupedExtentAllocator::TakeFirst(Strategy strategy, const Demand& demand, uint64_t home) {
  const uint32_t class_bit = FreeExtentTree::AlignedClassBit(demand.count, static_cast<uint32_t>(alignment_));
  // Using another group is better than waiting for a busy one.
  for (const bool wait : {false, true}) {
    for (uint64_t i = 0; i < groups_.size(); ++i) {
      const uint64_t index = (home + i) % groups_.size();
      Group& group = *groups_[index];
      if (group.Offer(strategy, demand, class_bit) == 0) continue;
      if (const auto run = group.Take(strategy, demand, wait)) return ToRun(index, *run);
    }
  }
  return std::nullopt;
}

// The group with the longest run may lose it to another thread before it is locked. Trying as often as there are groups
// is enough to find the longest remaining run.
std::optional<BlockRun> GroupedExtentAllocator::TakeLongest(Strategy strategy, const Demand& demand, uint64_t home) {
  for (size_t tries = 0; tries <= groups_.size(); ++tries) {
    uint64_t best = 0;
    uint32_t best_length = 0;
    for (uint64_t i = 0; i < groups_.size(); ++i) {
      const uint64_t index = (home + i) % groups_.size();
      const uint32_t length = groups_[index]->Offer(strategy, demand, 0);
      if (length > best_length) {
        best = index;
        best_length = length;
      }
    }
    if (best_length == 0) return std::nullopt;
    if (const auto run = groups_[best]->Take(strategy, demand, true)) return ToRun(best, *run);
  }
  return std::nullopt;
}

bool GroupedExtentAllocator::ChangeAll(BlockRun run, bool (FreeExtentTree::*may)(FreeExtent) const,
                                       bool (Group::*change)(FreeExtent)) NO_THREAD_SAFETY_ANALYSIS {
  const uint64_t first = GroupOf(run.start), last = GroupOf(run.end() - BlockCount{1});
  const RangeLock lock(*this, first, last);
  if (first == last) return (*groups_[first].*change)(PartIn(first, run));
  for (uint64_t i = first; i <= last; ++i)
    if (!(groups_[i]->tree().*may)(PartIn(i, run))) return false;
  for (uint64_t i = first; i <= last; ++i) (*groups_[i].*change)(PartIn(i, run));
  return true;
}

Result<void> GroupedExtentAllocator::MarkUsed(BlockRun run) {
  if (run.count.value == 0) return {};
  if (!InSpace(run))
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{} blocks from {} on lie outside the device's space of {} blocks from {} on",
                             run.count.value, run.start.value, space_.count.value, space_.start.value)};
  if (!ChangeAll(run, &FreeExtentTree::AllFree, &Group::RemoveLocked))
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{} blocks from {} on are in part claimed already", run.count.value, run.start.value)};
  return {};
}

Result<void> GroupedExtentAllocator::Free(BlockRun run) {
  if (run.count.value == 0) return {};
  if (!InSpace(run))
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{} freed blocks from {} on lie outside the space", run.count.value, run.start.value)};
  if (!ChangeAll(run, &FreeExtentTree::NoneFree, &Group::AddLocked)) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{} freed blocks from {} on are in part free already", run.count.value, run.start.value)};
  }
  frees_.fetch_add(1, std::memory_order_release);
  return {};
}

ExtentAllocator::Statistics GroupedExtentAllocator::statistics() const {
  Statistics total{};
  total.memory = {sizeof(*this) + groups_.capacity() * sizeof(groups_[0])};
  for (const auto& group : groups_) group->AddTo(total);
  return total;
}

Result<uint64_t> GroupBlocks(const ExtentAllocator::Options& options) {
  const uint64_t start = options.space.start.value, count = options.space.count.value;
  const uint64_t alignment = options.alignment.value;
  if (!std::has_single_bit(alignment) || alignment > FreeExtentTree::kMaxAlignment)
    return Error{ErrorCode::kInvalid, fmt::format("the allocator cannot align to {} blocks", alignment)};
  // Leaves room above the end for rounding up to whole groups.
  if (count == 0 || count > kMaxGroups * kMaxGroupBlocks || start > std::numeric_limits<uint64_t>::max() / 2)
    return Error{ErrorCode::kInvalid, fmt::format("a device of {} blocks cannot be allocated from", count)};
  if (options.groups > kMaxGroups)
    return Error{ErrorCode::kInvalid, fmt::format("{} allocation groups are more than {}", options.groups, kMaxGroups)};
  const uint64_t total = count + start % alignment;
  const uint64_t groups =
      options.groups != 0 ? options.groups : std::clamp<uint64_t>(total / kMinGroupBlocks, 1, kMaxGroups);
  const uint64_t group_blocks = RoundUp((total + groups - 1) / groups, alignment);
  if (group_blocks > kMaxGroupBlocks)
    return Error{ErrorCode::kInvalid, fmt::format("{} allocation groups are too few for {} blocks", groups, count)};
  return group_blocks;
}

}  // namespace

Result<std::unique_ptr<ExtentAllocator>> ExtentAllocator::Create(const Options& options) {
  ASSIGN_OR_RETURN(const uint64_t group_blocks, GroupBlocks(options));
  const uint64_t total = options.space.count.value + options.space.start.value % options.alignment.value;
  const uint64_t group_count = (total + group_blocks - 1) / group_blocks;
  return std::unique_ptr<ExtentAllocator>(std::make_unique<GroupedExtentAllocator>(options, group_blocks, group_count));
}

}  // namespace weightfs

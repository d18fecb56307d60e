// SPDX-License-Identifier: Apache-2.0
// Compares the allocator with a bitmap under random operations. A failure prints its seed; set WEIGHTFS_SEED to repeat
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/extent_allocator.h"
#include "tests/support/seeds.h"

namespace weightfs {
namespace {

// A bitmap of free blocks. Every query scans all of it.
class Model {
 public:
  Model(BlockRun space, uint64_t alignment, uint64_t group_blocks)
      : space_(space), alignment_(alignment), group_blocks_(group_blocks), free_(space.count.value, true) {}

  bool InSpace(BlockRun run) const { return run.start >= space_.start && run.end() <= space_.end(); }
  bool All(BlockRun run, bool free) const {
    for (uint64_t b = run.start.value; b < run.end().value; ++b)
      if (free_[b - space_.start.value] != free) return false;
    return true;
  }
  void Set(BlockRun run, bool free) {
    for (uint64_t b = run.start.value; b < run.end().value; ++b) free_[b - space_.start.value] = free;
  }
  bool IsFree(uint64_t block) const { return free_[block - space_.start.value]; }
  uint64_t free_blocks() const { return static_cast<uint64_t>(std::count(free_.begin(), free_.end(), true)); }

  // The free extents, split at group boundaries.
  std::vector<BlockRun> FreeExtents() const {
    std::vector<BlockRun> extents;
    for (uint64_t b = space_.start.value; b < space_.end().value; ++b) {
      if (!IsFree(b)) continue;
      const bool goes_on = !extents.empty() && extents.back().end().value == b && GroupOf(b) == GroupOf(b - 1);
      if (goes_on)
        extents.back().count += BlockCount{1};
      else
        extents.push_back({{b}, {1}});
    }
    return extents;
  }
  uint64_t GroupOf(uint64_t block) const { return (block - RoundDown(space_.start.value, alignment_)) / group_blocks_; }
  uint64_t Longest(bool aligned) const {
    uint64_t longest = 0;
    for (const BlockRun extent : FreeExtents()) {
      const uint64_t start = aligned ? RoundUp(extent.start.value, alignment_) : extent.start.value;
      if (start < extent.end().value) longest = std::max(longest, extent.end().value - start);
    }
    return longest;
  }
  uint64_t FreeFrom(DeviceBlock start) const {
    uint64_t length = 0;
    for (uint64_t b = start.value; b < space_.end().value && IsFree(b) && GroupOf(b) == GroupOf(start.value); ++b)
      ++length;
    return length;
  }

 private:
  BlockRun space_;
  uint64_t alignment_;
  uint64_t group_blocks_;
  std::vector<bool> free_;
};

class Harness {
 public:
  explicit Harness(uint64_t seed)
      : random_(seed),
        alignment_(uint64_t{1} << Below(7)),
        space_{{Below(300)}, {200 + Below(1500)}},
        groups_(1 + static_cast<unsigned>(Below(5))),
        allocator_(Create()),
        model_(space_, alignment_, GroupBlocks()) {}

  bool ready() const { return allocator_ != nullptr; }

  void Step() {
    switch (Below(8)) {
      case 0: return MarkSomething();
      case 1:
      case 2:
      case 3: return FreeSomething();
      default: return AllocateSomething();
    }
  }

  void CheckAll() const {
    const auto extents = model_.FreeExtents();
    const auto statistics = allocator_->statistics();
    ASSERT_EQ(statistics.free.value, model_.free_blocks());
    ASSERT_EQ(statistics.free_extents, extents.size());
    ASSERT_EQ(statistics.largest_free.value, model_.Longest(false));
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  std::unique_ptr<ExtentAllocator> Create() {
    auto allocator = ExtentAllocator::Create({.space = space_, .alignment = {alignment_}, .groups = groups_});
    return allocator ? std::move(*allocator) : nullptr;
  }
  uint64_t GroupBlocks() const {
    const uint64_t total = space_.count.value + space_.start.value % alignment_;
    return RoundUp((total + groups_ - 1) / groups_, alignment_);
  }
  BlockRun AnyRun() {
    return {{space_.start.value - std::min<uint64_t>(space_.start.value, 3) + Below(space_.count.value + 6)},
            {1 + Below(Below(4) == 0 ? 400 : 20)}};
  }

  void MarkSomething() {
    const BlockRun run = AnyRun();
    const bool valid = model_.InSpace(run) && model_.All(run, true);
    const auto result = allocator_->MarkUsed(run);
    ASSERT_EQ(result.has_value(), valid);
    if (valid)
      model_.Set(run, false);
    else
      ASSERT_EQ(result.error().code, ErrorCode::kCorrupt);
  }

  void FreeSomething() {
    BlockRun run = AnyRun();
    // Most random runs would be refused, so half of the time a used run is chosen.
    if (Below(2) == 0 && model_.InSpace(run)) {
      while (run.count.value > 1 && !model_.All(run, false)) run.count -= BlockCount{1};
    }
    const bool valid = model_.InSpace(run) && model_.All(run, false);
    const auto result = allocator_->Free(run);
    ASSERT_EQ(result.has_value(), valid);
    if (valid)
      model_.Set(run, true);
    else
      ASSERT_EQ(result.error().code, ErrorCode::kCorrupt);
  }

  void AllocateSomething() {
    ExtentAllocator::Request request{.count = {1 + Below(Below(3) == 0 ? 600 : 40)},
                                     .aligned = Below(2) == 0,
                                     .group_hint = static_cast<unsigned>(random_())};
    if (Below(2) == 0) request.minimum = {1 + Below(request.count.value)};
    if (Below(3) == 0) request.after = DeviceBlock{space_.start.value + Below(space_.count.value)};
    const auto result = allocator_->Allocate(request);
    if (!result) {
      ASSERT_EQ(result.error().code, ErrorCode::kNoSpace);
      ASSERT_LT(model_.Longest(false), request.minimum.value);
      return;
    }
    ASSERT_TRUE(model_.InSpace(*result));
    ASSERT_TRUE(model_.All(*result, true));
    ASSERT_GE(result->count, request.minimum);
    ASSERT_LE(result->count, request.count);
    CheckChoice(request, *result);
    model_.Set(*result, false);
  }

  void CheckChoice(const ExtentAllocator::Request& request, BlockRun run) const {
    const uint64_t count = request.count.value, minimum = request.minimum.value;
    if (request.after) {
      uint64_t here = std::min(model_.FreeFrom(*request.after), count);
      if (request.aligned && here < count) {
        const uint64_t end = RoundDown(request.after->value + here, alignment_);
        here = end > request.after->value ? end - request.after->value : 0;
      }
      if (here >= minimum) {
        ASSERT_EQ(run, (BlockRun{*request.after, {here}}));
        return;
      }
    }
    const uint64_t longest_aligned = model_.Longest(true);
    if (request.aligned && longest_aligned >= std::max(minimum, std::min(count, alignment_))) {
      ASSERT_EQ(run.start.value % alignment_, 0u);
      ASSERT_EQ(run.count.value, std::min(count, longest_aligned));
      return;
    }
    ASSERT_EQ(run.count.value, std::min(count, model_.Longest(false)));
  }

  std::mt19937_64 random_;
  uint64_t alignment_;
  BlockRun space_;
  unsigned groups_;
  std::unique_ptr<ExtentAllocator> allocator_;
  Model model_;
};

TEST(ExtentAllocatorProperty, AgreesWithABitmap) {
  const uint64_t first_seed = FirstSeed();
  for (uint64_t seed = first_seed; seed != first_seed + 60; ++seed) {
    SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed));
    Harness harness(seed);
    ASSERT_TRUE(harness.ready());
    for (int step = 0; step < 600; ++step) {
      harness.Step();
      if (HasFatalFailure()) return;
      if (step % 10 == 0) harness.CheckAll();
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace weightfs

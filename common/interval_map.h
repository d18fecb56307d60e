// SPDX-License-Identifier: Apache-2.0
// A map from disjoint integer ranges to values: extents, dirty blocks, pins.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "common/assert.h"

namespace weightfs {

// Half-open ranges [begin, end) that never overlap, in order, each with a value. `Value` may have a member `void
// Advance(uint64_t distance)` that converts the value of a range to that of the part that begins `distance` later (for
// example, an extent's address). Without it, both parts of a split range have equal values. Not thread-safe. All
// operations take logarithmic time, plus the ranges that they visit.
template <typename Value>
class IntervalMap {
 public:
  struct Range {
    uint64_t end;
    Value value;
  };
  using Map = std::map<uint64_t, Range>;  // by begin
  using iterator = typename Map::iterator;
  using const_iterator = typename Map::const_iterator;

  bool empty() const { return ranges_.empty(); }
  size_t size() const { return ranges_.size(); }
  iterator begin() { return ranges_.begin(); }
  iterator end() { return ranges_.end(); }
  const_iterator begin() const { return ranges_.begin(); }
  const_iterator end() const { return ranges_.end(); }
  void Clear() { ranges_.clear(); }

  // The first range that ends after `position`: it contains `position` or begins after it.
  const_iterator FirstFrom(uint64_t position) const {
    auto next = ranges_.upper_bound(position);
    if (next != ranges_.begin() && std::prev(next)->second.end > position) --next;
    return next;
  }
  iterator FirstFrom(uint64_t position) {
    auto next = ranges_.upper_bound(position);
    if (next != ranges_.begin() && std::prev(next)->second.end > position) --next;
    return next;
  }
  // The first range that begins at or after `position`.
  iterator LowerBound(uint64_t position) { return ranges_.lower_bound(position); }

  // The range that contains `position`; end() when there is none.
  const_iterator Find(uint64_t position) const {
    const auto at = FirstFrom(position);
    return at != ranges_.end() && at->first <= position ? at : ranges_.end();
  }
  bool Overlaps(uint64_t begin, uint64_t end) const {
    const auto at = FirstFrom(begin);
    return at != ranges_.end() && at->first < end;
  }

  // Adds a range, which must not overlap another.
  iterator Insert(uint64_t begin, uint64_t end, Value value) {
    WEIGHTFS_ASSERT(begin < end);
    const auto next = ranges_.lower_bound(begin);
    WEIGHTFS_ASSERT(next == ranges_.end() || next->first >= end);
    WEIGHTFS_ASSERT(next == ranges_.begin() || std::prev(next)->second.end <= begin);
    return ranges_.emplace_hint(next, begin, Range{end, std::move(value)});
  }

  // Makes `position` a boundary. Returns the start of the range that was split there; nullopt when none was.
  std::optional<uint64_t> SplitAt(uint64_t position) {
    auto next = ranges_.upper_bound(position);
    if (next == ranges_.begin()) return std::nullopt;
    auto& [begin, range] = *std::prev(next);
    if (begin == position || range.end <= position) return std::nullopt;
    Range tail = range;
    if constexpr (requires { tail.value.Advance(uint64_t{}); }) tail.value.Advance(position - begin);
    range.end = position;
    ranges_.emplace_hint(next, position, std::move(tail));
    return begin;
  }

  iterator Erase(iterator at) { return ranges_.erase(at); }

  // Joins the range at `at` with each adjacent neighbor for which `joins(left, right)` of the two values is true. The
  // joined range keeps the value of its first part.
  template <typename Joins>
  void MergeAround(iterator at, const Joins& joins) {
    const auto merge = [&](iterator left, iterator right) {
      if (left->second.end != right->first || !joins(left->second.value, right->second.value)) return false;
      left->second.end = right->second.end;
      ranges_.erase(right);
      return true;
    };
    if (const auto next = std::next(at); next != ranges_.end()) merge(at, next);
    if (at != ranges_.begin()) merge(std::prev(at), at);
  }

 private:
  Map ranges_;
};

}  // namespace weightfs

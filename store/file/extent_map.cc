// SPDX-License-Identifier: Apache-2.0
#include "store/file/extent_map.h"

#include <algorithm>
#include <utility>

namespace weightfs {

bool ExtentMap::Load(FileBlock first, const ExtentRecord& record) {
  const auto next = extents_.lower_bound(first.value);
  if (next != extents_.end() && next->first < first.value + record.count.value) return false;
  if (next != extents_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.count.value > first.value) return false;
  }
  extents_.emplace_hint(next, first.value, record);
  mapped_ += record.count;
  return true;
}

ExtentMap::Piece ExtentMap::Lookup(FileBlock first, BlockCount limit) const {
  auto next = extents_.upper_bound(first.value);
  if (next != extents_.begin()) {
    const auto& [start, extent] = *std::prev(next);
    const uint64_t skip = first.value - start;
    if (skip < extent.count.value) {
      ExtentRecord part = extent;
      part.start += BlockCount{skip};
      part.count = std::min(BlockCount{extent.count.value - skip}, limit);
      return {first, part.count, part};
    }
  }
  const uint64_t gap = next == extents_.end() ? limit.value : next->first - first.value;
  return {first, std::min(BlockCount{gap}, limit), std::nullopt};
}

void ExtentMap::SplitAt(uint64_t block) {
  auto next = extents_.upper_bound(block);
  if (next == extents_.begin()) return;
  auto& [start, extent] = *std::prev(next);
  const uint64_t head = block - start;
  if (head == 0 || head >= extent.count.value) return;
  ExtentRecord tail = extent;
  tail.start += BlockCount{head};
  tail.count -= BlockCount{head};
  extent.count = {head};
  changed_.insert(start);
  changed_.insert(block);
  extents_.emplace_hint(next, block, tail);
}

void ExtentMap::Unmap(FileBlock first, BlockCount count, std::vector<DeviceRun>* freed) {
  const uint64_t end = first.value + count.value;
  SplitAt(first.value);
  SplitAt(end);
  auto at = extents_.lower_bound(first.value);
  while (at != extents_.end() && at->first < end) {
    freed->push_back({at->second.device, {at->second.start, at->second.count}});
    mapped_ -= at->second.count;
    changed_.insert(at->first);
    at = extents_.erase(at);
  }
}

void ExtentMap::Map(FileBlock first, const DeviceRun& run, uint32_t flags, uint64_t generation,
                    std::vector<DeviceRun>* freed) {
  Unmap(first, run.run.count, freed);
  mapped_ += run.run.count;
  uint64_t block = first.value;
  BlockRun rest = run.run;
  // The extent before it goes on where the blocks do.
  const auto next = extents_.upper_bound(block);
  if (next != extents_.begin()) {
    auto& [start, before] = *std::prev(next);
    const bool continues = start + before.count.value == block && before.device == run.device &&
                           before.start + before.count == rest.start && before.flags == flags &&
                           before.generation == generation;
    const uint64_t room = kMaximumExtentBlocks - std::min(kMaximumExtentBlocks, before.count.value);
    if (continues && room > 0) {
      const BlockCount step{std::min(room, rest.count.value)};
      before.count += step;
      changed_.insert(start);
      block += step.value;
      rest = {rest.start + step, rest.count - step};
    }
  }
  while (rest.count.value > 0) {
    const BlockCount step{std::min(kMaximumExtentBlocks, rest.count.value)};
    ExtentRecord record;
    record.device = run.device;
    record.start = rest.start;
    record.count = step;
    record.flags = flags;
    record.generation = generation;
    extents_.emplace(block, record);
    changed_.insert(block);
    block += step.value;
    rest = {rest.start + step, rest.count - step};
  }
}

void ExtentMap::MarkWritten(FileBlock first, BlockCount count, uint64_t generation) {
  SplitAt(first.value);
  SplitAt(first.value + count.value);
  for (auto at = extents_.lower_bound(first.value); at != extents_.end() && at->first < first.value + count.value;
       ++at) {
    at->second.flags &= ~static_cast<uint32_t>(kExtentUnwritten);
    at->second.generation = generation;
    changed_.insert(at->first);
  }
}

std::vector<ExtentMap::Change> ExtentMap::TakeChanges() {
  std::vector<Change> changes;
  changes.reserve(changed_.size());
  for (const uint64_t key : std::exchange(changed_, {})) {
    const auto found = extents_.find(key);
    changes.push_back({FileBlock{key}, found == extents_.end() ? std::nullopt : std::optional(found->second)});
  }
  return changes;
}

void ExtentMap::Clear() {
  extents_.clear();
  changed_.clear();
  mapped_ = {};
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/file/extent_map.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace weightfs {
namespace {

// Deletions of a run that become one change. Range deletions slow down every later iteration of the catalog, so one
// must replace many single deletions; a batch of many single deletions delays the batches of others.
constexpr size_t kDeletedRun = 1024;

}  // namespace

bool ExtentMap::Load(FileBlock first, const ExtentRecord& record) {
  const uint64_t end = first.value + record.count.value;
  if (extents_.Overlaps(first.value, end)) return false;
  extents_.Insert(first.value, end, {record.start, record.generation, record.flags, record.device});
  mapped_ += record.count;
  return true;
}

ExtentMap::Piece ExtentMap::Lookup(FileBlock first, BlockCount limit) const {
  const auto at = extents_.FirstFrom(first.value);
  if (at == extents_.end()) return {first, limit, std::nullopt};
  if (at->first > first.value) return {first, std::min(BlockCount{at->first - first.value}, limit), std::nullopt};
  Address address = at->second.value;
  address.Advance(first.value - at->first);
  const uint64_t count = std::min(at->second.end - first.value, limit.value);
  return {first, {count}, address.ToRecord(count)};
}

void ExtentMap::SplitAt(uint64_t block) {
  const auto split = extents_.SplitAt(block);
  if (!split) return;
  changed_.insert(*split);
  changed_.insert(block);
}

void ExtentMap::Unmap(FileBlock first, BlockCount count, std::vector<DeviceRun>* freed) {
  const uint64_t end = first.value + count.value;
  SplitAt(first.value);
  SplitAt(end);
  for (auto at = extents_.LowerBound(first.value); at != extents_.end() && at->first < end; at = extents_.Erase(at)) {
    const BlockCount blocks{at->second.end - at->first};
    freed->push_back({at->second.value.device, {at->second.value.start, blocks}});
    mapped_ -= blocks;
    changed_.insert(at->first);
  }
}

void ExtentMap::Map(FileBlock first, const DeviceRun& run, uint32_t flags, uint64_t generation,
                    std::vector<DeviceRun>* freed) {
  Unmap(first, run.run.count, freed);
  mapped_ += run.run.count;
  uint64_t block = first.value;
  const uint64_t end = block + run.run.count.value;
  Address address{run.run.start, generation, flags, run.device};
  const auto advance = [&](uint64_t blocks) {
    block += blocks;
    address.Advance(blocks);
  };
  // Extend the preceding extent when the blocks continue it.
  if (block > 0) {
    auto before = extents_.FirstFrom(block - 1);
    if (before != extents_.end() && before->second.end == block) {
      const Address& last = before->second.value;
      const uint64_t length = block - before->first;
      const bool continues = last.device == run.device && last.start + BlockCount{length} == run.run.start &&
                             last.flags == flags && last.generation == generation;
      if (continues && length < kMaximumExtentBlocks) {
        const uint64_t step = std::min(kMaximumExtentBlocks - length, end - block);
        before->second.end += step;
        changed_.insert(before->first);
        advance(step);
      }
    }
  }
  while (block < end) {
    const uint64_t step = std::min(kMaximumExtentBlocks, end - block);
    extents_.Insert(block, block + step, address);
    changed_.insert(block);
    advance(step);
  }
}

void ExtentMap::MarkWritten(FileBlock first, BlockCount count, uint64_t generation) {
  const uint64_t end = first.value + count.value;
  SplitAt(first.value);
  SplitAt(end);
  for (auto at = extents_.LowerBound(first.value); at != extents_.end() && at->first < end; ++at) {
    WEIGHTFS_ASSERT((at->second.value.flags & kExtentUnwritten) != 0);
    at->second.value.flags &= ~static_cast<uint32_t>(kExtentUnwritten);
    at->second.value.generation = generation;
    changed_.insert(at->first);
  }
}

std::vector<ExtentMap::Change> ExtentMap::TakeChanges() {
  std::vector<Change> changes;
  const std::set<uint64_t> keys = std::exchange(changed_, {});
  for (auto key = keys.begin(); key != keys.end();) {
    const auto next = extents_.LowerBound(*key);
    if (next != extents_.end() && next->first == *key) {
      const uint64_t count = next->second.end - *key;
      changes.push_back({FileBlock{*key}, FileBlock{*key + 1}, next->second.value.ToRecord(count)});
      ++key;
      continue;
    }
    // No record is left before the next extent, so its key ends the run.
    const size_t first = changes.size();
    for (; key != keys.end() && (next == extents_.end() || *key < next->first); ++key) {
      changes.push_back({FileBlock{*key}, FileBlock{*key + 1}, std::nullopt});
    }
    if (changes.size() - first <= kDeletedRun) continue;
    changes[first].end = changes.back().end;
    changes.resize(first + 1);
  }
  return changes;
}

std::vector<FileExtent> ExtentMap::List(FileBlock first, size_t limit) const {
  std::vector<FileExtent> list;
  for (auto at = extents_.FirstFrom(first.value); at != extents_.end() && list.size() < limit; ++at) {
    const Address& address = at->second.value;
    list.push_back(
        {FileBlock{at->first}, BlockCount{at->second.end - at->first}, address.device, address.start, address.flags});
  }
  return list;
}

void ExtentMap::Clear() {
  extents_.Clear();
  changed_.clear();
  mapped_ = {};
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/file/dirty_map.h"

#include <iterator>
#include <utility>

#include "common/assert.h"

namespace weightfs {

const DirtyBlocks* DirtyMap::Find(FileBlock block) const {
  const auto at = ranges_.Find(block.value);
  return at == ranges_.end() ? nullptr : &at->second.value;
}

bool DirtyMap::Overlaps(FileBlock first, BlockCount count) const {
  return ranges_.Overlaps(first.value, first.value + count.value);
}

bool DirtyMap::HasWriteback(FileBlock first, BlockCount count, uint64_t next) const {
  const uint64_t end = first.value + count.value;
  for (auto at = FirstFrom(first); at != ranges_.end() && at->first < end; ++at) {
    if (at->second.value.under_writeback() && at->second.value.write < next) return true;
  }
  return false;
}

bool DirtyMap::IsDirty(FileBlock first, BlockCount count) const {
  uint64_t next = first.value;
  const uint64_t end = first.value + count.value;
  for (auto at = FirstFrom(first); at != ranges_.end() && at->first <= next; ++at) {
    if (at->second.value.under_writeback()) return false;
    next = at->second.end;
    if (next >= end) return true;
  }
  return false;
}

void DirtyMap::Remove(FileBlock first, BlockCount count) {
  const uint64_t end = first.value + count.value;
  ranges_.SplitAt(first.value);
  ranges_.SplitAt(end);
  for (auto at = ranges_.LowerBound(first.value); at != ranges_.end() && at->first < end; at = ranges_.Erase(at)) {
    if (!at->second.value.under_writeback()) dirty_ -= BlockCount{at->second.end - at->first};
  }
}

void DirtyMap::RemoveWrite(FileBlock first, BlockCount count, uint64_t write) {
  const uint64_t end = first.value + count.value;
  // A range of this write never begins before the write does.
  for (auto at = ranges_.LowerBound(first.value); at != ranges_.end() && at->first < end;) {
    at = at->second.value.write == write ? ranges_.Erase(at) : std::next(at);
  }
}

void DirtyMap::StartWriteback(FileBlock first, BlockCount count, uint64_t write) {
  WEIGHTFS_ASSERT(write != 0);
  const uint64_t end = first.value + count.value;
  ranges_.SplitAt(first.value);
  ranges_.SplitAt(end);
  for (auto at = ranges_.LowerBound(first.value); at != ranges_.end() && at->first < end; ++at) {
    WEIGHTFS_ASSERT(!at->second.value.under_writeback());
    at->second.value.write = write;
    dirty_ -= BlockCount{at->second.end - at->first};
  }
}

void DirtyMap::Insert(FileBlock first, BlockCount count, DirtyBlocks blocks) {
  WEIGHTFS_ASSERT(blocks.buffer_first <= first && first.value + count.value <= blocks.buffer_end());
  Remove(first, count);
  if (!blocks.under_writeback()) dirty_ += count;
  const auto at = ranges_.Insert(first.value, first.value + count.value, std::move(blocks));
  ranges_.MergeAround(at, [](const DirtyBlocks& left, const DirtyBlocks& right) {
    return !left.under_writeback() && !right.under_writeback() && left.buffer.data() == right.buffer.data();
  });
}

std::span<std::byte> DirtyMap::Writable(FileBlock block) const {
  const auto at = ranges_.Find(block.value);
  if (at == ranges_.end() || at->second.value.under_writeback()) return {};
  return {at->second.value.memory(block.value), (at->second.end - block.value) * kBlockSize};
}

const DirtyBlocks* DirtyMap::BufferFor(FileBlock block) const {
  const auto has_room = [&](const DirtyBlocks& blocks) {
    return !blocks.under_writeback() && blocks.buffer_first <= block && block.value < blocks.buffer_end();
  };
  auto at = ranges_.FirstFrom(block.value);
  if (at != ranges_.begin()) --at;
  for (; at != ranges_.end(); ++at) {
    if (has_room(at->second.value)) return &at->second.value;
    if (at->first > block.value) break;
  }
  return nullptr;
}

void DirtyMap::Clear() {
  ranges_.Clear();
  dirty_ = {};
}

}  // namespace weightfs

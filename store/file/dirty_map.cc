// SPDX-License-Identifier: Apache-2.0
#include "store/file/dirty_map.h"

#include <utility>

namespace weightfs {

DirtyMap::Spans::const_iterator DirtyMap::FirstFrom(FileBlock block) const {
  auto at = spans_.upper_bound(block.value);
  if (at != spans_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.count.value > block.value) return before;
  }
  return at;
}

const DirtySpan* DirtyMap::Find(FileBlock block) const {
  const auto at = FirstFrom(block);
  return at != spans_.end() && at->first <= block.value ? &at->second : nullptr;
}

bool DirtyMap::Overlaps(FileBlock first, BlockCount count) const {
  const auto at = FirstFrom(first);
  return at != spans_.end() && at->first < first.value + count.value;
}

bool DirtyMap::CoversUnfrozen(FileBlock first, BlockCount count) const {
  uint64_t next = first.value;
  const uint64_t end = first.value + count.value;
  for (auto at = FirstFrom(first); at != spans_.end() && at->first <= next && !at->second.frozen(); ++at) {
    next = at->first + at->second.count.value;
    if (next >= end) return true;
  }
  return false;
}

void DirtyMap::SplitAt(uint64_t block) {
  auto at = spans_.upper_bound(block);
  if (at == spans_.begin()) return;
  --at;
  const uint64_t end = at->first + at->second.count.value;
  if (at->first >= block || end <= block) return;
  DirtySpan tail = at->second;
  tail.count = {end - block};
  at->second.count = {block - at->first};
  spans_.emplace_hint(std::next(at), block, std::move(tail));
}

void DirtyMap::Remove(FileBlock first, BlockCount count) {
  const uint64_t end = first.value + count.value;
  SplitAt(first.value);
  SplitAt(end);
  auto at = spans_.lower_bound(first.value);
  while (at != spans_.end() && at->first < end) {
    if (!at->second.frozen()) unfrozen_ -= at->second.count;
    at = spans_.erase(at);
  }
}

void DirtyMap::RemoveWrite(FileBlock first, BlockCount count, uint64_t write) {
  const uint64_t end = first.value + count.value;
  auto at = spans_.lower_bound(first.value);
  // A span of this write never begins before the write does.
  while (at != spans_.end() && at->first < end) at = at->second.write == write ? spans_.erase(at) : std::next(at);
}

void DirtyMap::Freeze(FileBlock first, BlockCount count, uint64_t write) {
  const uint64_t end = first.value + count.value;
  SplitAt(first.value);
  SplitAt(end);
  for (auto at = spans_.lower_bound(first.value); at != spans_.end() && at->first < end; ++at) {
    if (at->second.frozen()) continue;
    at->second.write = write;
    unfrozen_ -= at->second.count;
  }
}

void DirtyMap::Insert(FileBlock first, DirtySpan span) {
  Remove(first, span.count);
  if (!span.frozen()) unfrozen_ += span.count;
  const auto at = spans_.emplace(first.value, std::move(span)).first;
  MergeAround(at);
}

void DirtyMap::MergeAround(Spans::iterator at) {
  const auto mergeable = [](Spans::iterator left, Spans::iterator right) {
    return !left->second.frozen() && !right->second.frozen() &&
           left->first + left->second.count.value == right->first &&
           left->second.buffer.data() == right->second.buffer.data();
  };
  if (const auto next = std::next(at); next != spans_.end() && mergeable(at, next)) {
    at->second.count += next->second.count;
    spans_.erase(next);
  }
  if (at != spans_.begin()) {
    if (const auto before = std::prev(at); mergeable(before, at)) {
      before->second.count += at->second.count;
      spans_.erase(at);
    }
  }
}

std::span<std::byte> DirtyMap::Writable(FileBlock block) const {
  const auto at = FirstFrom(block);
  if (at == spans_.end() || at->first > block.value || at->second.frozen()) return {};
  const uint64_t end = at->first + at->second.count.value;
  return {at->second.memory(block.value), (end - block.value) * kBlockSize};
}

const DirtySpan* DirtyMap::WindowFor(FileBlock block) const {
  const auto holds = [&](const DirtySpan& span) {
    return !span.frozen() && span.window <= block && block.value < span.window_end();
  };
  const auto at = spans_.upper_bound(block.value);
  if (at != spans_.end() && holds(at->second)) return &at->second;
  if (at != spans_.begin() && holds(std::prev(at)->second)) return &std::prev(at)->second;
  return nullptr;
}

void DirtyMap::Clear() {
  spans_.clear();
  unfrozen_ = {};
}

}  // namespace weightfs

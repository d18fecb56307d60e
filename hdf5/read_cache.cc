// SPDX-License-Identifier: Apache-2.0
#include "hdf5/read_cache.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "common/assert.h"

namespace weightfs::hdf5 {

ReadCache::Extents::iterator ReadCache::FirstFrom(uint64_t offset) {
  auto next = extents_.upper_bound(offset);
  if (next != extents_.begin() && std::prev(next)->first + std::prev(next)->second.size > offset) --next;
  return next;
}

ReadCache::Extents::iterator ReadCache::Find(uint64_t offset) {
  const auto first = FirstFrom(offset);
  return first != extents_.end() && first->first <= offset ? first : extents_.end();
}

uint64_t ReadCache::EndBefore(uint64_t offset) const {
  const auto next = extents_.upper_bound(offset);
  return next == extents_.begin() ? 0 : std::min(offset, std::prev(next)->first + std::prev(next)->second.size);
}

ReadCache::Extents::iterator ReadCache::Add(uint64_t begin, Extent extent) {
  const auto next = FirstFrom(begin);
  WEIGHTFS_ASSERT(next == extents_.end() || next->first >= begin + extent.size);
  bytes_ += extent.size;
  const auto added = extents_.emplace_hint(next, begin, std::move(extent));
  Touch(added);
  if (bytes_ > limit_) Shrink(added);
  return added;
}

ReadCache::Extents::iterator ReadCache::Remove(Extents::iterator extent) {
  auto& [begin, removed] = *extent;
  bytes_ -= removed.size;
  pool_->Give(std::move(removed.buffer));
  return extents_.erase(extent);
}

void ReadCache::Drop(uint64_t begin, uint64_t end) {
  for (auto at = FirstFrom(begin); at != extents_.end() && at->first < end;) at = Remove(at);
}

void ReadCache::Patch(uint64_t offset, std::span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  for (auto at = FirstFrom(offset); at != extents_.end() && at->first < end; ++at) {
    const uint64_t from = std::max(at->first, offset);
    const uint64_t to = std::min(at->first + at->second.size, end);
    std::memcpy(at->second.buffer.data() + (from - at->first), bytes.data() + (from - offset), to - from);
  }
}

// Evicts down to three quarters of the limit, so that not every Add visits all extents.
void ReadCache::Shrink(Extents::iterator kept) {
  std::vector<Extents::iterator> oldest;
  for (auto at = extents_.begin(); at != extents_.end(); ++at) {
    if (at != kept) oldest.push_back(at);
  }
  std::sort(oldest.begin(), oldest.end(),
            [](const auto& a, const auto& b) { return a->second.last_use < b->second.last_use; });
  for (const auto& extent : oldest) {
    if (bytes_ <= limit_ / 4 * 3) break;
    Remove(extent);
  }
}

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
#include "hdf5/write_buffer.h"

#include <cstring>
#include <iterator>

#include "common/assert.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::hdf5 {
namespace {

// A segment of this size probably continues to grow, so it gets its maximum capacity at once. The kernel allocates
// pages only when they are touched.
constexpr size_t kStreamSegment = 64 * kKiB;

Error NoMemory() { return {ErrorCode::kNoMemory, "no memory to buffer a write"}; }

}  // namespace

// A full segment ends at a block boundary of the file, where the next one begins.
size_t WriteBuffer::LongestFrom(uint64_t begin) const { return RoundDown(begin + segment_size_, kBlockSize) - begin; }

uint64_t WriteBuffer::end() const {
  return segments_.empty() ? 0 : segments_.rbegin()->first + segments_.rbegin()->second.size;
}

bool WriteBuffer::IsBusy(uint64_t begin, uint64_t end) const {
  for (auto at = FirstFrom(segments_, begin); at != segments_.end() && at->first < end; ++at) {
    if (at->second.operation != nullptr) return true;
  }
  return false;
}

size_t WriteBuffer::Overlay(uint64_t offset, std::span<std::byte> bytes) const {
  size_t copied = 0;
  const uint64_t end = offset + bytes.size();
  for (auto at = FirstFrom(segments_, offset); at != segments_.end() && at->first < end; ++at) {
    const uint64_t from = std::max(at->first, offset);
    const uint64_t to = std::min(at->first + at->second.size, end);
    std::memcpy(bytes.data() + (from - offset), at->second.data() + (from - at->first), to - from);
    copied += to - from;
  }
  return copied;
}

WriteBuffer::Segments::iterator WriteBuffer::Remove(Segments::iterator segment) {
  bytes_ -= segment->second.size;
  pool_->Give(std::move(segment->second.buffer));
  return segments_.erase(segment);
}

Result<void> WriteBuffer::Discard(uint64_t begin, uint64_t end) {
  auto at = FirstFrom(segments_, begin);
  while (at != segments_.end() && at->first < end) {
    const uint64_t first = at->first;  // used after the segment is erased
    Segment& segment = at->second;
    WEIGHTFS_ASSERT(segment.operation == nullptr);
    const uint64_t last = first + segment.size;
    if (first >= begin && last <= end) {
      at = Remove(at);
      continue;
    }
    if (last > end) {
      // The tail becomes a separate segment. It keeps the buffer if no head remains.
      Segment tail{.size = last - end, .raw = segment.raw};
      if (first < begin) {
        tail.buffer = pool_->Take(tail.size);
        if (tail.buffer.data() == nullptr) return NoMemory();
        std::memcpy(tail.data(), segment.data() + (end - first), tail.size);
        segment.size = begin - first;
      } else {
        tail.buffer = std::move(segment.buffer);
        tail.skip = segment.skip + (end - first);
        segments_.erase(at);
      }
      bytes_ -= end - std::max(first, begin);
      segments_.emplace(end, std::move(tail));
      return {};
    }
    bytes_ -= last - begin;
    segment.size = begin - first;
    ++at;
  }
  return {};
}

// The bytes of a large segment have the same offsets within a block in memory as in the file. O_DIRECT needs that.
Result<void> WriteBuffer::Reserve(uint64_t begin, Segment* segment, size_t size) {
  if (segment->skip + size <= segment->buffer.capacity) return {};
  const size_t longest = LongestFrom(begin);
  const bool stream = size >= kStreamSegment;
  const size_t skip = stream ? begin % kBlockSize : 0;
  auto larger = pool_->Take(skip + std::max(stream ? longest : std::min(2 * size, longest), size));
  if (larger.data() == nullptr) return NoMemory();
  if (segment->size > 0) std::memcpy(larger.data() + skip, segment->data(), segment->size);
  pool_->Give(std::exchange(segment->buffer, std::move(larger)));
  segment->skip = skip;
  return {};
}

Result<void> WriteBuffer::Put(uint64_t offset, std::span<const std::byte> bytes, bool raw) {
  const auto holder = FirstFrom(segments_, offset);
  if (holder != segments_.end() && holder->first <= offset &&
      holder->first + holder->second.size >= offset + bytes.size()) {
    WEIGHTFS_ASSERT(holder->second.operation == nullptr);
    std::memcpy(holder->second.data() + (offset - holder->first), bytes.data(), bytes.size());
    return {};
  }
  RETURN_IF_ERROR(Discard(offset, offset + bytes.size()));
  while (!bytes.empty()) {
    auto at = segments_.upper_bound(offset);
    const bool continues = at != segments_.begin() && std::prev(at)->second.raw == raw &&
                           std::prev(at)->second.operation == nullptr &&
                           std::prev(at)->first + std::prev(at)->second.size == offset &&
                           !IsFull(std::prev(at)->first, std::prev(at)->second);
    at = continues ? std::prev(at) : segments_.emplace_hint(at, offset, Segment{.raw = raw});
    auto& [begin, segment] = *at;
    const size_t count = std::min(bytes.size(), LongestFrom(begin) - segment.size);
    if (auto reserved = Reserve(begin, &segment, segment.size + count); !reserved.has_value()) {
      if (segment.size == 0) segments_.erase(at);
      return reserved;
    }
    std::memcpy(segment.data() + segment.size, bytes.data(), count);
    segment.size += count;
    bytes_ += count;
    filled_ = filled_ || IsFull(begin, segment);
    offset += count;
    bytes = bytes.subspan(count);
  }
  return {};
}

}  // namespace weightfs::hdf5

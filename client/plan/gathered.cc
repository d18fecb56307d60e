// SPDX-License-Identifier: Apache-2.0
#include "client/plan/gathered.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/units.h"

namespace weightfs::client {

const GatheredLayout::Part& GatheredLayout::Find(uint64_t offset) const {
  // Rows have equal lengths, so this finds them without a search.
  const Part& first = parts_.front();
  const uint64_t guess = std::min<uint64_t>((offset - first.at) / first.length, parts_.size() - 1);
  if (const Part& part = parts_[guess]; part.at <= offset && offset - part.at < part.length) return part;
  const auto behind =
      std::partition_point(parts_.begin(), parts_.end(), [=](const Part& part) { return part.at <= offset; });
  return *std::prev(behind);
}

Layout::Run GatheredLayout::Locate(uint64_t offset, uint64_t length) const {
  const Part& part = Find(offset);
  return file_.Locate(part.offset + (offset - part.at), std::min(length, part.at + part.length - offset));
}

uint64_t GatheredLayout::FileOffset(uint64_t offset) const {
  const Part& part = Find(offset);
  return part.offset + (offset - part.at);
}

Result<GatheredBlocks> GatheredBlocks::Create(std::span<const ByteRange> ranges, const MemoryView& memory) {
  std::byte* base = memory.on_device() ? nullptr : memory.Direct(0, memory.size());
  if (base == nullptr && memory.size() > 0)
    return Error{ErrorCode::kInvalid, "ranges are read into contiguous host memory only"};
  GatheredBlocks blocks;
  uint64_t done = 0;
  std::vector<MemoryView::Part> parts;
  for (const ByteRange& range : ranges) {
    if (range.size > memory.size() - done || range.offset < blocks.end || range.offset > INT64_MAX - range.size) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("the range of {} bytes at {} does not lie behind the previous one, or not in the memory",
                               range.size, range.offset)};
    }
    if (range.size == 0) continue;
    if (blocks.parts.empty()) blocks.begin = range.offset;
    const uint64_t at = blocks.Add(range) - blocks.begin;
    parts.push_back({at, MemoryView(std::span(base + done, range.size))});
    done += range.size;
  }
  if (done != memory.size()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("the ranges have {} bytes together, the memory has {}", done, memory.size())};
  }
  if (!parts.empty()) blocks.memory = MemoryView::Joined(std::move(parts), parts.back().at + parts.back().view.size());
  return blocks;
}

uint64_t GatheredBlocks::Add(const ByteRange& range) {
  end = range.offset + range.size;
  const uint64_t first = RoundDown(range.offset, kBlockSize);
  const uint64_t last = RoundUp(end, kBlockSize);
  if (parts.empty()) {
    parts.push_back({.at = first, .offset = first, .length = last - first});
  } else if (const uint64_t covered = parts.back().offset + parts.back().length; first <= covered + kNearby) {
    parts.back().length = std::max(last, covered) - parts.back().offset;
  } else {
    parts.push_back({.at = parts.back().at + parts.back().length, .offset = first, .length = last - first});
  }
  return parts.back().at + (range.offset - parts.back().offset);
}

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Changes of the bytes of a file: plan first, then apply.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/assert.h"
#include "store/file/file.h"

namespace weightfs {
namespace {

uint64_t StagingBlocks(Staging staging) {
  return (staging == Staging::kStripe ? kStripeStaging : kSmallStaging).value / kBlockSize;
}

// Zeros when `from` is null.
void CopyOrClear(std::byte* to, const std::byte* from, uint64_t size) {
  if (from != nullptr) {
    std::memcpy(to, from, size);
  } else {
    std::memset(to, 0, size);
  }
}

}  // namespace

// True when a device holds bytes of the block that a partial overwrite must keep.
bool File::HasContent(FileBlock block) const {
  return extents_.Lookup(block, BlockCount{1}).IsWritten() &&
         ToBytes(block).value < RoundUp(attributes_.size, kBlockSize);
}

// Counts the blocks of the range that would become dirty and are not in an unwritten extent, which already provides
// space.
BlockCount File::BlocksWithoutSpace(FileBlock first, FileBlock end) const {
  BlockCount needed;
  while (first < end) {
    auto next = dirty_.FirstFrom(first);
    const auto last = dirty_.ranges().end();
    if (next != last && next->first <= first.value && !next->second.value.under_writeback()) {
      first = {std::min(end.value, next->second.end)};
      continue;
    }
    while (next != last && next->first < end.value && next->second.value.under_writeback()) ++next;
    const FileBlock until = next == last ? end : std::min(end, FileBlock{next->first});
    extents_.ForEachPiece(first, until, [&](const ExtentMap::Piece& piece) {
      if (!piece.extent || piece.IsWritten()) needed += piece.count;
      return true;
    });
    first = until;
  }
  return needed;
}

void File::PlanSpace(FileBlock first, FileBlock end, WritePlan* plan) const {
  plan->blocks_ += BlocksWithoutSpace(first, end);
  plan->NeedSpace(plan->blocks_);  // the file's own reservation covers the blocks that are dirty already
}

// Plans the old content of `block` in memory before a part of it is overwritten. A dirty block is overwritten in place,
// unless `of_dirty` says that the plan gives it new memory.
void File::PlanFill(FileBlock block, bool of_dirty, WritePlan* plan) const {
  if (const DirtyBlocks* blocks = dirty_.Find(block)) {
    if (blocks->under_writeback() || of_dirty) {
      plan->fills_.push_back({block, blocks->memory(block.value), blocks->buffer});
    }
    return;
  }
  const auto piece = extents_.Lookup(block, BlockCount{1});
  if (!piece.IsWritten()) {
    plan->fills_.push_back({block, nullptr, {}});
    return;
  }
  for (const BlockContent& content : plan->supplies_.content) {
    // The generation detects a block that was replaced and then mapped to the same location again.
    if (content.block != block || content.extent != *piece.extent) continue;
    plan->fills_.push_back({block, content.bytes.get(), {}});
    return;
  }
  plan->needs_.content.push_back(block);
}

// Plans memory for every block of the range that is not dirty.
void File::PlanMemory(FileBlock first, FileBlock end, Staging staging, WritePlan* plan) const {
  const bool stripe = staging == Staging::kStripe;
  const std::vector<Buffer>& supply = stripe ? plan->supplies_.stripes : plan->supplies_.small;
  size_t& used = stripe ? plan->stripes_used_ : plan->small_used_;
  size_t& lacking = stripe ? plan->needs_.stripes : plan->needs_.small;
  // A buffer of this plan serves all blocks of its part of the file, also while it is still lacking: a step needs few
  // buffers, however many dirty ranges lie in it.
  const size_t begin = plan->ranges_.size();
  const auto find_planned = [&](uint64_t at) -> const DirtyBlocks* {
    const FileBlock part{RoundDown(at, StagingBlocks(staging))};
    for (size_t index = plan->ranges_.size(); index > 0; --index) {
      const WritePlan::NewRange& range = plan->ranges_[index - 1];
      const bool holds = range.blocks.buffer ? range.first.value <= at && at < range.blocks.buffer_end()
                                             : index > begin && range.blocks.buffer_first == part;
      if (holds) return &range.blocks;
    }
    return nullptr;
  };
  for (uint64_t at = first.value; at < end.value;) {
    if (const auto memory = dirty_.Writable(FileBlock{at}); !memory.empty()) {
      at += memory.size() / kBlockSize;
      continue;
    }
    // Up to the next dirty range, blocks are either not in memory or under writeback, which keeps its own memory.
    uint64_t until = end.value;
    for (auto next = dirty_.FirstFrom(FileBlock{at}); next != dirty_.ranges().end() && next->first < until; ++next) {
      if (!next->second.value.under_writeback()) until = next->first;
    }
    DirtyBlocks blocks;
    if (const DirtyBlocks* neighbor = dirty_.BufferFor(FileBlock{at})) {
      blocks.buffer = neighbor->buffer;
      blocks.buffer_first = neighbor->buffer_first;
      blocks.buffer_limit = neighbor->buffer_limit;
    } else if (const DirtyBlocks* planned = find_planned(at)) {
      blocks = *planned;
    } else {
      blocks.buffer_first = {RoundDown(at, StagingBlocks(staging))};
      if (used < supply.size()) {
        blocks.buffer = supply[used++];
      } else {
        ++lacking;
      }
    }
    const uint64_t buffer_end =
        blocks.buffer ? blocks.buffer_end() : blocks.buffer_first.value + StagingBlocks(staging);
    until = std::min(until, buffer_end);
    plan->ranges_.push_back({FileBlock{at}, BlockCount{until - at}, std::move(blocks)});
    at = until;
  }
}

void File::PlanCopy(uint64_t offset, uint64_t size, const std::byte* data, Staging staging, WritePlan* plan) const {
  WEIGHTFS_ASSERT(loaded_ && size > 0);
  const FileBlock first = BlockOf(offset), end = BlockEnd(offset + size), last = end - BlockCount{1};
  PlanSpace(first, end, plan);
  const bool head = offset % kBlockSize != 0;
  if (head) PlanFill(first, false, plan);
  if ((offset + size) % kBlockSize != 0 && !(head && last == first)) PlanFill(last, false, plan);
  PlanMemory(first, end, staging, plan);
  plan->copies_.push_back({offset, size, data});
}

void File::PlanZeros(uint64_t from, uint64_t to, WritePlan* plan) const {
  WEIGHTFS_ASSERT(from < to && BlockOf(from) == BlockOf(to - 1));
  const FileBlock block = BlockOf(from);
  if (dirty_.Find(block) == nullptr && !HasContent(block)) return;
  plan->needs_.privileged = true;
  PlanCopy(from, to - from, nullptr, Staging::kSmall, plan);
}

void File::PlanAdoption(uint64_t offset, std::span<const std::byte> data, const Buffer& buffer, WritePlan* plan) const {
  WEIGHTFS_ASSERT(loaded_ && data.data() == buffer.data() + offset % kBlockSize);
  const uint64_t size = data.size(), head = offset % kBlockSize, tail = (offset + size) % kBlockSize;
  const FileBlock first = BlockOf(offset), end = BlockOf(offset + size);
  WEIGHTFS_ASSERT(first < end);
  PlanSpace(first, BlockEnd(offset + size), plan);
  WritePlan::Adoption adoption{first, end, offset, size, buffer};
  if (head > 0) {
    PlanFill(first, true, plan);
    if (!plan->fills_.empty()) adoption.head = std::exchange(plan->fills_, {}).front();
  }
  plan->adoption_ = std::move(adoption);
  if (tail == 0) return;
  // The head of the last block gets its own buffer, which is not written back with the blocks before it, because the
  // next write of the stream completes it.
  PlanFill(end, true, plan);
  DirtyBlocks blocks;
  blocks.buffer_first = end;
  if (plan->small_used_ < plan->supplies_.small.size()) {
    blocks.buffer = plan->supplies_.small[plan->small_used_++];
  } else {
    ++plan->needs_.small;
  }
  plan->ranges_.push_back({end, BlockCount{1}, std::move(blocks)});
  plan->copies_.push_back({offset + size - tail, tail, data.data() + size - tail});
}

void File::Apply(WritePlan plan) {
  WEIGHTFS_ASSERT(plan.needs_.empty());
  WriteSupplies& supplies = plan.supplies_;
  supplies.space.TrimTo(plan.blocks_);
  reservation_.Absorb(supplies.space);
  if (plan.adoption_) ApplyAdoption(*std::move(plan.adoption_));
  for (WritePlan::NewRange& range : plan.ranges_) dirty_.Insert(range.first, range.count, std::move(range.blocks));
  for (const WritePlan::Fill& fill : plan.fills_) {
    std::byte* memory = dirty_.Writable(fill.block).data();
    WEIGHTFS_ASSERT(memory != nullptr);
    CopyOrClear(memory, fill.content, kBlockSize);
  }
  for (const WritePlan::Copy& copy : plan.copies_) {
    InvalidateCache(copy.offset, copy.offset + copy.size);
    for (uint64_t done = 0; done < copy.size;) {
      const uint64_t at = copy.offset + done;
      const auto memory = dirty_.Writable(BlockOf(at)).subspan(at % kBlockSize);
      const uint64_t step = std::min<uint64_t>(memory.size(), copy.size - done);
      CopyOrClear(memory.data(), copy.data == nullptr ? nullptr : copy.data + done, step);
      done += step;
    }
  }
  // The file now owns the buffers that were used.
  const auto take = [](std::vector<Buffer>& buffers, size_t used) {
    buffers.erase(buffers.begin(), buffers.begin() + static_cast<ptrdiff_t>(used));
  };
  take(supplies.small, plan.small_used_);
  take(supplies.stripes, plan.stripes_used_);
  reservation_.TrimTo(dirty_.dirty());
  CountUncommitted();
}

void File::ApplyAdoption(WritePlan::Adoption adoption) {
  if (const uint64_t head = adoption.offset % kBlockSize; head > 0) {
    WEIGHTFS_ASSERT(adoption.head);
    CopyOrClear(adoption.buffer.data(), adoption.head->content, head);
  }
  InvalidateCache(adoption.offset, adoption.offset + adoption.size);
  DirtyBlocks blocks;
  blocks.buffer = std::move(adoption.buffer);
  blocks.buffer_first = adoption.first;
  blocks.buffer_limit = adoption.end.value;
  dirty_.Insert(adoption.first, adoption.end - adoption.first, std::move(blocks));
}

uint64_t File::SequenceAt(uint64_t offset, uint64_t end) const {
  return (offset == write_next_ ? write_sequence_ : 0) + (end - offset);
}

void File::NoteWritten(uint64_t end, uint64_t sequence) {
  write_next_ = end;
  write_sequence_ = sequence;
}

}  // namespace weightfs

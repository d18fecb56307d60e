// SPDX-License-Identifier: Apache-2.0
// From dirty blocks to device writes: late allocation, and the checksums of blocks in flight.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "common/assert.h"
#include "common/checksum.h"
#include "common/log.h"
#include "store/file/file.h"

namespace weightfs {

FileBlock File::DirtyBefore(FileBlock first) const {
  while (first.value > 0) {
    const auto before = dirty_.FirstFrom(first - BlockCount{1});
    if (before == dirty_.ranges().end() || before->first >= first.value || before->second.value.under_writeback())
      break;
    first = {before->first};
  }
  return first;
}

bool File::StartWriteback(FileBlock first, FileBlock end, bool stream, std::vector<BlockWrite>* writes) {
  if (dirty_.dirty().value == 0) return true;
  uint64_t until = end.value;
  // Include all dirty blocks of a buffer, even outside the range; leave other buffers alone.
  std::unordered_set<const std::byte*> buffers;
  for (auto at = dirty_.FirstFrom(first); at != dirty_.ranges().end() && at->first < end.value; ++at) {
    const DirtyBlocks& blocks = at->second.value;
    if (blocks.under_writeback() || !buffers.insert(blocks.buffer.data()).second) continue;
    first = std::min(first, blocks.buffer_first);
    until = std::max(until, blocks.buffer_end());
  }
  // Find groups of adjacent blocks before any of them enters writeback.
  std::vector<std::pair<uint64_t, uint64_t>> groups;
  for (auto at = dirty_.FirstFrom(first); at != dirty_.ranges().end() && at->first < until; ++at) {
    const DirtyBlocks& blocks = at->second.value;
    if (blocks.under_writeback() || !buffers.contains(blocks.buffer.data())) continue;
    if (!groups.empty() && groups.back().second == at->first) {
      groups.back().second = at->second.end;
    } else {
      groups.emplace_back(at->first, at->second.end);
    }
  }
  MappingUpdate update(*this);
  bool placed = true;
  for (const auto& [begin, group_end] : groups) {
    placed = placed && WritebackGroup(FileBlock{begin}, BlockCount{group_end - begin}, stream, writes);
  }
  reservation_.TrimTo(dirty_.dirty());
  return placed;
}

// Assigns locations to the blocks: those in unwritten extents stay where they are, the others get new space.
bool File::WritebackGroup(FileBlock first, BlockCount count, bool stream, std::vector<BlockWrite>* writes) {
  const uint64_t generation = attributes_.data_version + 1;
  const auto is_unwritten = [](const ExtentMap::Piece& piece) { return piece.extent && !piece.IsWritten(); };
  while (count.value > 0) {
    const ExtentMap::Piece piece = extents_.Lookup(first, count);
    if (is_unwritten(piece)) {
      extents_.MarkWritten(first, piece.count, generation);
      WritebackRun(first, {piece.extent->device, {piece.extent->start, piece.count}}, writes);
      first += piece.count;
      count -= piece.count;
      continue;
    }
    // Allocate everything up to the next unwritten extent together, whatever is mapped there now.
    SpaceManager::Request request{.ino = id_, .first = first, .after = RunBefore(first), .stream = stream};
    extents_.ForEachPiece(first, first + count, [&](const ExtentMap::Piece& next) {
      if (is_unwritten(next)) return false;
      request.count += next.count;
      return true;
    });
    const uint64_t blocks = BlocksFor(ByteCount{attributes_.size}).value;
    if (stream && blocks > first.value) request.expected = blocks - first.value;
    const auto runs = services_.space.Allocate(request, &reservation_);
    if (!runs) {
      spdlog::error("inode {}: no space for {} blocks that were reserved", id_.value, request.count.value);
      return false;
    }
    for (const DeviceRun& run : *runs) {
      MapNew(first, run, 0);
      WritebackRun(first, run, writes);
      first += run.run.count;
      count -= run.run.count;
    }
  }
  return true;
}

// Puts blocks that are contiguous on the device under writeback, with one write per contiguous piece of memory.
void File::WritebackRun(FileBlock first, const DeviceRun& run, std::vector<BlockWrite>* writes) {
  WEIGHTFS_ASSERT(commit_.changed());
  BlockRun rest = run.run;
  ComputePendingChecksums(first, rest.count);
  while (rest.count.value > 0) {
    const auto at = dirty_.FirstFrom(first);
    WEIGHTFS_ASSERT(at != dirty_.ranges().end() && at->first <= first.value);
    const DirtyBlocks& blocks = at->second.value;
    const BlockCount step = std::min(rest.count, BlockCount{at->second.end - first.value});
    BlockWrite write{.id = next_write_++,
                     .seal = seals_,
                     .first = first,
                     .run = {run.device, {rest.start, step}},
                     .buffer = blocks.buffer,
                     .data = blocks.memory(first.value)};
    pending_checksums_.push_back({write.id, first, write.bytes()});
    dirty_.StartWriteback(first, step, write.id);
    ++writes_since_seal_;
    writes->push_back(std::move(write));
    first += step;
    rest = {rest.start + step, rest.count - step};
  }
}

// Computes the checksums of older writes that overlap the range, so that values set for it afterwards are newer.
void File::ComputePendingChecksums(FileBlock first, BlockCount count) {
  std::vector<uint32_t> checksums;
  std::erase_if(pending_checksums_, [&](const PendingChecksums& pending) {
    const BlockCount blocks{pending.data.size() / kBlockSize};
    if (pending.first >= first + count || first >= pending.first + blocks) return false;
    checksums.resize(blocks.value);
    Crc32cBlocks(pending.data, checksums.data());
    checksums_.Set(pending.first, checksums);
    return true;
  });
}

void File::SetChecksums(const BlockWrite& write, std::span<const uint32_t> checksums) {
  const auto pending = std::find_if(pending_checksums_.begin(), pending_checksums_.end(),
                                    [&](const PendingChecksums& entry) { return entry.write == write.id; });
  if (pending == pending_checksums_.end()) return;
  checksums_.Set(write.first, checksums);
  pending_checksums_.erase(pending);
}

void File::FinishWrite(const BlockWrite& write) {
  dirty_.RemoveWrite(write.first, write.run.run.count, write.id);
  uint64_t& under_way = write.seal == seals_ ? writes_since_seal_ : writes_before_seal_;
  WEIGHTFS_ASSERT(under_way > 0);
  --under_way;
  if (under_way == 0 || range_waiters_ > 0) drained_.notify_all();
}

}  // namespace weightfs

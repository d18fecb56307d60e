// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a write go in memory: into windows of the file, or kept in the buffer they arrived in.
#include <algorithm>
#include <cstring>
#include <utility>

#include "store/file/file_io_internal.h"

namespace weightfs {

// Whether a block not in memory has bytes that a partial overwrite must keep.
bool FileIo::NeedsContent(const Inode& inode, FileBlock block) const {
  const auto piece = inode.file->extents.Lookup(block, BlockCount{1});
  return piece.IsWritten() && ToBytes(block).value < RoundUp(inode.attributes.size, kBlockSize);
}

// Holds space for every block of the range that becomes dirty and does not lie over an unwritten extent.
FileIo::Need FileIo::Reserve(const InodePtr& inode, FileBlock first, BlockCount count, bool privileged) {
  FileState& file = *inode->file;
  const auto enough = [&](uint64_t blocks) {
    const BlockCount target{file.dirty.unfrozen().value + blocks};
    if (file.reservation.held() >= target) return true;
    return p_.space.Reserve(&file.reservation, target - file.reservation.held(), privileged).has_value();
  };
  if (enough(count.value)) return {};
  // Short: count exactly.
  uint64_t exact = 0;
  for (uint64_t block = first.value; block < first.value + count.value; ++block) {
    const DirtySpan* span = file.dirty.Find(FileBlock{block});
    if (span != nullptr && !span->frozen()) continue;
    const auto piece = file.extents.Lookup(FileBlock{block}, BlockCount{1});
    if (!piece.extent || piece.IsWritten()) ++exact;
  }
  if (exact == 0 || enough(exact)) return {};
  return {Need::Kind::kSpace, {}};
}

// Finds memory for every block of the range that has none it may change: `spans` are what to insert. Changes nothing.
FileIo::Need FileIo::FindMemory(const InodePtr& inode, FileBlock first, FileBlock end, bool stripe, Spares* spares,
                                NewSpans* spans) {
  const DirtyMap& dirty = inode->file->dirty;
  auto& ready = stripe ? spares->stripes : spares->windows;
  BufferPool& pool = stripe ? p_.stripes : p_.windows;
  const uint64_t window_blocks = pool.buffer_size().value / kBlockSize;
  size_t used = 0;
  for (uint64_t at = first.value; at < end.value;) {
    if (const auto memory = dirty.Writable(FileBlock{at}); !memory.empty()) {
      at += memory.size() / kBlockSize;
      continue;
    }
    // Up to the next unfrozen span the blocks are free, or belong to a write under way that keeps its own memory.
    uint64_t until = end.value;
    for (auto next = dirty.FirstFrom(FileBlock{at}); next != dirty.spans().end() && next->first < until; ++next) {
      if (!next->second.frozen()) until = next->first;
    }
    DirtySpan span;
    if (const DirtySpan* window = dirty.WindowFor(FileBlock{at})) {
      span.buffer = window->buffer;
      span.window = window->window;
    } else if (!spans->empty() && at < spans->back().second.window_end()) {
      span.buffer = spans->back().second.buffer;
      span.window = spans->back().second.window;
    } else {
      if (used == ready.size()) {
        Buffer buffer = pool.TryAllocate();
        if (!buffer) return {stripe ? Need::Kind::kStripe : Need::Kind::kWindow, {}};
        ready.push_back(std::move(buffer));
      }
      span.buffer = ready[used++];
      span.window = {RoundDown(at, window_blocks)};
    }
    until = std::min(until, span.window_end());
    span.count = {until - at};
    spans->emplace_back(at, std::move(span));
    at = until;
  }
  // From here on nothing fails: the buffers are the file's.
  ready.erase(ready.begin(), ready.begin() + static_cast<ptrdiff_t>(used));
  return {};
}

// What a block that is about to be overwritten in part holds: the caller's `out`, or the need to read it.
FileIo::Need FileIo::OldContent(const InodePtr& inode, FileBlock block, const Spares& spares, EdgeBlock* out) {
  const FileState& file = *inode->file;
  out->block = block;
  const DirtySpan* span = file.dirty.Find(block);
  if (span != nullptr && !span->frozen()) return {};
  out->fill = true;
  if (span != nullptr) {
    std::memcpy(out->bytes, span->memory(block.value), kBlockSize);
    return {};
  }
  const auto piece = file.extents.Lookup(block, BlockCount{1});
  if (!piece.IsWritten()) {
    std::memset(out->bytes, 0, kBlockSize);
    return {};
  }
  for (const auto& spare : spares.blocks) {
    // The generation tells a block that was replaced and came back to the same place.
    if (spare.block != block || spare.extent.device != piece.extent->device ||
        spare.extent.start != piece.extent->start || spare.extent.generation != piece.extent->generation) {
      continue;
    }
    std::memcpy(out->bytes, spare.bytes.get(), kBlockSize);
    return {};
  }
  return {Need::Kind::kBlock, block};
}

// Puts `size` bytes (zeros where `data` is null) into dirty memory at `offset`. Asks for what it lacks before it
// changes anything; does not move the size.
FileIo::Need FileIo::Place(const InodePtr& inode, uint64_t offset, uint64_t size, const std::byte* data, bool stripe,
                           bool privileged, Spares* spares) {
  DirtyMap& dirty = inode->file->dirty;
  const FileBlock first = BlockOf(offset), end = BlockEnd(offset + size);
  if (const Need need = Reserve(inode, first, end - first, privileged); need.kind != Need::Kind::kNothing) return need;
  EdgeBlock edges[2];
  size_t edge_count = 0;
  if (offset % kBlockSize != 0) {
    const Need need = OldContent(inode, first, *spares, &edges[edge_count++]);
    if (need.kind != Need::Kind::kNothing) return need;
  }
  const FileBlock last = end - BlockCount{1};
  if ((offset + size) % kBlockSize != 0 && (edge_count == 0 || last != first)) {
    const Need need = OldContent(inode, last, *spares, &edges[edge_count++]);
    if (need.kind != Need::Kind::kNothing) return need;
  }
  NewSpans spans;
  if (const Need need = FindMemory(inode, first, end, stripe, spares, &spans); need.kind != Need::Kind::kNothing) {
    return need;
  }
  p_.reader.cache().Invalidate(inode->id, offset, offset + size);
  for (auto& [at, span] : spans) dirty.Insert(FileBlock{at}, std::move(span));
  for (size_t index = 0; index < edge_count; ++index) {
    if (edges[index].fill) std::memcpy(dirty.Writable(edges[index].block).data(), edges[index].bytes, kBlockSize);
  }
  for (uint64_t done = 0; done < size;) {
    const uint64_t at = offset + done;
    const auto memory = dirty.Writable(BlockOf(at)).subspan(at % kBlockSize);
    const uint64_t step = std::min<uint64_t>(memory.size(), size - done);
    if (data != nullptr) {
      std::memcpy(memory.data(), data + done, step);
    } else {
      std::memset(memory.data(), 0, step);
    }
    done += step;
  }
  p_.write_back.NoteDirty(inode);
  return {};
}

// What a block holds now, wherever that is: the caller's `out`, or the need to read it.
FileIo::Need FileIo::Content(const InodePtr& inode, FileBlock block, const Spares& spares, EdgeBlock* out) {
  if (const DirtySpan* span = inode->file->dirty.Find(block)) {
    std::memcpy(out->bytes, span->memory(block.value), kBlockSize);
    return {};
  }
  return OldContent(inode, block, spares, out);
}

// Puts the first bytes of a block into memory of its own, which stays behind when the blocks before it are sent: the
// next write of the stream completes it.
FileIo::Need FileIo::PlaceTail(const InodePtr& inode, FileBlock block, std::span<const std::byte> data,
                               Spares* spares) {
  EdgeBlock old;
  if (const Need need = Content(inode, block, *spares, &old); need.kind != Need::Kind::kNothing) return need;
  if (spares->windows.empty()) {
    Buffer buffer = p_.windows.TryAllocate();
    if (!buffer) return {Need::Kind::kWindow, {}};
    spares->windows.push_back(std::move(buffer));
  }
  DirtySpan span;
  span.count = {1};
  span.buffer = std::move(spares->windows.back());
  spares->windows.pop_back();
  span.window = block;
  std::memcpy(span.buffer.data(), old.bytes, kBlockSize);
  std::memcpy(span.buffer.data(), data.data(), data.size());
  inode->file->dirty.Insert(block, std::move(span));
  p_.write_back.NoteDirty(inode);
  return {};
}

// Keeps the caller's buffer, whose pages are blocks of the file, as the file's memory and sends it out at once. In
// front of the data the buffer has room for what the first block holds already; the bytes behind its last whole block
// are copied.
FileIo::Need FileIo::Adopt(const InodePtr& inode, uint64_t offset, std::span<const std::byte> data,
                           const Buffer& holder, Spares* spares, WriteBatch* batch) {
  const uint64_t size = data.size(), head = offset % kBlockSize, tail = (offset + size) % kBlockSize;
  const FileBlock first = BlockOf(offset), end = BlockOf(offset + size);
  if (const Need need = Reserve(inode, first, BlockEnd(offset + size) - first, false);
      need.kind != Need::Kind::kNothing) {
    return need;
  }
  if (head > 0) {
    EdgeBlock old;
    if (const Need need = Content(inode, first, *spares, &old); need.kind != Need::Kind::kNothing) return need;
    std::memcpy(holder.data(), old.bytes, head);
  }
  if (tail > 0) {
    const Need need = PlaceTail(inode, end, data.last(tail), spares);
    if (need.kind != Need::Kind::kNothing) return need;
  }
  p_.reader.cache().Invalidate(inode->id, offset, offset + size);
  DirtySpan span;
  span.count = end - first;
  span.buffer = holder;
  span.window = first;
  span.window_limit = end.value;
  inode->file->dirty.Insert(first, std::move(span));
  // What small writes have put just before goes along: its place is next to this.
  const DirtyMap& dirty = inode->file->dirty;
  FileBlock begin = first;
  while (begin.value > 0) {
    const auto before = dirty.FirstFrom(begin - BlockCount{1});
    if (before->first >= begin.value || before->second.frozen()) break;
    begin = {before->first};
  }
  p_.write_back.SubmitRange(inode, begin, end, true, batch);
  return {};
}

}  // namespace weightfs

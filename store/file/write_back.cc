// SPDX-License-Identifier: Apache-2.0
#include "store/file/write_back.h"

#include <algorithm>
#include <future>
#include <unordered_set>
#include <utility>

#include "common/checksum.h"
#include "common/log.h"

namespace weightfs {

MappedBlocksUpdate::MappedBlocksUpdate(Inode& inode, SpaceManager& space)
    : inode_(inode), space_(space), before_(inode.file->extents.mapped()) {}

MappedBlocksUpdate::~MappedBlocksUpdate() {
  const BlockCount after = inode_.file->extents.mapped();
  space_.AddUsed(static_cast<int64_t>(after.value) - static_cast<int64_t>(before_.value));
  inode_.attributes.blocks = after.value;
}

// One device write of file blocks that lie together in memory and on the device. Owns itself.
class WriteBack::Operation final : public IoRequest {
 public:
  Operation(WriteBack& owner, InodePtr of) : inode(std::move(of)), owner_(owner) {}
  void OnComplete(Result<void> result) override {
    owner_.Complete(*this, std::move(result));
    delete this;
  }

  InodePtr inode;
  Buffer buffer;
  FileBlock first;
  DeviceRun run;
  uint64_t id = 0;
  uint64_t seal = 0;  // FileState::seals when it was submitted

 private:
  WriteBack& owner_;
};

void WriteBack::NoteDirty(const InodePtr& inode) {
  if (std::exchange(inode->file->in_write_back_queue, true)) return;
  MutexLock lock(mutex_);
  dirty_.push_back(inode);
}

bool WriteBack::RelievePressure() {
  InodePtr inode;
  {
    MutexLock lock(mutex_);
    if (dirty_.empty()) return false;
    inode = std::move(dirty_.front());
    dirty_.pop_front();
  }
  WriteBatch batch(*this);
  MutexLock lock(inode->mutex);
  inode->file->in_write_back_queue = false;
  SubmitAll(inode, &batch);
  lock.Unlock();
  return true;
}

void WriteBack::SubmitAll(const InodePtr& inode, WriteBatch* batch) {
  SubmitRange(inode, FileBlock{0}, FileBlock{UINT64_MAX}, false, batch);
}

void WriteBack::SubmitRange(const InodePtr& inode, FileBlock first, FileBlock end, bool stream, WriteBatch* batch) {
  DirtyMap& dirty = inode->file->dirty;
  if (dirty.unfrozen().value == 0) return;
  uint64_t until = end.value;
  // A buffer is frozen whole, with what it holds outside the range; other buffers are left alone.
  std::unordered_set<const std::byte*> buffers;
  for (auto at = dirty.FirstFrom(first); at != dirty.spans().end() && at->first < end.value; ++at) {
    const DirtySpan& span = at->second;
    if (span.frozen() || !buffers.insert(span.buffer.data()).second) continue;
    first = std::min(first, span.window);
    until = std::max(until, span.window_end());
  }
  // Groups of adjacent blocks, found before any is frozen.
  std::vector<std::pair<uint64_t, uint64_t>> groups;
  for (auto at = dirty.FirstFrom(first); at != dirty.spans().end() && at->first < until; ++at) {
    if (at->second.frozen() || !buffers.contains(at->second.buffer.data())) continue;
    const uint64_t span_end = at->first + at->second.count.value;
    if (!groups.empty() && groups.back().second == at->first) {
      groups.back().second = span_end;
    } else {
      groups.emplace_back(at->first, span_end);
    }
  }
  MappedBlocksUpdate update(*inode, space_);
  for (const auto& [from, to] : groups) {
    SubmitGroup(inode, FileBlock{from}, BlockCount{to - from}, stream, batch);
  }
  inode->file->reservation.TrimTo(dirty.unfrozen());
}

// Places the blocks: those over unwritten extents where they are, the others in new space.
void WriteBack::SubmitGroup(const InodePtr& inode, FileBlock first, BlockCount count, bool stream, WriteBatch* batch) {
  FileState& file = *inode->file;
  const uint64_t generation = inode->attributes.data_version + 1;
  while (count.value > 0) {
    const ExtentMap::Piece piece = file.extents.Lookup(first, count);
    if (piece.extent && !piece.IsWritten()) {
      file.extents.MarkWritten(first, piece.count, generation);
      WriteRun(inode, first, {piece.extent->device, {piece.extent->start, piece.count}}, batch);
      first += piece.count;
      count -= piece.count;
      continue;
    }
    // Everything up to the next unwritten extent is allocated together, whatever lies there now.
    BlockCount together = piece.count;
    while (together < count) {
      const auto next = file.extents.Lookup(first + together, count - together);
      if (next.extent && !next.IsWritten()) break;
      together += next.count;
    }
    SpaceManager::Request request;
    request.ino = inode->id;
    request.first = first;
    request.count = together;
    request.stream = stream;
    const uint64_t blocks = BlocksFor(ByteCount{inode->attributes.size}).value;
    if (stream && blocks > first.value) request.expected = blocks - first.value;
    if (first.value > 0) {
      const auto before = file.extents.Lookup(first - BlockCount{1}, BlockCount{1});
      if (before.extent) request.after = DeviceRun{before.extent->device, {before.extent->start, BlockCount{1}}};
    }
    auto runs = space_.Allocate(request, &file.reservation);
    if (!runs) {
      spdlog::error("inode {}: no space for {} blocks that were reserved", inode->id.value, together.value);
      Tear(inode);
      return;
    }
    for (const DeviceRun& run : *runs) {
      file.extents.Map(first, run, 0, generation, &file.freed);
      WriteRun(inode, first, run, batch);
      first += run.run.count;
      count -= run.run.count;
    }
  }
}

// Freezes file blocks that are together on the device; one operation for each piece of memory.
void WriteBack::WriteRun(const InodePtr& inode, FileBlock first, const DeviceRun& run, WriteBatch* batch) {
  FileState& file = *inode->file;
  BlockRun rest = run.run;
  SumOverlapping(file, first, rest.count);
  while (rest.count.value > 0) {
    const auto at = file.dirty.FirstFrom(first);
    const DirtySpan& span = at->second;
    const BlockCount step = std::min(rest.count, BlockCount{at->first + span.count.value - first.value});
    auto* operation = new Operation(*this, inode);
    operation->operation = IoRequest::Operation::kWrite;
    operation->offset = ToBytes(rest.start);
    operation->data = span.memory(first.value);
    operation->size = ToBytes(step);
    operation->buffer = span.buffer;
    operation->first = first;
    operation->run = {run.device, {rest.start, step}};
    operation->id = next_write_.fetch_add(1);
    operation->seal = file.seals;
    file.unsummed.push_back({operation->id, first, {operation->data, operation->size.value}});
    file.dirty.Freeze(first, step, operation->id);
    ++file.writes_since_seal;
    file.changed = true;
    written_bytes_ += operation->size.value;
    batch->operations_.push_back(operation);
    first += step;
    rest = {rest.start + step, rest.count - step};
  }
}

// Older writes of the same blocks enter the table first: the newest checksum is the one that stays.
void WriteBack::SumOverlapping(FileState& file, FileBlock first, BlockCount count) {
  std::vector<uint32_t> checksums;
  std::erase_if(file.unsummed, [&](const UnsummedWrite& write) {
    const BlockCount blocks{write.data.size() / kBlockSize};
    if (write.first >= first + count || first >= write.first + blocks) return false;
    checksums.resize(blocks.value);
    Crc32cBlocks(write.data, checksums.data());
    file.checksums.Set(write.first, checksums);
    return true;
  });
}

void WriteBack::SumAll(Inode& inode) { SumOverlapping(*inode.file, FileBlock{0}, BlockCount{UINT64_MAX}); }

// Computes the checksums of a frozen write without the mutex. Somebody who needed them at once may have been faster,
// and after a failed write the file wants none of them.
void WriteBack::Sum(Operation& operation) {
  std::vector<uint32_t> checksums(operation.run.run.count.value);
  Crc32cBlocks({operation.data, operation.size.value}, checksums.data());
  MutexLock lock(operation.inode->mutex);
  FileState& file = *operation.inode->file;
  const auto entry = std::find_if(file.unsummed.begin(), file.unsummed.end(),
                                  [&](const UnsummedWrite& write) { return write.write == operation.id; });
  if (entry == file.unsummed.end()) return;
  file.checksums.Set(operation.first, checksums);
  file.unsummed.erase(entry);
}

void WriteBack::WhenBelow(ByteCount limit, std::function<void()> next) {
  {
    MutexLock lock(mutex_);
    if (in_flight_ >= limit.value) {
      waiting_.emplace_back(limit.value, std::move(next));
      return;
    }
  }
  next();
}

void WriteBack::NoteInFlight(int64_t bytes) {
  std::vector<std::function<void()>> ready;
  {
    MutexLock lock(mutex_);
    in_flight_ += static_cast<uint64_t>(bytes);
    while (!waiting_.empty() && in_flight_ < waiting_.front().first) {
      ready.push_back(std::move(waiting_.front().second));
      waiting_.pop_front();
    }
  }
  for (auto& next : ready) next();
}

void WriteBatch::Send() {
  constexpr uint64_t kTogether = kMiB;  // small writes go to the device together
  IoBatch batch(owner_.devices_);
  uint64_t bytes = 0;
  for (IoRequest* request : std::exchange(operations_, {})) {
    auto& operation = *static_cast<WriteBack::Operation*>(request);
    owner_.Sum(operation);
    owner_.NoteInFlight(static_cast<int64_t>(operation.size.value));
    bytes += operation.size.value;
    batch.Add(operation.run.device, &operation);
    if (bytes >= kTogether) batch.Submit(), bytes = 0;
  }
}

// Whatever the device said: a want of space of its own is not the pool's, which callers may wait out.
void WriteBack::Tear(const InodePtr& inode) {
  FileState& file = *inode->file;
  if (!file.error) file.error = Error{ErrorCode::kIo};
  if (std::exchange(file.torn, true)) return;
  ++file.failures;
  file.refused = false;  // The next change is told of this one too.
  if (torn_) torn_(inode);
}

void WriteBack::Complete(Operation& operation, Result<void> result) {
  devices_.NoteWrite(operation.run.device);
  // First: with the last write of a file told, its store may go.
  NoteInFlight(-static_cast<int64_t>(operation.size.value));
  MutexLock lock(operation.inode->mutex);
  FileState& file = *operation.inode->file;
  file.dirty.RemoveWrite(operation.first, operation.run.run.count, operation.id);
  auto& pending = operation.seal == file.seals ? file.writes_since_seal : file.writes_before_seal;
  --pending;
  if (!result && !file.torn) {
    spdlog::error("inode {}: {} blocks from file block {} could not be written to device {}: {}",
                  operation.inode->id.value, operation.run.run.count.value, operation.first.value,
                  operation.run.device.value, ToString(result.error()));
    Tear(operation.inode);
  }
  if (pending == 0 || file.range_waiters > 0) file.drained.notify_all();
}

}  // namespace weightfs

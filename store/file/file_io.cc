// SPDX-License-Identifier: Apache-2.0
#include "store/file/file_io.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <optional>
#include <utility>

#include "common/log.h"
#include "meta/keys.h"
#include "store/file/file_io_internal.h"

namespace weightfs {
namespace {

constexpr uint64_t kAdoptBytes = 256 * kKiB;   // a shorter write is copied, so that neighbours go out together
constexpr uint64_t kStreamBytes = 256 * kKiB;  // written in sequence before a file counts as a stream
constexpr uint64_t kLargestStep = 4 * kMiB;    // a longer write is several, each whole or not at all
constexpr uint64_t kStripeBlocks = 2 * kMiB / kBlockSize;

// What an inode's record says of its data.
struct Committed {
  uint64_t size = 0;
  uint64_t blocks = 0;
  uint64_t version = 0;
};

// Hands out the extents that the catalog has of a file, their keys and values, in order.
template <typename Visit>
Result<void> ForEachExtent(KvStore& catalog, InodeId ino, const Committed& committed, const Visit& visit) {
  // The few of a small file without holes are read one by one: an iterator costs as much as several of them.
  constexpr size_t kFew = 4;
  std::vector<std::pair<std::string, std::string>> few;
  FileBlock end;
  while (end.value < committed.blocks && few.size() < kFew) {
    std::string key = keys::Extent(ino, end);
    ASSIGN_OR_RETURN(auto value, catalog.Get(key));
    const auto record = value ? ExtentRecord::Decode(key, *value) : Result<ExtentRecord>(ErrorCode::kNotFound);
    if (!record) break;
    end += record->count;
    few.emplace_back(std::move(key), std::move(*value));
  }
  if (end.value == committed.blocks && end.value >= BlocksFor(ByteCount{committed.size}).value) {
    for (const auto& [key, value] : few) RETURN_IF_ERROR(visit(key, value));
    return {};
  }
  const auto extents = catalog.NewIterator(keys::ExtentPrefix(ino));
  for (; extents->Valid(); extents->Next()) RETURN_IF_ERROR(visit(extents->key(), extents->value()));
  return extents->status();
}

Result<ExtentMap> ReadExtents(KvStore& catalog, InodeId ino, const Committed& committed) {
  ExtentMap extents;
  const auto load = [&](std::string_view key, std::string_view value) -> Result<void> {
    const auto parsed = keys::ParseIndexed(key);
    const auto record = ExtentRecord::Decode(key, value);
    if (parsed && record && extents.Load(FileBlock{parsed->index}, *record)) return {};
    return ErrorCode::kCorrupt;
  };
  RETURN_IF_ERROR(ForEachExtent(catalog, ino, committed, load));
  return extents;
}

}  // namespace

Result<void> FileIo::CheckWritable(Inode& inode) {
  if (p_.committer.failed()) return ErrorCode::kReadOnly;
  if (inode.deleted) return ErrorCode::kStale;
  if (inode.IsDirectory()) return ErrorCode::kIsDirectory;
  if (!inode.file) return ErrorCode::kInvalid;
  if (auto error = inode.file->RefuseChange()) return *std::move(error);
  return {};
}

Result<void> FileIo::Satisfy(const InodePtr& inode, const Need& need, Spares* spares) {
  switch (need.kind) {
    case Need::Kind::kNothing: return {};
    case Need::Kind::kSpace:
      // First what costs nobody anything, then what files have that go with a close under way, and last the old content
      // of files that are being replaced.
      if (spares->reclaims == 3) return ErrorCode::kNoSpace;
      if (spares->reclaims == 1 && wait_for_closes_) wait_for_closes_();
      ReclaimSpace(spares->reclaims++ < 2 ? Committer::Scope::kSettled : Committer::Scope::kEverything);
      return {};
    case Need::Kind::kStripe:
    case Need::Kind::kWindow: {
      BufferPool& pool = need.kind == Need::Kind::kStripe ? p_.stripes : p_.windows;
      auto& ready = need.kind == Need::Kind::kStripe ? spares->stripes : spares->windows;
      // Dirty files hold the memory: send the oldest out, until a buffer is free or all are on their way. One more
      // file may turn dirty between the last look and the wait; its commit ends the wait then.
      Buffer buffer = pool.TryAllocate();
      while (!buffer && p_.write_back.RelievePressure()) buffer = pool.TryAllocate();
      ready.push_back(buffer ? std::move(buffer) : pool.Allocate());
      return {};
    }
    case Need::Kind::kBlock: break;
  }
  Spares::Block block;
  block.block = need.block;
  block.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockSize, kBlockSize)));
  if (!block.bytes) return ErrorCode::kNoMemory;
  uint32_t checksum = 0;
  const uint64_t ticket = p_.space.EnterRead();
  Result<void> result;
  bool mapped = false;
  {
    MutexLock lock(inode->mutex);
    const auto piece = inode->file->extents.Lookup(need.block, BlockCount{1});
    if (piece.IsWritten()) {
      mapped = true;
      block.extent = *piece.extent;
      result = inode->file->checksums.Get(p_.catalog, inode->id, need.block, {&checksum, 1});
    }
  }
  if (result && mapped) {
    result = p_.reader.ReadBlock(inode->id, block.extent, checksum, {block.bytes.get(), kBlockSize});
  }
  p_.space.LeaveRead(ticket);
  RETURN_IF_ERROR(result);
  std::erase_if(spares->blocks, [&](const Spares::Block& old) { return old.block == need.block; });
  if (mapped) spares->blocks.push_back(std::move(block));
  return {};
}

Result<void> FileIo::Load(const InodePtr& inode) {
  while (true) {
    Committed committed;
    {
      MutexLock lock(inode->mutex);
      if (!inode->file) return inode->IsDirectory() ? ErrorCode::kIsDirectory : ErrorCode::kInvalid;
      if (inode->file->loaded) return {};
      if (inode->deleted) return ErrorCode::kStale;
      committed = {inode->committed_size, inode->committed_blocks, inode->committed_version};
    }
    auto extents = ReadExtents(p_.catalog, inode->id, committed);
    MutexLock lock(inode->mutex);
    FileState& file = *inode->file;
    if (file.loaded) return {};
    // Somebody else has loaded and committed it, and a failed write has dropped it again: what was read may be of both.
    if (inode->committed_version != committed.version) continue;
    if (!extents) {
      if (extents.error().code == ErrorCode::kCorrupt) {
        spdlog::error("inode {}: a damaged or overlapping extent record; run weightfs fsck", inode->id.value);
      }
      return extents.error();
    }
    p_.reader.cache().Invalidate(inode->id, 0, UINT64_MAX);
    // The scan at mount counted these blocks; a revert took them out of the count.
    if (file.reverted) p_.space.AddUsed(static_cast<int64_t>(extents->mapped().value));
    file.reverted = false;
    inode->attributes.blocks = extents->mapped().value;
    file.extents = std::move(*extents);
    file.loaded = true;
    return {};
  }
}

void FileIo::Touch(const InodePtr& inode) {
  inode->attributes.modified = inode->attributes.changed = Timestamp::Now();
  p_.committer.NoteChanged(inode);
}

Result<FileIo::Need> FileIo::WriteStep(const InodePtr& inode, uint64_t offset, std::span<const std::byte> data,
                                       const Buffer& holder, Spares* spares, WriteBatch* batch) {
  FileState& file = *inode->file;
  const uint64_t end = offset + data.size();
  if (end > kMaximumFileSize || end < offset) return ErrorCode::kFileTooBig;
  const bool sequential = offset == file.write_next;
  const uint64_t run = (sequential ? file.write_run : 0) + data.size();
  const bool adoptable = holder && data.data() == holder.data() + offset % kBlockSize;
  Need need;
  if (adoptable && data.size() >= kAdoptBytes) {
    need = Adopt(inode, offset, data, holder, spares, batch);
  } else {
    const bool stripe = data.size() >= kStreamBytes || (sequential && run >= kStreamBytes);
    need = Place(inode, offset, data.size(), data.data(), stripe, false, spares);
  }
  if (need.kind != Need::Kind::kNothing) return need;
  file.write_next = end;
  file.write_run = run;
  if (end > inode->attributes.size) {
    // A chunk read earlier knows nothing behind the old end.
    p_.reader.cache().Invalidate(inode->id, inode->attributes.size, end);
    inode->attributes.size = end;
  }
  Touch(inode);
  // Whole stripes go out at once. Of a stripe that a stream has written, parts may be gone already: the rest follows,
  // to lie next to them.
  for (uint64_t stripe = BlockOf(offset).value / kStripeBlocks; (stripe + 1) * kStripeBlocks * kBlockSize <= end;
       ++stripe) {
    const FileBlock first{stripe * kStripeBlocks};
    const bool streamed = end - run <= first.value * kBlockSize;
    if (streamed || file.dirty.CoversUnfrozen(first, BlockCount{kStripeBlocks})) {
      p_.write_back.SubmitRange(inode, first, first + BlockCount{kStripeBlocks}, run >= kStripeBlocks * kBlockSize,
                                batch);
    }
  }
  return need;
}

Result<void> FileIo::Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data,
                           const Buffer& holder, WriteReach reach, WriteBatch* batch) {
  // The windows of one step are held together: bounded, so that writers never wait for one another's.
  for (size_t at = 0; at < data.size(); at += kLargestStep) {
    const auto step = data.subspan(at, std::min<size_t>(kLargestStep, data.size() - at));
    batch->Send();
    RETURN_IF_ERROR(Retry(inode, batch, [&](Spares* spares) -> Result<Need> {
      uint64_t room = step.size();
      if (reach == WriteReach::kWithinFile) {
        room = std::min(room, inode->attributes.size - std::min(inode->attributes.size, offset.value + at));
        if (room == 0) return Need{};
      }
      return WriteStep(inode, offset.value + at, step.first(room), holder, spares, batch);
    }));
    written_bytes_ += step.size();
  }
  return {};
}

Result<ByteOffset> FileIo::Append(const InodePtr& inode, std::span<const std::byte> data) {
  uint64_t offset = 0;
  WriteBatch batch(p_.write_back);
  RETURN_IF_ERROR(Retry(inode, &batch, [&](Spares* spares) {
    offset = inode->attributes.size;
    return WriteStep(inode, offset, data, {}, spares, &batch);
  }));
  written_bytes_ += data.size();
  return ByteOffset{offset};
}

// Forgets the blocks, in memory and on the devices.
void FileIo::UnmapLocked(const InodePtr& inode, FileBlock first, FileBlock end) {
  if (end <= first) return;
  FileState& file = *inode->file;
  MappedBlocksUpdate update(*inode, p_.space);
  p_.reader.cache().Invalidate(inode->id, ToBytes(first).value,
                               end.value >= UINT64_MAX / kBlockSize ? UINT64_MAX : ToBytes(end).value);
  file.dirty.Remove(first, end - first);
  file.extents.Unmap(first, end - first, &file.freed);
}

// Zeroes [from, to) inside one block, where the block has anything to lose.
FileIo::Need FileIo::ZeroInBlock(const InodePtr& inode, uint64_t from, uint64_t to, Spares* spares) {
  const FileBlock block = BlockOf(from);
  if (inode->file->dirty.Find(block) == nullptr && !NeedsContent(*inode, block)) return {};
  return Place(inode, from, to - from, nullptr, false, true, spares);
}

// Moves the end of the file; the bytes behind a smaller one go, those in its last block are zeros already.
void FileIo::SetSize(const InodePtr& inode, uint64_t size) {
  FileState& file = *inode->file;
  const uint64_t old = inode->attributes.size;
  if (size < old) {
    file.shrunk_to = std::min(file.shrunk_to, size);
    file.write_next = file.write_run = 0;
  }
  // Blocks behind the end may be allocated (fallocate with KEEP_SIZE): a shrink or an equal size drops them too.
  if (size <= old) UnmapLocked(inode, BlockEnd(size), FileBlock{UINT64_MAX / kBlockSize});
  p_.reader.cache().Invalidate(inode->id, std::min(old, size), UINT64_MAX);
  inode->attributes.size = size;
}

Result<void> FileIo::Truncate(const InodePtr& inode, uint64_t size, bool replace) {
  if (size > kMaximumFileSize) return ErrorCode::kFileTooBig;
  WriteBatch batch(p_.write_back);
  return Retry(inode, &batch, [&](Spares* spares) -> Result<Need> {
    FileState& file = *inode->file;
    const uint64_t old = inode->attributes.size;
    if (size < old && size % kBlockSize != 0) {
      const Need need = ZeroInBlock(inode, size, std::min(old, RoundUp(size, kBlockSize)), spares);
      if (need.kind != Need::Kind::kNothing) return need;
    }
    if (size == 0 && old > 0 && replace && inode->committed_size > 0 && !file.replacing) {
      file.replacing = true;
      file.replacing_since = std::chrono::steady_clock::now();
    }
    SetSize(inode, size);
    Touch(inode);
    return Need{};
  });
}

namespace {

// A commit under way has taken the changes but may not have told the catalog yet.
bool IsUncommitted(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (!inode->file || inode->deleted) return false;
  return inode->file->changed || inode->file->committing || inode->file->error;
}

}  // namespace

std::vector<InodePtr> FileIo::UncommittedFiles() {
  std::vector<InodePtr> files = p_.committer.Uncommitted();
  std::erase_if(files, [](const InodePtr& inode) { return !IsUncommitted(inode); });
  return files;
}

Result<void> FileIo::CommitBeforeNaming(std::span<const InodePtr> files) {
  std::deque<std::promise<Result<void>>> commits;  // All are started before the first is waited for.
  for (const InodePtr& inode : files) {
    if (!IsUncommitted(inode)) continue;
    auto& commit = commits.emplace_back();
    p_.committer.Commit(inode, Committer::Level::kOrdered,
                        [&commit](Result<void> result) { commit.set_value(std::move(result)); });
  }
  Result<void> first;
  for (auto& commit : commits) {
    Result<void> result = commit.get_future().get();
    if (first) first = std::move(result);
  }
  return first;
}

void FileIo::CommitSettledBeforeNaming() {
  std::promise<void> done;
  p_.committer.CommitAll(Committer::Scope::kSettled, Committer::Level::kOrdered,
                         [&](const Result<void>&) { done.set_value(); });
  done.get_future().wait();
}

void FileIo::ReclaimSpace(Committer::Scope scope) {
  p_.space.ReleaseAllWindows();
  p_.space.CollectGrants();
  std::promise<void> promise;
  auto done = promise.get_future();
  p_.committer.CommitAll(scope, Committer::Level::kDurable, [&](const Result<void>&) { promise.set_value(); });
  done.wait();
}

Result<std::vector<DeviceRun>> FileIo::DeleteRecords(const InodePtr& inode, KvBatch* batch) {
  std::vector<DeviceRun> runs;  // of the catalog alone: those of a file that is loaded are in its memory
  if (!inode->file) return runs;
  const Committed committed{inode->committed_size, inode->committed_blocks, inode->committed_version};
  const auto remove = [&](std::string_view key, std::string_view value) -> Result<void> {
    batch->Delete(std::string(key));
    if (inode->file->loaded) return {};
    ASSIGN_OR_RETURN(const auto record, ExtentRecord::Decode(key, value));
    runs.push_back({record.device, {record.start, record.count}});
    return {};
  };
  RETURN_IF_ERROR(ForEachExtent(p_.catalog, inode->id, committed, remove));
  DeleteChecksums(inode->id, 0, keys::SegmentsOf(inode->committed_size), batch);
  return runs;
}

void FileIo::DropData(const InodePtr& inode, std::vector<DeviceRun> runs) {
  if (!inode->file) return;
  FileState& file = *inode->file;
  if (file.loaded) {
    MappedBlocksUpdate update(*inode, p_.space);
    for (const auto& [block, record] : file.extents.extents())
      runs.push_back({record.device, {record.start, record.count}});
    file.extents.Clear();
  } else if (!file.reverted) {
    for (const DeviceRun& run : runs) p_.space.AddUsed(-static_cast<int64_t>(run.run.count.value));
  }
  runs.insert(runs.end(), file.freed.begin(), file.freed.end());
  file.freed.clear();
  file.dirty.Clear();
  file.checksums.Clear();
  file.reservation.TrimTo({});
  file.changed = false;
  file.loaded = true;  // Empty, and nothing in the catalog belongs to it any more.
  p_.space.ReleaseWindow(inode->id);
  p_.reader.cache().Invalidate(inode->id, 0, UINT64_MAX);
  p_.committer.AddDeleted(inode, std::move(runs));
}

Result<ReadView> FileIo::ReadAndWait(const InodePtr& inode, ByteOffset offset, ByteCount size) {
  RETURN_IF_ERROR(Load(inode));
  std::promise<Result<ReadView>> promise;
  auto done = promise.get_future();
  p_.reader.Read(inode, offset, size, nullptr, [&](Result<ReadView> result) { promise.set_value(std::move(result)); });
  return done.get();
}

}  // namespace weightfs

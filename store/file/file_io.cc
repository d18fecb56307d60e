// SPDX-License-Identifier: Apache-2.0
#include "store/file/file_io.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <future>
#include <iterator>
#include <tuple>
#include <utility>

#include "common/sync_wait.h"
#include "meta/keys.h"
#include "store/file/file.h"
#include "store/file/file_change.h"

namespace weightfs {
namespace {

constexpr uint64_t kAdoptBytes = 256 * kKiB;   // shorter writes are copied, so that neighbors are written together
constexpr uint64_t kStreamBytes = 256 * kKiB;  // bytes in sequence before a file counts as a stream
constexpr uint64_t kLargestStep = 4 * kMiB;    // longer writes are split into steps, each atomic
constexpr uint64_t kStagingBlocks = kStripeStaging.value / kBlockSize;

}  // namespace

Result<void> FileIo::CheckNotFailed() const {
  if (p_.commits.failed()) return ErrorCode::kReadOnly;
  return {};
}

Result<void> FileIo::CheckWritable(KvChange change) const {
  if (closed_.load()) return ErrorCode::kShutdown;
  if (p_.read_only) return ErrorCode::kReadOnly;
  RETURN_IF_ERROR(CheckNotFailed());
  auto checked = p_.catalog.CheckSpace(change);
  if (checked || checked.error().code != ErrorCode::kNoSpace || p_.space.uncommitted().value == 0) return checked;
  // Their estimate is high.
  CommitAllAndWait(CommitLevel::kOrdered);
  return p_.catalog.CheckSpace(change);
}

Result<void> FileIo::CheckWritable(Inode& inode) {
  RETURN_IF_ERROR(CheckNotFailed());
  if (inode.deleted) return ErrorCode::kStale;
  if (inode.IsDirectory()) return ErrorCode::kIsDirectory;
  if (!inode.file) return ErrorCode::kInvalid;
  if (inode.IsImmutable()) return ErrorCode::kPermission;
  if (auto error = inode.file->write_error().RefuseChange()) return *std::move(error);
  return {};
}

Result<void> FileIo::Fetch(const InodePtr& inode, const WriteNeeds& needs, WriteSupplies* supplies,
                           SpaceSearch* search) {
  if (needs.space.value > 0) RETURN_IF_ERROR(FetchSpace(needs.space, needs.privileged, &supplies->space, search));
  for (const FileBlock block : needs.content) RETURN_IF_ERROR(FetchContent(inode, block, supplies));
  FetchMemory(needs, supplies);
  return {};
}

Result<void> FileIo::FetchSpace(BlockCount count, bool privileged, SpaceReservation* reservation, SpaceSearch* search) {
  while (!p_.space.Reserve(reservation, count, privileged)) {
    // Free what costs nothing first, then the space of files being closed, and last the old content of files being
    // replaced.
    const auto begin = std::chrono::steady_clock::now();
    if (search->attempts == 0) search->deadline = begin + p_.space_wait;
    if (search->attempts == 1 && wait_for_closes_) wait_for_closes_();
    p_.space.ReleaseAllPreallocations();
    p_.space.CollectOrphanedReservations();
    if (search->attempts < 2) {
      ++search->attempts;
      CommitAllAndWait(CommitLevel::kDurable);
    } else if (!CommitReplacements(*search, count, privileged)) {
      return ErrorCode::kNoSpace;
    }
    p_.commits.ReleaseFreed();
    search->deadline += std::chrono::steady_clock::now() - begin;  // commits take none of the time for reads
    p_.space.WaitForRetired(count, {}, privileged, search->deadline);
    RETURN_IF_ERROR(CheckNotFailed());
  }
  return {};
}

// Commits files that are being replaced, for the space of their old content: the writer's own file first, then the ones
// that have been open for longest. A crash then leaves a part of their new content, so this commits none unless the
// request fits afterwards, and none without which it fits. Returns false when no space is left to be found.
bool FileIo::CommitReplacements(const SpaceSearch& search, BlockCount count, bool privileged) {
  // Reads in progress hold enough.
  if (p_.space.WouldFit(count, {}, privileged)) return std::chrono::steady_clock::now() < search.deadline;
  struct Replaced {
    bool other;
    CommitState::Clock::time_point since;
    BlockCount freed;
    InodePtr inode;
  };
  std::vector<Replaced> files;
  for (const InodePtr& inode : p_.commits.Uncommitted()) {
    MutexLock lock(inode->mutex);
    if (inode->deleted || !inode->file || !inode->file->commit().replacing()) continue;
    const File& file = *inode->file;
    const BlockCount freed = p_.space.Unpinned(file.freed());
    if (freed.value > 0) files.push_back({inode != search.inode, file.commit().replacing_since(), freed, inode});
  }
  std::sort(files.begin(), files.end(), [](const Replaced& left, const Replaced& right) {
    return std::tie(left.other, left.since) < std::tie(right.other, right.since);
  });
  size_t most = 0;
  BlockCount freed;
  for (; most < files.size() && !p_.space.WouldFit(count, freed, privileged); ++most) freed += files[most].freed;
  if (!p_.space.WouldFit(count, freed, privileged)) return false;
  std::vector<InodePtr> chosen;
  while (most-- > 0) {
    const Replaced& file = files[most];
    if (p_.space.WouldFit(count, freed - file.freed, privileged)) {
      freed -= file.freed;
    } else {
      chosen.push_back(file.inode);
    }
  }
  const auto committed = CommitFiles(chosen, CommitLevel::kDurable, {.kept = true}, nullptr);
  return committed || committed.error().code != ErrorCode::kShutdown;  // a file that failed has its old content again
}

// Dirty files hold the memory. FetchMemory writes back the files that have been dirty longest, until enough buffers are
// free, every dirty file is under writeback, or others wait, and goes on one by one while it waits itself.
// A waiting writer holds no buffers and takes small ones before stripes, so writers cannot deadlock.
void FileIo::FetchMemory(const WriteNeeds& needs, WriteSupplies* supplies) {
  const size_t small = supplies->small.size() + needs.small, stripes = supplies->stripes.size() + needs.stripes;
  do {
    if (p_.small.TryFill(small, &supplies->small) && p_.stripes.TryFill(stripes, &supplies->stripes)) return;
  } while (p_.write_back.RelievePressure() && !p_.small.AnyWaits() && !p_.stripes.AnyWaits());
  supplies->small.clear();
  supplies->stripes.clear();
  const auto relieve = [this] { p_.write_back.RelievePressure(); };
  p_.small.Fill(small, &supplies->small, relieve);
  p_.stripes.Fill(stripes, &supplies->stripes, relieve);
}

Result<void> FileIo::FetchContent(const InodePtr& inode, FileBlock block, WriteSupplies* supplies) {
  BlockContent content;
  content.block = block;
  content.bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockSize, kBlockSize)));
  if (!content.bytes) return ErrorCode::kNoMemory;
  std::erase_if(supplies->content, [&](const BlockContent& old) { return old.block == block; });
  const ReadEpoch epoch(p_.space);
  ChecksumSegments loaded;
  uint32_t checksum = 0;
  while (true) {
    std::vector<uint64_t> missing;
    {
      MutexLock lock(inode->mutex);
      if (inode->deleted) return ErrorCode::kStale;
      // Another write may have put the block in memory, and its own write may be in progress.
      if (inode->file->dirty().Find(block) != nullptr) return {};
      const auto piece = inode->file->extents().Lookup(block, BlockCount{1});
      if (!piece.IsWritten()) return {};  // the plan looks it up again
      content.extent = *piece.extent;
      ASSIGN_OR_RETURN(const bool found, inode->file->Checksums(block, {&checksum, 1}, loaded, &missing));
      if (found) break;
    }
    loaded.Load(p_.catalog, inode->id, missing);
  }
  RETURN_IF_ERROR(p_.reader.ReadBlock(inode->id, block, content.extent, checksum, {content.bytes.get(), kBlockSize}));
  supplies->content.push_back(std::move(content));
  return {};
}

void FileIo::Touch(const InodePtr& inode) {
  if (inode->file->Touch()) p_.commits.NoteChanged(inode);
  if (inode->file->NeedsCommit()) p_.commits.Commit(inode, CommitLevel::kOrdered, nullptr, {.settled = true});
}

void FileIo::Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done,
                  bool from_devices) {
  p_.reader.Read(inode, offset, size, stream, std::move(done), from_devices);
}

Result<ReadView> FileIo::Read(const InodePtr& inode, ByteOffset offset, ByteCount size) {
  return SyncWait<Result<ReadView>>([&](ReadDone done) { Read(inode, offset, size, nullptr, std::move(done)); });
}

void FileIo::DropCached(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  p_.cache.Invalidate(inode->id, 0, UINT64_MAX);
}

Result<void> FileIo::Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, Buffer holder) {
  Result<void> result;
  Write(inode, offset, data, holder, WriteReach::kAnywhere, [&](Result<void> done) { result = std::move(done); });
  return result;
}

void FileIo::Write(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data, const Buffer& holder,
                   WriteReach reach, const std::function<void(Result<void>)>& accepted) {
  PendingWrites writes;
  Result<void> result = CheckWritable(KvChange::kGrow);
  if (result) result = WriteSteps(inode, offset, data, holder, reach, &writes);
  accepted(std::move(result));
  p_.write_back.Submit(&writes);
}

void FileIo::WhenWritesBelow(ByteCount limit, std::function<void()> next) {
  p_.write_back.WhenBelow(limit, std::move(next));
}

Result<void> FileIo::WriteSteps(const InodePtr& inode, ByteOffset offset, std::span<const std::byte> data,
                                const Buffer& holder, WriteReach reach, PendingWrites* writes) {
  // Split the write into steps, so that every pool has enough buffers for all of one step.
  for (size_t at = 0; at < data.size(); at += kLargestStep) {
    const auto step = data.subspan(at, std::min<size_t>(kLargestStep, data.size() - at));
    uint64_t position = offset.value + at;
    p_.write_back.Submit(writes);
    RETURN_IF_ERROR(WriteStep(inode, &position, false, step, holder, reach, writes));
  }
  return {};
}

Result<ByteOffset> FileIo::Append(const InodePtr& inode, std::span<const std::byte> data) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  uint64_t offset = 0;
  PendingWrites writes;
  const auto written = WriteStep(inode, &offset, true, data, {}, WriteReach::kAnywhere, &writes);
  p_.write_back.Submit(&writes);
  RETURN_IF_ERROR(written);
  return ByteOffset{offset};
}

// Writes all of `data` or nothing, limited by `reach`. With `append`, sets `offset` to the end of the file.
Result<void> FileIo::WriteStep(const InodePtr& inode, uint64_t* offset, bool append, std::span<const std::byte> data,
                               const Buffer& holder, WriteReach reach, PendingWrites* writes) {
  uint64_t size = 0;
  bool adopt = false;
  const auto plan = [&](const File& file, WritePlan* out) -> Result<void> {
    const uint64_t file_size = inode->attributes.size;
    if (append) *offset = file_size;
    size = data.size();
    if (reach == WriteReach::kWithinFile) size = std::min(size, file_size - std::min(file_size, *offset));
    if (size == 0) return {};
    const uint64_t end = *offset + size;
    if (end > kMaximumFileSize || end < *offset) return ErrorCode::kFileTooBig;
    adopt = size >= kAdoptBytes && holder && data.data() == holder.data() + *offset % kBlockSize;
    if (adopt) {
      file.PlanAdoption(*offset, data.first(size), holder, out);
    } else {
      const bool stream = file.SequenceAt(*offset, end) >= kStreamBytes;
      file.PlanCopy(*offset, size, data.data(), stream ? Staging::kStripe : Staging::kSmall, out);
    }
    return {};
  };
  const auto apply = [&](File&, WritePlan ready) {
    if (size > 0) ApplyWrite(inode, *offset, size, adopt, std::move(ready), writes);
  };
  // Most blocks of a large write are new.
  const bool large = holder && data.size() >= kAdoptBytes;
  const BlockCount expected = large ? BlocksFor(ByteCount{data.size()}) : BlockCount{};
  RETURN_IF_ERROR(Change(inode, writes, plan, apply, expected));
  written_bytes_ += size;
  return {};
}

void FileIo::ApplyWrite(const InodePtr& inode, uint64_t offset, uint64_t size, bool adopted, WritePlan plan,
                        PendingWrites* writes) {
  File& file = *inode->file;
  const uint64_t end = offset + size;
  const uint64_t sequence = file.SequenceAt(offset, end);
  file.Apply(std::move(plan));
  file.NoteWritten(end, sequence);
  if (end > inode->attributes.size) file.SetSize(end);
  Touch(inode);
  // Write an adopted buffer back at once, together with small writes directly before it, so that they are allocated
  // together.
  if (adopted) p_.write_back.Start(inode, file.DirtyBefore(BlockOf(offset)), BlockOf(end), true, writes);
  // Write whole stripes back at once. Parts of a stream's stripe may have been written back already; the rest is then
  // allocated next to them.
  for (uint64_t stripe = BlockOf(offset).value / kStagingBlocks; (stripe + 1) * kStagingBlocks * kBlockSize <= end;
       ++stripe) {
    const FileBlock first{stripe * kStagingBlocks};
    const bool streamed = end - sequence <= first.value * kBlockSize;
    if (streamed || file.dirty().IsDirty(first, BlockCount{kStagingBlocks})) {
      const bool stream = sequence >= kStripeStaging.value;
      p_.write_back.Start(inode, first, first + BlockCount{kStagingBlocks}, stream, writes);
    }
  }
  p_.write_back.UpdateQueue(inode);
}

// A file may be replaced before the commit of its content, of which an earlier commit may have a part. Or again and
// again, each time before the commit of its complete content was due: the committed one is complete then, too.
bool FileIo::IsOverdue(Inode& inode) const {
  MutexLock lock(inode.mutex);
  if (!inode.file) return false;
  const CommitState& state = inode.file->commit();
  if (state.replacing()) return false;
  if (state.WasReplaced()) return CommitState::Clock::now() - state.first_replaced() >= p_.commit_interval;
  return state.uncommitted() && std::max(inode.committed.size, inode.attributes.size) > 0;
}

Result<void> FileIo::Truncate(const InodePtr& inode, uint64_t size, bool replace) {
  RETURN_IF_ERROR(CheckWritable(KvChange::kRemove));
  if (size > kMaximumFileSize) return ErrorCode::kFileTooBig;
  if (replace && IsOverdue(*inode)) {
    const std::vector<InodePtr> files = {inode};
    CommitSettledBeforeNaming(&files);
  }
  const auto plan = [&](const File& file, WritePlan* out) -> Result<void> {
    PlanShrink(file, inode->attributes.size, size, out);
    return {};
  };
  const auto apply = [&](File& file, WritePlan ready) {
    const bool replaces = size == 0 && replace && inode->committed.size > 0;
    file.Apply(std::move(ready));
    file.SetSize(size);
    if (replaces ? file.BeginReplacement() : file.Touch()) p_.commits.NoteChanged(inode);
    p_.write_back.UpdateQueue(inode);
  };
  return Change(inode, nullptr, plan, apply);
}

namespace {

bool IsUncommitted(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  return inode->file && !inode->deleted && inode->file->Uncommitted();
}

}  // namespace

std::vector<InodePtr> FileIo::UncommittedFiles() {
  std::vector<InodePtr> files = p_.commits.Uncommitted();
  std::erase_if(files, [](const InodePtr& inode) { return !IsUncommitted(inode); });
  return files;
}

Result<void> FileIo::CommitFiles(std::span<const InodePtr> files, CommitLevel level, CommitOptions options,
                                 InodePtr* failed) {
  std::vector<InodePtr> changed;
  std::copy_if(files.begin(), files.end(), std::back_inserter(changed), IsUncommitted);
  if (changed.size() == 1 && level == CommitLevel::kOrdered) {
    auto committed = p_.commits.CommitHere(changed[0], options);
    if (!committed && failed != nullptr) *failed = changed[0];
    return committed;
  }
  struct OneCommit {
    InodePtr inode;
    std::promise<Result<void>> done = {};
  };
  std::deque<OneCommit> commits;  // start all before waiting for the first
  for (const InodePtr& inode : changed) {
    auto& commit = commits.emplace_back(inode);
    p_.commits.Commit(
        inode, level, [&commit](Result<void> result) { commit.done.set_value(std::move(result)); }, options);
  }
  Result<void> first;
  for (auto& commit : commits) {
    Result<void> result = commit.done.get_future().get();
    if (!first) continue;
    if (!result && failed != nullptr) *failed = commit.inode;
    first = std::move(result);
  }
  return first;
}

Result<void> FileIo::CommitBeforeNaming(std::span<const InodePtr> files, bool kept, InodePtr* failed) {
  return CommitFiles(files, CommitLevel::kOrdered, {.kept = kept}, failed);
}

void FileIo::CommitSettledBeforeNaming(const std::vector<InodePtr>* files) {
  if (files == nullptr) {
    CommitAllAndWait(CommitLevel::kOrdered);
  } else {
    static_cast<void>(CommitFiles(*files, CommitLevel::kOrdered, {.kept = true, .settled = true}, nullptr).has_value());
  }
}

Result<void> FileIo::ReportErrors(std::span<const InodePtr> files, bool kept) {
  Result<void> first;
  for (const InodePtr& inode : files) {
    MutexLock lock(inode->mutex);
    if (!inode->file || inode->deleted) continue;
    WriteErrorState& state = inode->file->write_error();
    if (!state.error()) continue;
    if (first) first = *state.error();
    if (kept) continue;
    state.Report(state.failures());
    p_.commits.ForgetError(inode);
  }
  return first;
}

// Errors stay pending with their files.
void FileIo::CommitAllAndWait(CommitLevel level) const {
  const auto commit = [&](Done done) { p_.commits.CommitAll(level, std::move(done)); };
  static_cast<void>(SyncWait(commit).has_value());
}

bool FileIo::DeleteRecords(const InodePtr& inode, const DataRecords& records, KvBatch* batch) {
  if (!inode->file) return true;
  if (inode->committed.version != records.version) return false;
  if (records.restore && inode->file->Uncommitted()) return false;
  constexpr size_t kSingleDeletes = kSmallBatch / 40;  // with the checksums and attributes, at most kSmallBatch
  if (records.extents.size() > kSingleDeletes) {
    batch->DeleteRange(keys::ExtentPrefix(inode->id), keys::PrefixEnd(keys::ExtentPrefix(inode->id)));
  } else {
    for (const std::string& key : records.extents) batch->Delete(key);
  }
  DeleteChecksums(inode->id, 0, keys::SegmentsOf(records.size), batch);
  return true;
}

void FileIo::DropData(const InodePtr& inode, const DataRecords& records) {
  if (!inode->file) return;
  File& file = *inode->file;
  // A loaded file has its blocks in memory.
  std::vector<DeviceRun> runs = file.Drop(file.loaded() ? std::vector<DeviceRun>() : records.runs);
  p_.write_back.UpdateQueue(inode);
  p_.space.ReleasePreallocation(inode->id);
  p_.commits.AddDeleted(inode, std::move(runs));
}

}  // namespace weightfs

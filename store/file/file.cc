// SPDX-License-Identifier: Apache-2.0
// Mapping, size and commit of a file. See file_writes.cc for changes of its bytes and file_writeback.cc for writing
// them back.
#include "store/file/file.h"

#include <algorithm>

#include "common/assert.h"
#include "store/file/read_cache.h"

namespace weightfs {
namespace {

constexpr FileBlock kNoLimit{UINT64_MAX / kBlockSize};
constexpr size_t kLargeCommit = 32768;  // extent records; the catalog writes so many in about 25 ms

// In an entry of the log: the records of an inode, of an extent and of a checksum segment, without its checksums.
constexpr uint64_t kInodeBytes = 192, kExtentBytes = 64, kSegmentBytes = 40;

}  // namespace

void File::InvalidateCache(uint64_t offset, uint64_t end) { services_.cache.Invalidate(id_, offset, end); }

void File::CountLeaving() {
  const uint64_t before = std::exchange(counted_leaving_, leaving_ ? attributes_.blocks + reserved().value : 0);
  services_.space.AddLeaving(static_cast<int64_t>(counted_leaving_) - static_cast<int64_t>(before));
}

// At most what the entries of the changes that are not committed take. A dirty block may become an extent of its own,
// and a dirty range may split one on each side.
uint64_t File::EntryBytes() const {
  const uint64_t dirty = dirty_.dirty().value, ranges = dirty_.ranges().size(), changes = extents_.changes();
  const uint64_t segments = checksums_.changed_segments() + dirty / keys::kSegmentBlocks + ranges;
  if (segments + changes == 0) return sealed_bytes_;
  const uint64_t extents = changes + dirty + 2 * std::min(ranges, extents_.size());
  const uint64_t checksums = std::min(segments * keys::kSegmentBlocks, BlocksFor(ByteCount{attributes_.size}).value);
  return sealed_bytes_ + kInodeBytes + extents * kExtentBytes + segments * kSegmentBytes + checksums * sizeof(uint32_t);
}

void File::CountUncommitted() {
  const uint64_t before = std::exchange(counted_uncommitted_, EntryBytes());
  if (counted_uncommitted_ == before) return;
  services_.space.AddUncommitted(static_cast<int64_t>(counted_uncommitted_) - static_cast<int64_t>(before));
}

File::~File() {
  extents_.Clear();
  CountExtents();
}

void File::Load(ExtentMap extents) {
  WEIGHTFS_ASSERT(!loaded_ && dirty_.ranges().empty());
  attributes_.blocks = extents.mapped().value;
  extents_ = std::move(extents);
  loaded_ = true;
  CountExtents();
}

std::optional<DeviceRun> File::RunBefore(FileBlock first) const {
  if (first.value == 0) return std::nullopt;
  const auto before = extents_.Lookup(first - BlockCount{1}, BlockCount{1});
  if (!before.extent) return std::nullopt;
  return DeviceRun{before.extent->device, {before.extent->start, BlockCount{1}}};
}

bool File::Touch() {
  attributes_.modified = attributes_.changed = Timestamp::Now();
  return commit_.Change();
}

bool File::BeginReplacement() {
  needed_commit_ = false;  // an early commit leaves it out
  attributes_.modified = attributes_.changed = Timestamp::Now();
  return commit_.Replace(CommitState::Clock::now());
}

void File::Unmap(FileBlock first, FileBlock end) {
  if (end <= first) return;
  MappingUpdate update(*this);
  InvalidateCache(ToBytes(first).value, end >= kNoLimit ? UINT64_MAX : ToBytes(end).value);
  dirty_.Remove(first, end - first);
  extents_.Unmap(first, end - first, &freed_);
  reservation_.TrimTo(dirty_.dirty());
}

void File::SetSize(uint64_t size) {
  const uint64_t old = attributes_.size;
  if (size < old) {
    shrunk_to_ = std::min(shrunk_to_, size);
    write_next_ = write_sequence_ = 0;
  }
  // Blocks beyond the end may be allocated (fallocate with KEEP_SIZE). Shrinking or setting the same size unmaps them
  // too.
  if (size <= old) Unmap(BlockEnd(size), kNoLimit);
  InvalidateCache(std::min(old, size), UINT64_MAX);
  attributes_.size = size;
}

void File::MapNew(FileBlock first, const DeviceRun& run, uint32_t flags) {
  extents_.Map(first, run, flags, attributes_.data_version + 1, &freed_);
  new_.push_back(run);
}

void File::MapUnwritten(FileBlock first, std::span<const DeviceRun> runs) {
  MappingUpdate update(*this);
  for (const DeviceRun& run : runs) {
    WEIGHTFS_ASSERT(!extents_.Lookup(first, run.run.count).extent);
    MapNew(first, run, kExtentUnwritten);
    first += run.run.count;
  }
}

void File::ReplaceBlocks(FileBlock first, std::span<const DeviceRun> runs, std::span<const uint32_t> checksums) {
  const BlockCount count{checksums.size()};
  // An older write of these blocks must not set its checksums after the new ones.
  ComputePendingChecksums(first, count);
  Unmap(first, first + count);
  MappingUpdate update(*this);
  FileBlock at = first;
  for (const DeviceRun& run : runs) {
    MapNew(at, run, 0);
    at += run.run.count;
  }
  WEIGHTFS_ASSERT(at - first == count);
  checksums_.Set(first, checksums);
  flush_first_ = true;
}

bool File::NeedsCommit() {
  if (extents_.changes() < kLargeCommit || commit_.replacing()) return false;
  return !std::exchange(needed_commit_, true);
}

std::optional<SealedFile> File::Seal() {
  if (!commit_.changed()) return std::nullopt;
  WEIGHTFS_ASSERT(writes_before_seal_ == 0);
  commit_.Seal();
  sealed_bytes_ = EntryBytes();
  SealedFile sealed;
  sealed.changes = extents_.TakeChanges();
  CountExtents();
  sealed.freed = std::exchange(freed_, {});
  sealed_ = std::exchange(new_, {});
  sealed.size = attributes_.size;
  sealed.blocks = extents_.mapped().value;
  sealed.version = ++attributes_.data_version;
  sealed.shrunk_to = std::exchange(shrunk_to_, UINT64_MAX);
  sealed.flush_first = std::exchange(flush_first_, false);
  needed_commit_ = false;
  ComputePendingChecksums(FileBlock{0}, BlockCount{UINT64_MAX});
  checksums_.Seal(sealed.size);
  writes_before_seal_ = std::exchange(writes_since_seal_, 0);
  ++seals_;
  return sealed;
}

void File::WaitForSealedWrites(MutexLock& lock) {
  drained_.wait(lock.native(), [&] { return writes_before_seal_ == 0; });
}

void File::WaitForAllWrites(MutexLock& lock) {
  drained_.wait(lock.native(), [&] { return writes_before_seal_ + writes_since_seal_ == 0; });
}

void File::WaitForRange(MutexLock& lock, FileBlock first, BlockCount count) {
  const uint64_t next = next_write_;
  ++range_waiters_;
  drained_.wait(lock.native(), [&] { return !dirty_.HasWriteback(first, count, next); });
  --range_waiters_;
}

BlockCount File::WithoutExtent() const {
  BlockCount count;
  for (const auto& [begin, range] : dirty_.ranges()) {
    extents_.ForEachPiece(FileBlock{begin}, FileBlock{range.end}, [&](const ExtentMap::Piece& piece) {
      if (!piece.extent) count += piece.count;
      return true;
    });
  }
  return count;
}

void File::WaitForCommit(MutexLock& lock, const std::atomic<bool>& failed) {
  drained_.wait(lock.native(), [&] { return !commit_.committing() || failed.load(); });
}

void File::FinishCommit() {
  checksums_.FinishCommit();
  sealed_.clear();
  sealed_bytes_ = 0;
  CountUncommitted();
  commit_.Committed();
  WakeCommits();
}

void File::ForgetContent() {
  MappingUpdate update(*this);
  extents_.Clear();
  checksums_.Clear();
  pending_checksums_.clear();
  dirty_.Clear();
  reservation_.TrimTo({});
  freed_.clear();
  new_.clear();
  sealed_.clear();
  sealed_bytes_ = 0;
  shrunk_to_ = UINT64_MAX;
  flush_first_ = needed_commit_ = false;
  commit_.Revert();
  WakeCommits();
}

std::vector<DeviceRun> File::Revert(uint64_t committed_size, uint64_t committed_blocks) {
  WEIGHTFS_ASSERT(writes_before_seal_ + writes_since_seal_ == 0);
  std::vector<DeviceRun> unused = std::exchange(new_, {});
  unused.insert(unused.end(), sealed_.begin(), sealed_.end());
  ForgetContent();
  InvalidateCache(0, UINT64_MAX);
  loaded_ = false;
  write_error_.Revert();
  attributes_.size = committed_size;
  attributes_.blocks = committed_blocks;
  attributes_.changed = Timestamp::Now();  // leases of the content that is gone tell it from this one
  services_.space.AddUsed(static_cast<int64_t>(committed_blocks));
  CountLeaving();
  return unused;
}

std::vector<DeviceRun> File::Drop(std::vector<DeviceRun> committed) {
  SetLeaving(false);
  if (loaded_) {
    WEIGHTFS_ASSERT(committed.empty());
    extents_.ForEachPiece(FileBlock{0}, kNoLimit, [&](const ExtentMap::Piece& piece) {
      if (piece.extent) committed.push_back({piece.extent->device, {piece.extent->start, piece.count}});
      return true;
    });
  } else {
    for (const DeviceRun& run : committed) services_.space.AddUsed(-static_cast<int64_t>(run.run.count.value));
  }
  committed.insert(committed.end(), freed_.begin(), freed_.end());
  ForgetContent();
  InvalidateCache(0, UINT64_MAX);
  loaded_ = true;  // empty: no catalog record belongs to it any more
  return committed;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/scrub/data_scrub.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/checksum.h"
#include "meta/keys.h"

namespace weightfs {
namespace {

// A snapshot keeps obsolete tables of the catalog on disk, so it is renewed after this many steps.
constexpr uint64_t kStepsOfSnapshot = 64;
// The number of lookups of a block whose mapping changes meanwhile.
constexpr int kLookups = 4;

}  // namespace

Result<std::unique_ptr<DataScrub>> DataScrub::Create(KvStore& catalog, DeviceSet& devices, SpaceManager& space) {
  static_assert(kStep.value == keys::kSegmentBlocks * kBlockSize);
  ASSIGN_OR_RETURN(HugePageMemory memory, HugePageMemory::Map(kStep.value));
  return std::unique_ptr<DataScrub>(new DataScrub(catalog, devices, space, std::move(memory)));
}

Result<DataScrub::Step> DataScrub::Next(const ScrubPosition& from) {
  if (extents_ == nullptr || ++steps_ >= kStepsOfSnapshot) TakeSnapshot(from);
  while (true) {
    Step step;
    ASSIGN_OR_RETURN(const auto run, FindRun(from, &step.record));
    if (!run) {
      // Files may have been created since the snapshot; their inode numbers are greater than all others.
      if (steps_ == 0) {
        step.end = true;
        return step;
      }
      TakeSnapshot(from);
      continue;
    }
    ASSIGN_OR_RETURN(const auto differing, Compare(*run));
    if (!differing.empty() && steps_ > 0) {
      TakeSnapshot(from);  // most differences are files that have changed
      continue;
    }
    step.next = {run->ino, run->first + run->count};
    step.read = ToBytes(run->count);
    for (const FileBlock block : differing) {
      ASSIGN_OR_RETURN(const auto damaged, Confirm(run->ino, block));
      if (!damaged) continue;
      DamagedRun* last = step.damaged.empty() ? nullptr : &step.damaged.back();
      if (last != nullptr && last->problem == damaged->problem && last->first + last->count == damaged->first &&
          last->device == damaged->device && last->start + last->count == damaged->start) {
        last->count += damaged->count;
      } else {
        step.damaged.push_back(*damaged);
      }
    }
    return step;
  }
}

void DataScrub::TakeSnapshot(const ScrubPosition& from) {
  extents_ = catalog_.NewIterator(keys::KindPrefix(keys::kExtent));
  checksums_ = catalog_.NewIterator(keys::KindPrefix(keys::kChecksums));
  steps_ = 0;
  values_.clear();
  segment_ino_ = {};
  // The extent that contains the position may begin before it.
  const uint64_t before = std::min(from.block.value, kMaximumExtentBlocks - 1);
  extents_->Seek(keys::Extent(from.ino, from.block - BlockCount{before}));
}

// Returns the next run of written blocks at or after `from`; nullopt at the end. Skips records that are damaged.
Result<std::optional<DataScrub::Run>> DataScrub::FindRun(const ScrubPosition& from,
                                                         std::optional<std::string>* damaged) {
  for (; extents_->Valid(); extents_->Next()) {
    const auto key = keys::ParseIndexed(extents_->key());
    if (!key) continue;  // fsck reports it
    const auto record = ExtentRecord::Decode(extents_->key(), extents_->value());
    const DeviceRun place = record ? DeviceRun{record->device, {record->start, record->count}} : DeviceRun{};
    if (!record || !IsOnDevice(place)) {
      *damaged = fmt::format("the extent of inode {} at byte {}", key->ino.value, key->index * kBlockSize);
      continue;
    }
    const FileBlock start{key->index}, end = start + record->count;
    const bool begun = key->ino == from.ino && start < from.block;
    if (key->ino < from.ino || (begun && end <= from.block) || (record->flags & kExtentUnwritten) != 0) continue;
    const FileBlock first = begun ? from.block : start;
    const FileBlock boundary{(first.value / keys::kSegmentBlocks + 1) * keys::kSegmentBlocks};
    const BlockCount count = std::min(end, boundary) - first;
    return std::optional(Run{key->ino, first, count, {place.device, {place.run.start + (first - start), count}}});
  }
  RETURN_IF_ERROR(extents_->status());
  return std::optional<Run>();
}

bool DataScrub::IsOnDevice(const DeviceRun& run) {
  return run.device.value < devices_.size() && ToBytes(run.run.end()).value <= devices_[run.device].size().value;
}

// Returns the checksums of a segment in the snapshot; empty if they are missing or damaged.
Result<const std::vector<uint32_t>*> DataScrub::Checksums(InodeId ino, uint64_t segment) {
  if (segment_ino_ == ino && segment_ == segment) return &values_;
  const std::string key = keys::Checksums(ino, segment);
  if (!checksums_->Valid() || checksums_->key() != key) checksums_->Seek(key);
  if (!checksums_->Valid()) RETURN_IF_ERROR(checksums_->status());
  segment_ino_ = ino;
  segment_ = segment;
  values_.clear();
  if (checksums_->Valid() && checksums_->key() == key) {
    if (auto decoded = DecodeChecksums(checksums_->value())) values_ = std::move(*decoded);
    checksums_->Next();
  }
  return &values_;
}

Result<std::vector<FileBlock>> DataScrub::Compare(const Run& run) {
  ASSIGN_OR_RETURN(const auto* expected, Checksums(run.ino, run.first.value / keys::kSegmentBlocks));
  const std::span<std::byte> data(memory_.data(), ToBytes(run.count).value);
  const bool readable = devices_[run.place.device].Read(ToBytes(run.place.run.start), data).has_value();
  std::vector<uint32_t> actual(run.count.value);
  if (readable) Crc32cBlocks(data, actual.data());
  std::vector<FileBlock> differing;
  for (uint64_t i = 0; i < run.count.value; ++i) {
    const uint64_t index = run.first.value % keys::kSegmentBlocks + i;
    if (readable && index < expected->size() && actual[i] == (*expected)[index]) continue;
    differing.push_back(run.first + BlockCount{i});
  }
  return differing;
}

Result<std::optional<DataScrub::Location>> DataScrub::Locate(InodeId ino, FileBlock block) {
  const auto extents = catalog_.NewIterator(keys::ExtentPrefix(ino));
  extents->Seek(keys::Extent(ino, block - BlockCount{std::min(block.value, kMaximumExtentBlocks - 1)}));
  for (; extents->Valid(); extents->Next()) {
    const auto key = keys::ParseIndexed(extents->key());
    const auto record = ExtentRecord::Decode(extents->key(), extents->value());
    if (!key || !record) continue;
    const FileBlock start{key->index};
    if (start > block) break;
    if (start + record->count <= block) continue;
    if ((record->flags & kExtentUnwritten) != 0) break;
    return std::optional(Location{record->device, record->start + (block - start)});
  }
  if (!extents->Valid()) RETURN_IF_ERROR(extents->status());
  return std::optional<Location>();
}

Result<std::optional<DamagedRun>> DataScrub::Confirm(InodeId ino, FileBlock block) {
  const uint64_t segment = block.value / keys::kSegmentBlocks, index = block.value % keys::kSegmentBlocks;
  for (int lookup = 0; lookup < kLookups; ++lookup) {
    const ReadEpoch epoch(space_);
    ASSIGN_OR_RETURN(const auto location, Locate(ino, block));
    if (!location) return std::optional<DamagedRun>();
    ASSIGN_OR_RETURN(const auto record, catalog_.Get(keys::Checksums(ino, segment)));
    // A commit changes the extent of each block whose checksum it changes. So if the block is still mapped to the same
    // place, the checksum is that of its content.
    ASSIGN_OR_RETURN(const auto after, Locate(ino, block));
    if (after != location) continue;
    DamagedRun damaged{DamagedRun::Problem::kNoChecksum, ino, block, BlockCount{1}, location->device, location->block};
    const auto checksums = record ? DecodeChecksums(*record) : Result<std::vector<uint32_t>>(ErrorCode::kCorrupt);
    if (!checksums || index >= checksums->size()) return std::optional(damaged);
    const ReadOutcome outcome = ReadVerified((*checksums)[index], [&]() -> Result<uint32_t> {
      const std::span<std::byte> data(memory_.data(), kBlockSize);
      RETURN_IF_ERROR(devices_[location->device].Read(ToBytes(location->block), data));
      return Crc32c(data);
    });
    if (outcome == ReadOutcome::kIntact) return std::optional<DamagedRun>();
    damaged.problem = outcome == ReadOutcome::kMismatch ? DamagedRun::Problem::kMismatch
                                                        : DamagedRun::Problem::kUnreadable;
    return std::optional(damaged);
  }
  return std::optional<DamagedRun>();  // it is being rewritten all the time, so the next scrub checks it
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/file/checksum_table.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "meta/records.h"

namespace weightfs {

void DeleteChecksums(InodeId ino, uint64_t first, uint64_t end, KvBatch* batch) {
  // Range deletions slow down every later iteration, so use one only when it replaces many single deletions.
  constexpr uint64_t kSingleDeletes = 256;
  if (first < end && end - first > kSingleDeletes) {
    batch->DeleteRange(keys::Checksums(ino, first), keys::Checksums(ino, end));
    return;
  }
  for (uint64_t segment = first; segment < end; ++segment) batch->Delete(keys::Checksums(ino, segment));
}

void ChecksumTable::Set(FileBlock first, std::span<const uint32_t> checksums) {
  uint64_t block = first.value;
  for (size_t at = 0; at < checksums.size();) {
    auto& segment = fresh_[block / keys::kSegmentBlocks];
    if (!segment) segment = std::make_unique<Segment>();
    for (uint64_t index = block % keys::kSegmentBlocks; index < keys::kSegmentBlocks && at < checksums.size();
         ++index, ++at, ++block) {
      segment->known.set(index);
      segment->checksums[index] = checksums[at];
    }
  }
}

void ChecksumSegments::SetVersion(uint64_t version) {
  if (version_ != version) segments_.clear();
  version_ = version;
}

void ChecksumSegments::Load(KvStore& catalog, InodeId ino, std::span<const uint64_t> segments) {
  const auto read = [&](uint64_t segment) -> Segment {
    ASSIGN_OR_RETURN(const auto bytes, catalog.Get(keys::Checksums(ino, segment)));
    return bytes ? DecodeChecksums(*bytes) : Segment(std::vector<uint32_t>());
  };
  for (const uint64_t segment : segments) {
    if (!segments_.contains(segment)) segments_.emplace(segment, read(segment));
  }
}

Result<const std::vector<uint32_t>*> ChecksumTable::Stored(uint64_t segment, ChecksumSegments& loaded) {
  if (const auto* found = cached_.Find(segment)) return found;
  loaded.SetVersion(version_);
  const auto found = loaded.segments_.find(segment);
  if (found == loaded.segments_.end()) return static_cast<const std::vector<uint32_t>*>(nullptr);
  if (!found->second) return found->second.error();
  cached_.Add(segment, *found->second);
  return static_cast<const std::vector<uint32_t>*>(&*found->second);
}

const std::vector<uint32_t>* ChecksumTable::Cache::Find(uint64_t segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? nullptr : &found->second;
}

void ChecksumTable::Cache::Add(uint64_t segment, const std::vector<uint32_t>& checksums) {
  // Any segment may be evicted: a stream needs none of them again, and random reads need any.
  if (segments_.size() >= kOwn && total_.load(std::memory_order_relaxed) >= kShared) Erase(segments_.begin()->first);
  if (segments_.insert_or_assign(segment, checksums).second) total_.fetch_add(1, std::memory_order_relaxed);
}

void ChecksumTable::Cache::Erase(uint64_t segment) {
  total_.fetch_sub(segments_.erase(segment), std::memory_order_relaxed);
}

void ChecksumTable::Cache::Clear() {
  total_.fetch_sub(segments_.size(), std::memory_order_relaxed);
  segments_.clear();
}

Result<bool> ChecksumTable::Get(FileBlock first, std::span<uint32_t> out, ChecksumSegments& loaded,
                                std::vector<uint64_t>* missing) {
  const auto layer_segment = [](const Layer& layer, uint64_t number) -> const Segment* {
    const auto found = layer.find(number);
    return found == layer.end() ? nullptr : found->second.get();
  };
  bool complete = true;
  uint64_t block = first.value;
  for (size_t at = 0; at < out.size();) {
    const uint64_t number = block / keys::kSegmentBlocks;
    const Segment* fresh = layer_segment(fresh_, number);
    const Segment* sealed = layer_segment(sealed_, number);
    const std::vector<uint32_t>* stored = nullptr;
    bool lacking = false;
    for (uint64_t index = block % keys::kSegmentBlocks; index < keys::kSegmentBlocks && at < out.size();
         ++index, ++at, ++block) {
      if (fresh != nullptr && fresh->known[index]) {
        out[at] = fresh->checksums[index];
      } else if (sealed != nullptr && sealed->known[index]) {
        out[at] = sealed->checksums[index];
      } else if (!lacking) {
        if (stored == nullptr) {
          ASSIGN_OR_RETURN(stored, Stored(number, loaded));
        }
        lacking = stored == nullptr;
        if (lacking) continue;
        if (index >= stored->size()) return ErrorCode::kCorrupt;
        out[at] = (*stored)[index];
      }
    }
    if (lacking) missing->push_back(number);
    complete = complete && !lacking;
  }
  return complete;
}

void ChecksumTable::Seal(uint64_t size) {
  WEIGHTFS_ASSERT(sealed_.empty());
  fresh_.erase(fresh_.lower_bound(keys::SegmentsOf(size)), fresh_.end());
  std::swap(fresh_, sealed_);
}

Result<bool> ChecksumTable::AppendSealed(InodeId ino, uint64_t deleted, ChecksumSegments& loaded,
                                         std::vector<uint64_t>* missing, KvBatch* batch) {
  const size_t lacking = missing->size();
  std::vector<std::pair<uint64_t, std::vector<uint32_t>>> merged;
  for (const auto& [number, segment] : sealed_) {
    std::vector<uint32_t> checksums;
    if (!segment->known.all() && number < deleted) {
      ASSIGN_OR_RETURN(const auto* stored, Stored(number, loaded));
      if (stored == nullptr) {
        missing->push_back(number);
        continue;
      }
      checksums = *stored;
    }
    size_t size = keys::kSegmentBlocks;
    while (size > 0 && !segment->known[size - 1]) --size;
    checksums.resize(std::max(size, checksums.size()));
    for (size_t index = 0; index < size; ++index) {
      if (segment->known[index]) checksums[index] = segment->checksums[index];
    }
    merged.emplace_back(number, std::move(checksums));
  }
  if (missing->size() > lacking) return false;
  for (const auto& [number, checksums] : merged) batch->Put(keys::Checksums(ino, number), EncodeChecksums(checksums));
  return true;
}

void ChecksumTable::FinishCommit() {
  for (const auto& [number, segment] : sealed_) cached_.Erase(number);
  sealed_.clear();
  ++version_;
}

void ChecksumTable::Clear() {
  fresh_.clear();
  sealed_.clear();
  cached_.Clear();
  ++version_;
}

}  // namespace weightfs

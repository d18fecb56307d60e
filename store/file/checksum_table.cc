// SPDX-License-Identifier: Apache-2.0
#include "store/file/checksum_table.h"

#include <algorithm>

#include "meta/records.h"

namespace weightfs {

void DeleteChecksums(InodeId ino, uint64_t first, uint64_t end, KvBatch* batch) {
  // Range deletions slow every later iteration: only where they spare many single ones.
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

Result<const std::vector<uint32_t>*> ChecksumTable::Catalog(KvStore& catalog, InodeId ino, uint64_t segment) {
  if (const auto* found = cached_.Find(segment)) return found;
  ASSIGN_OR_RETURN(auto bytes, catalog.Get(keys::Checksums(ino, segment)));
  std::vector<uint32_t> checksums;
  if (bytes) {
    ASSIGN_OR_RETURN(checksums, DecodeChecksums(*bytes));
  }
  return cached_.Add(segment, std::move(checksums));
}

const std::vector<uint32_t>* ChecksumTable::Cache::Find(uint64_t segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? nullptr : &found->second;
}

const std::vector<uint32_t>* ChecksumTable::Cache::Add(uint64_t segment, std::vector<uint32_t> checksums) {
  // Whichever goes is as good as any other: a stream needs none of them again, random reads any.
  if (segments_.size() >= kOwn && total_.load(std::memory_order_relaxed) >= kShared) Erase(segments_.begin()->first);
  const auto [entry, added] = segments_.insert_or_assign(segment, std::move(checksums));
  if (added) total_.fetch_add(1, std::memory_order_relaxed);
  return &entry->second;
}

void ChecksumTable::Cache::Erase(uint64_t segment) {
  total_.fetch_sub(segments_.erase(segment), std::memory_order_relaxed);
}

void ChecksumTable::Cache::Clear() {
  total_.fetch_sub(segments_.size(), std::memory_order_relaxed);
  segments_.clear();
}

Result<void> ChecksumTable::Get(KvStore& catalog, InodeId ino, FileBlock first, std::span<uint32_t> out) {
  const auto layer_segment = [](const Layer& layer, uint64_t number) -> const Segment* {
    const auto found = layer.find(number);
    return found == layer.end() ? nullptr : found->second.get();
  };
  uint64_t block = first.value;
  for (size_t at = 0; at < out.size();) {
    const uint64_t number = block / keys::kSegmentBlocks;
    const Segment* fresh = layer_segment(fresh_, number);
    const Segment* sealed = layer_segment(sealed_, number);
    const std::vector<uint32_t>* stored = nullptr;
    for (uint64_t index = block % keys::kSegmentBlocks; index < keys::kSegmentBlocks && at < out.size();
         ++index, ++at, ++block) {
      if (fresh != nullptr && fresh->known[index]) {
        out[at] = fresh->checksums[index];
      } else if (sealed != nullptr && sealed->known[index]) {
        out[at] = sealed->checksums[index];
      } else {
        if (stored == nullptr) {
          ASSIGN_OR_RETURN(stored, Catalog(catalog, ino, number));
        }
        if (index >= stored->size()) return ErrorCode::kCorrupt;
        out[at] = (*stored)[index];
      }
    }
  }
  return {};
}

void ChecksumTable::Seal(uint64_t size) {
  fresh_.erase(fresh_.lower_bound(keys::SegmentsOf(size)), fresh_.end());
  std::swap(fresh_, sealed_);
}

Result<void> ChecksumTable::AppendSealed(KvStore& catalog, InodeId ino, KvBatch* batch) {
  for (const auto& [number, segment] : sealed_) {
    size_t size = keys::kSegmentBlocks;
    while (size > 0 && !segment->known[size - 1]) --size;
    std::vector<uint32_t> merged;
    if (segment->known.count() != keys::kSegmentBlocks) {
      ASSIGN_OR_RETURN(const auto* stored, Catalog(catalog, ino, number));
      merged = *stored;
    }
    merged.resize(std::max(size, merged.size()));
    for (size_t index = 0; index < size; ++index) {
      if (segment->known[index]) merged[index] = segment->checksums[index];
    }
    batch->Put(keys::Checksums(ino, number), EncodeChecksums(merged));
  }
  return {};
}

void ChecksumTable::DropSealed() {
  for (const auto& [number, segment] : sealed_) cached_.Erase(number);
  sealed_.clear();
}

void ChecksumTable::Clear() {
  fresh_.clear();
  sealed_.clear();
  cached_.Clear();
}

}  // namespace weightfs

#include "store/checksum_table.h"

#include <algorithm>

#include "meta/records.h"

namespace weightfs {

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
  if (const auto found = cached_.find(segment); found != cached_.end()) return &found->second;
  ASSIGN_OR_RETURN(auto bytes, catalog.Get(keys::Checksums(ino, segment)));
  std::vector<uint32_t> checksums;
  if (bytes) {
    ASSIGN_OR_RETURN(checksums, DecodeChecksums(*bytes));
  }
  // A stream leaves its segments behind it in order: the lowest is the oldest.
  if (cached_.size() >= kCachedSegments) cached_.erase(segment > cached_.begin()->first ? cached_.begin() : std::prev(cached_.end()));
  return &(cached_[segment] = std::move(checksums));
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

void ChecksumTable::Seal() { std::swap(fresh_, sealed_); }

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
  for (const auto& [number, segment] : sealed_) cached_.erase(number);
  sealed_.clear();
}

void ChecksumTable::Clear() {
  fresh_.clear();
  sealed_.clear();
  cached_.clear();
}

}  // namespace weightfs

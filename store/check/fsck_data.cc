// SPDX-License-Identifier: Apache-2.0
// Checks of data records: extents, checksums, and with verify_data the blocks themselves.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/checksum.h"
#include "engine/superblock.h"
#include "store/check/fsck_internal.h"
#include "store/types.h"

namespace weightfs::fsck {
namespace {

constexpr uint64_t kMaximumFileBlocks = kMaximumFileSize / kBlockSize;

std::string Where(const Extent& extent) {
  return fmt::format("the extent of bytes {} to {} (device {}, block {})", extent.first * kBlockSize,
                     extent.end() * kBlockSize - 1, extent.record.device.value, extent.record.start.value);
}

// Empty if they are missing or damaged.
Result<std::vector<uint32_t>> ReadChecksums(KvStore& catalog, InodeId ino, uint64_t segment) {
  ASSIGN_OR_RETURN(const auto bytes, catalog.Get(keys::Checksums(ino, segment)));
  return bytes ? DecodeChecksums(*bytes).value_or(std::vector<uint32_t>()) : std::vector<uint32_t>();
}

ByteOffset Physical(const Extent& extent, uint64_t block) {
  return ToBytes(extent.record.start + BlockCount{block - extent.first});
}

}  // namespace

Result<void> Checker::ScanExtents() {
  return ForEach(keys::kExtent, "extents",
                 [&](std::string_view key, std::string_view value) { return TakeExtent(key, value); });
}

DeviceBlock Checker::EndOf(DeviceId device) const {
  ByteCount size = devices_[device.value]->size();
  if (device.value < options_.device_sizes.size()) size = std::min(size, options_.device_sizes[device.value]);
  return {size.value / kBlockSize};
}

Result<void> Checker::TakeExtent(std::string_view key, std::string_view value) {
  ++report_.extents;
  const auto parsed = keys::ParseIndexed(key);
  if (!parsed) {
    return Reject(key, FindingKind::kDamagedKey, 0, fmt::format("a key of {} bytes names no extent", key.size()));
  }
  const uint64_t ino = parsed->ino.value;
  const auto record = ExtentRecord::Decode(key, value);
  Node* const node = Find(ino);
  if (!record) {
    return Reject(key, FindingKind::kDamagedRecord, ino,
                  fmt::format("the extent at byte {} cannot be decoded: what lay there is lost",
                              parsed->index * kBlockSize));
  }
  const Extent extent{ino, parsed->index, *record};
  if (node == nullptr || !node->IsRegular()) {
    return Reject(key, FindingKind::kStrayRecord, ino, fmt::format("is no file, but has {}", Where(extent)));
  }
  const bool on_device = record->device.value < devices_.size() && record->start.value >= kDataOffset / kBlockSize &&
                         record->start + record->count <= EndOf(record->device);
  if (!on_device || extent.end() > kMaximumFileBlocks) {
    return Reject(key, FindingKind::kExtentOutside, ino,
                  fmt::format("{} lies outside the {}", Where(extent), on_device ? "largest file" : "devices"));
  }
  node->version = std::max(node->version, record->generation);
  extents_.push_back(extent);
  return {};
}

// Checks overlaps inside each file, then on each device. Of two overlapping extents, drops the one of the older
// generation.
void Checker::CheckOverlaps() {
  const auto compare = [&](Extent* before, Extent* next, const char* where) {
    Extent* loser = next->record.generation > before->record.generation ? before : next;
    Report(FindingKind::kExtentOverlap, loser->ino,
           fmt::format("{} overlaps another of inode {} {}", Where(*loser), loser == next ? before->ino : next->ino,
                       where));
    loser->dropped = true;
    Drop(keys::Extent(InodeId{loser->ino}, FileBlock{loser->first}));
    return loser == next ? before : next;
  };
  Extent* last = nullptr;
  for (Extent& extent : extents_) {
    const bool overlaps = last != nullptr && last->ino == extent.ino && extent.first < last->end();
    last = overlaps ? compare(last, &extent, "in the file") : &extent;
  }

  std::vector<Extent*> order;
  order.reserve(extents_.size());
  for (Extent& extent : extents_) {
    if (!extent.dropped) order.push_back(&extent);
  }
  std::sort(order.begin(), order.end(), [](const Extent* a, const Extent* b) {
    return std::pair(a->record.device, a->record.start) < std::pair(b->record.device, b->record.start);
  });
  last = nullptr;
  for (Extent* extent : order) {
    const bool overlaps = last != nullptr && last->record.device == extent->record.device &&
                          extent->record.start < last->record.start + last->record.count;
    last = overlaps ? compare(last, extent, "on the device") : extent;
  }

  std::erase_if(extents_, [](const Extent& extent) { return extent.dropped; });
  for (const Extent& extent : extents_) {
    Node& node = *Find(extent.ino);
    node.found_blocks += extent.record.count.value;
    node.found_end = std::max(node.found_end, extent.end());
    report_.mapped_blocks += extent.record.count;
  }
}

// Returns the next segment, in key order, that written extents need; nullopt after the last one.
std::optional<Segment> Checker::NextSegment() {
  std::optional<Segment> found;
  for (; segment_extent_ < extents_.size(); ++segment_extent_) {
    const Extent& extent = extents_[segment_extent_];
    if (!extent.IsWritten()) continue;
    const uint64_t block = std::max(extent.first, segment_next_);
    const uint64_t segment = block / keys::kSegmentBlocks;
    if (found && (found->ino != extent.ino || found->segment != segment)) return found;
    const uint64_t end = std::min(extent.end(), (segment + 1) * keys::kSegmentBlocks);
    found = Segment{extent.ino, segment, end - segment * keys::kSegmentBlocks};
    segment_next_ = end;
    if (end < extent.end()) return found;
    segment_next_ = 0;
  }
  return found;
}

// Walks the checksum records and the required segments in parallel; both are in key order.
Result<void> Checker::ScanChecksums() {
  auto needed = NextSegment();
  const auto missing = [&] {
    Report(FindingKind::kMissingChecksums, needed->ino,
           fmt::format("the checksums of the data from byte {} on are missing or damaged",
                       needed->segment * keys::kSegmentBlocks * kBlockSize));
    missing_checksums_.push_back(*needed);
    needed = NextSegment();
  };
  const auto visit = [&](std::string_view key, std::string_view value) -> Result<void> {
    const auto parsed = keys::ParseIndexed(key);
    if (!parsed) {
      return Reject(key, FindingKind::kDamagedKey, 0, fmt::format("a key of {} bytes names no checksums", key.size()));
    }
    const std::pair here(parsed->ino.value, parsed->index);
    while (needed && std::pair(needed->ino, needed->segment) < here) missing();
    const bool wanted = needed && std::pair(needed->ino, needed->segment) == here;
    const auto checksums = DecodeChecksums(value);
    const Node* node = Find(parsed->ino.value);
    if (wanted) {
      if (checksums && checksums->size() >= needed->entries) {
        needed = NextSegment();
      } else {
        missing();
      }
      return {};
    }
    if (node == nullptr || !node->IsRegular()) {
      return Reject(key, FindingKind::kStrayRecord, parsed->ino.value, "is no file, but has checksums");
    }
    if (!checksums) {
      return Reject(key, FindingKind::kDamagedRecord, node->ino,
                    fmt::format("the checksums of segment {} cannot be decoded", parsed->index));
    }
    if (parsed->index < keys::SegmentsOf(node->SizeAfterRepair())) return {};
    return Reject(key, FindingKind::kStrayRecord, node->ino,
                  fmt::format("has checksums of segment {}, behind its end", parsed->index));
  };
  RETURN_IF_ERROR(ForEach(keys::kChecksums, "checksums", visit));
  while (needed) missing();
  return {};
}

namespace {

// Reads the checksum records of the catalog, one at a time.
class ChecksumReader {
 public:
  explicit ChecksumReader(KvStore& catalog) : catalog_(catalog) {}

  // Returns nullopt when the catalog has no checksum for the block.
  Result<std::optional<uint32_t>> Get(uint64_t ino, uint64_t block) {
    const uint64_t segment = block / keys::kSegmentBlocks, index = block % keys::kSegmentBlocks;
    if (ino != ino_ || segment != segment_) {
      ASSIGN_OR_RETURN(checksums_, ReadChecksums(catalog_, InodeId{ino}, segment));
      ino_ = ino;
      segment_ = segment;
    }
    return index < checksums_.size() ? std::optional(checksums_[index]) : std::nullopt;
  }

 private:
  KvStore& catalog_;
  uint64_t ino_ = 0, segment_ = 0;
  std::vector<uint32_t> checksums_;
};

// Adjacent bad blocks, reported as one finding.
struct BadRun {
  FindingKind kind = FindingKind::kDataMismatch;
  uint64_t ino = 0, first = 0, count = 0;
  DeviceId device;
  uint64_t start = 0;  // device block

  bool GoesOnWith(const BadRun& next) const {
    return kind == next.kind && ino == next.ino && first + count == next.first && device == next.device &&
           start + count == next.start;
  }
};

}  // namespace

// Reads every written block in file order. ScanChecksums has reported blocks without checksums.
Result<void> Checker::VerifyData() {
  constexpr size_t kDepth = 8;
  uint64_t total = 0;
  for (const Extent& extent : extents_) total += extent.IsWritten() ? extent.record.count.value * kBlockSize : 0;
  StartPass(Progress::Unit::kBytes, total);
  ChecksumReader checksums(catalog_);
  ASSIGN_OR_RETURN(const auto reader, DataReader::Create(devices_, kDepth, extents_));
  BadRun bad;
  const auto report_bad = [&] {
    if (bad.count == 0) return;
    Report(bad.kind, bad.ino,
           fmt::format("bytes {} to {} {} (device {}: {}, byte {})", bad.first * kBlockSize,
                       (bad.first + bad.count) * kBlockSize - 1,
                       bad.kind == FindingKind::kDataMismatch ? "differ from their checksums" : "cannot be read",
                       bad.device.value, devices_[bad.device.value]->path(), bad.start * kBlockSize));
    bad.count = 0;
  };
  std::vector<uint32_t> actual(kChunkBlocks);
  while (const auto piece = reader->Next()) {
    const Extent& extent = *piece->chunk.extent;
    if (piece->result) Crc32cBlocks(piece->data, actual.data());
    for (uint64_t i = 0; i < piece->chunk.count; ++i) {
      const uint64_t block = piece->chunk.first + i;
      ASSIGN_OR_RETURN(const auto expected, checksums.Get(extent.ino, block));
      if (!expected) continue;
      const bool matches = piece->result && actual[i] == *expected;
      const auto outcome =
          matches ? ReadOutcome::kIntact
                  : ReadVerified(*expected, [&] { return reader->ReadOne(extent, block); });
      if (outcome != ReadOutcome::kUnreadable) report_.verified_bytes += ByteCount{kBlockSize};
      if (outcome == ReadOutcome::kIntact) continue;
      const auto kind = outcome == ReadOutcome::kMismatch ? FindingKind::kDataMismatch : FindingKind::kDataUnreadable;
      const BadRun next{kind, extent.ino,           block,
                        1,    extent.record.device, extent.record.start.value + block - extent.first};
      if (bad.count > 0 && bad.GoesOnWith(next)) {
        ++bad.count;
      } else {
        report_bad();
        bad = next;
      }
    }
    progress_.done += piece->chunk.count * kBlockSize;
    RETURN_IF_ERROR(CheckCancelled());
    ShowProgress("data");
  }
  report_bad();
  return {};
}

// Uses the data that is on the device, because it can no longer be distinguished from written data. A block that cannot
// be read gets a checksum that will almost certainly never match, so that reading it remains an error.
Result<void> Checker::RebuildChecksums(DataReader& reader, const Segment& segment) {
  const InodeId ino{segment.ino};
  ASSIGN_OR_RETURN(std::vector<uint32_t> checksums, ReadChecksums(catalog_, ino, segment.segment));
  const uint64_t known = checksums.size(), first = segment.segment * keys::kSegmentBlocks;
  checksums.resize(std::max<uint64_t>(known, segment.entries));
  auto extent = std::lower_bound(extents_.begin(), extents_.end(), std::pair(segment.ino, first),
                                 [](const Extent& e, const auto& place) { return std::pair(e.ino, e.end()) <= place; });
  for (; extent != extents_.end() && extent->ino == segment.ino && extent->first < first + segment.entries; ++extent) {
    if (!extent->IsWritten()) continue;
    const uint64_t end = std::min(extent->end(), first + segment.entries);
    for (uint64_t block = std::max(extent->first, first + known); block < end; ++block) {
      checksums[block - first] = reader.ReadOne(*extent, block).value_or(0);
    }
  }
  return Put(keys::Checksums(ino, segment.segment), EncodeChecksums(checksums));
}

struct DataReader::Read {
  Read(Buffer memory, const Chunk& piece)
      : buffer(std::move(memory)),
        chunk(piece),
        data(buffer.bytes().first(piece.count * kBlockSize)),
        request(IoRequest::Operation::kRead, Physical(*piece.extent, piece.first), data) {}

  const Buffer buffer;
  const Chunk chunk;
  const std::span<const std::byte> data;
  SynchronousRequest request;
};

DataReader::DataReader(std::span<BlockDevice* const> devices, size_t depth, std::span<const Extent> extents)
    : devices_(devices), depth_(depth), extents_(extents) {}

// Allocates one buffer per request in flight, one for the caller's current chunk, and one for single blocks.
Result<std::unique_ptr<DataReader>> DataReader::Create(std::span<BlockDevice* const> devices, size_t depth,
                                                       std::span<const Extent> extents) {
  std::unique_ptr<DataReader> reader(new DataReader(devices, depth, extents));
  const ByteCount size{kChunkBlocks * kBlockSize};
  ASSIGN_OR_RETURN(reader->pool_, BufferPool::Create({.buffer_size = size, .count = depth + 2, .name = "fsck"}));
  reader->scratch_ = reader->pool_->Allocate();
  return reader;
}

DataReader::~DataReader() {
  for (const auto& read : queue_) static_cast<void>(read->request.Wait().has_value());
}

bool DataReader::SubmitNext() {
  while (!extents_.empty()) {
    const Extent& extent = extents_.front();
    const uint64_t left = extent.IsWritten() ? extent.record.count.value - skip_ : 0;
    if (left == 0) {
      extents_ = extents_.subspan(1);
      skip_ = 0;
      continue;
    }
    const Chunk chunk{&extent, extent.first + skip_, std::min(left, kChunkBlocks)};
    skip_ += chunk.count;
    queue_.push_back(std::make_unique<Read>(pool_->Allocate(), chunk));
    IoRequest* request = &queue_.back()->request;
    devices_[extent.record.device.value]->Submit({&request, 1});
    return true;
  }
  return false;
}

std::optional<DataReader::Piece> DataReader::Next() {
  current_.reset();
  while (queue_.size() < depth_ && SubmitNext()) {
  }
  if (queue_.empty()) return std::nullopt;
  current_ = std::move(queue_.front());
  queue_.pop_front();
  auto result = current_->request.Wait();
  return Piece{current_->chunk, current_->data, std::move(result)};
}

Result<uint32_t> DataReader::ReadOne(const Extent& extent, uint64_t block) {
  const auto bytes = scratch_.bytes().first(kBlockSize);
  RETURN_IF_ERROR(devices_[extent.record.device.value]->Read(Physical(extent, block), bytes));
  return Crc32c(bytes);
}

}  // namespace weightfs::fsck

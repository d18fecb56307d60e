// SPDX-License-Identifier: Apache-2.0
#include "store/replica/replica_reader.h"

#include <algorithm>
#include <utility>

#include "common/bytes.h"
#include "common/log.h"
#include "engine/superblock.h"

namespace weightfs::replica {
namespace {

// True when the segment lies on one of the devices.
bool Exists(Devices devices, const Segment& segment) {
  const DeviceRun& run = segment.run;
  return run.device.value < devices.size() && ToBytes(run.run.end()).value <= devices[run.device.value]->size().value;
}

// True, too, if the superblock cannot be read.
bool KeepsLists(BlockDevice* device) {
  const auto superblock = ReadSuperblock(*device);
  return !superblock || superblock->keeps_lists;
}

}  // namespace

Result<FrameReader> FrameReader::Create(Devices devices, const Uuid& store_id, const Stream& stream,
                                        size_t first_segment) {
  ASSIGN_OR_RETURN(HugePageMemory memory, HugePageMemory::Map(kLargestFrame));
  FrameReader reader(devices, store_id, stream, std::move(memory));
  reader.position_.segment = first_segment;
  if (first_segment < stream.segments.size()) reader.position_.frame = stream.segments[first_segment].first_frame;
  return reader;
}

void FrameReader::EnterNextSegment() {
  while (position_.segment < stream_.segments.size() &&
         position_.block >= stream_.segments[position_.segment].run.run.count) {
    ++position_.segment;
    position_.block = {};
  }
}

Result<std::optional<FrameReader::Frame>> FrameReader::ReadFrame() {
  const Segment& segment = stream_.segments[position_.segment];
  if (!Exists(devices_, segment)) return std::optional<Frame>();
  BlockDevice& device = *devices_[segment.run.device.value];
  const ByteOffset offset = ToBytes(segment.run.run.start + position_.block);
  const std::span<std::byte> memory(memory_.data(), kLargestFrame);
  // An unreadable block is damage like any other.
  if (!device.Read(offset, memory.first(kBlockSize))) return std::optional<Frame>();
  const size_t size = FrameSize(memory.first(kBlockSize));
  const ByteCount left = ToBytes(segment.run.run.count - position_.block);
  if (size == 0 || size > left.value) return std::optional<Frame>();
  if (size > kBlockSize && !device.Read(offset, memory.first(size))) return std::optional<Frame>();
  const auto header = OpenFrame(memory.first(size));
  if (!header || header->store_id != store_id_ || header->stream != stream_.id) return std::optional<Frame>();
  return std::optional<Frame>({*header, TextOf(memory.subspan(kFrameHeaderSize, header->payload_size))});
}

Result<std::optional<FrameReader::Frame>> FrameReader::Next() {
  EnterNextSegment();
  if (position_.segment >= stream_.segments.size()) return std::optional<Frame>();
  ASSIGN_OR_RETURN(const auto frame, ReadFrame());
  if (!frame || frame->header.number != position_.frame) return std::optional<Frame>();
  position_.block += BlocksFor(ByteCount{kFrameHeaderSize + frame->header.payload_size});
  ++position_.frame;
  return frame;
}

// Looks at the next blocks of the segment, many at a time.
void FrameReader::LookAhead() {
  const DeviceRun& run = stream_.segments[position_.segment].run;
  BlockDevice& device = *devices_[run.device.value];
  const BlockCount some = std::min(run.run.count - seen_, BlockCount{kLargestFrame / kBlockSize});
  const ByteOffset offset = ToBytes(run.run.start + seen_);
  const std::span<std::byte> memory(memory_.data(), ToBytes(some).value);
  const bool readable = device.Read(offset, memory).has_value();
  for (uint64_t at = 0; at < memory.size(); at += kBlockSize) {
    const auto block = memory.subspan(at, kBlockSize);
    // The other blocks can be read although one cannot.
    if (!readable && !device.Read(offset + ByteCount{at}, block)) continue;
    const auto header = PeekFrame(block);
    if (header && header->store_id == store_id_ && header->stream == stream_.id) {
      headers_.push_back(seen_ + BlockCount{at / kBlockSize});
    }
  }
  seen_ += some;
}

// Moves on to the next block of the segment that looks like the first one of a frame. At the end of the segment there
// is none, and it returns false.
bool FrameReader::SkipToHeader() {
  const Segment& segment = stream_.segments[position_.segment];
  if (std::exchange(seen_segment_, position_.segment) != position_.segment) {
    headers_.clear();
    seen_ = {};
  }
  seen_ = Exists(devices_, segment) ? std::max(seen_, position_.block) : segment.run.run.count;
  while (true) {
    while (!headers_.empty() && headers_.front() < position_.block) headers_.pop_front();
    if (!headers_.empty() || seen_ >= segment.run.run.count) break;
    LookAhead();
  }
  position_.block = headers_.empty() ? segment.run.run.count : headers_.front();
  return !headers_.empty();
}

Result<bool> FrameReader::SkipDamage() {
  // Damage is followed by a frame that is intact. Blocks that somebody made to look like frames inside frames would
  // each take as long as a frame.
  constexpr uint64_t kMostRejected = 64 * kMiB;
  for (EnterNextSegment(); position_.segment < stream_.segments.size(); EnterNextSegment()) {
    if (!SkipToHeader()) continue;
    const auto frame = ReadFrame();
    if (frame && *frame && (*frame)->header.number >= position_.frame) {
      position_.frame = (*frame)->header.number;
      return true;
    }
    const uint64_t size = std::max(FrameSize({memory_.data(), kBlockSize}), kBlockSize);
    rejected_ += size;
    position_.block += rejected_ > kMostRejected ? BlocksFor(ByteCount{size}) : BlockCount{1};
  }
  return false;
}

Result<std::optional<Entry>> EntryReader::Next() {
  while (true) {
    const std::string_view rest = std::string_view(bytes_).substr(offset_);
    const size_t size = synchronized_ ? EntrySize(rest) : 0;
    if (size > 0 && size <= rest.size()) {
      auto entry = DecodeEntry(rest.substr(0, size));
      if (!entry) return std::optional<Entry>();
      offset_ += size;
      return entry;
    }
    ASSIGN_OR_RETURN(const auto frame, frames_.Next());
    if (!frame) return std::optional<Entry>();
    ++frame_count_;
    time_ns_ = frame->header.time_ns;
    std::string_view payload = frame->payload;
    if (!synchronized_) {
      if (frame->header.first_entry == kNoEntry) continue;
      payload.remove_prefix(frame->header.first_entry);
      synchronized_ = true;
    }
    bytes_.erase(0, std::exchange(offset_, 0));
    bytes_ += payload;
  }
}

Result<bool> EntryReader::SkipDamage() {
  bytes_.clear();
  offset_ = 0;
  synchronized_ = false;
  return frames_.SkipDamage();
}

std::optional<Root> ReadRoot(BlockDevice& device, uint64_t offset, std::span<std::byte> memory) {
  const auto block = memory.first(kBlockSize);
  if (device.size().value < offset + kRootCapacity || !device.Read(ByteOffset{offset}, block)) return std::nullopt;
  const size_t size = RootSize(TextOf(block));
  if (size == 0) return std::nullopt;
  const auto whole = memory.first(size);
  if (!device.Read(ByteOffset{offset}, whole)) return std::nullopt;
  return DecodeRoot(TextOf(whole));
}

Result<std::optional<Root>> FindRoot(Devices devices, const std::optional<Uuid>& store_id) {
  std::optional<Root> newest;
  ASSIGN_OR_RETURN(const auto memory, HugePageMemory::Map(kRootCapacity));
  const bool keep_lists = std::ranges::all_of(devices, KeepsLists);
  for (BlockDevice* device : devices) {
    for (const uint64_t offset : kRootOffsets) {
      auto root = ReadRoot(*device, offset, {memory.data(), memory.size()});
      if (!root || (store_id && root->store_id != *store_id)) continue;
      if (newest && root->sequence <= newest->sequence) continue;
      // A program that does not know lists has written to the store since.
      if (!root->lists.empty() && !keep_lists) continue;
      newest = std::move(root);
    }
  }
  return newest;
}

Result<std::optional<std::string>> ReadList(Devices devices, const Root& root, const Stream& list) {
  ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, list));
  std::string bytes;
  while (bytes.size() < root.list_size) {
    ASSIGN_OR_RETURN(const auto frame, frames.Next());
    if (!frame || frame->payload.empty()) break;
    bytes += frame->payload;
  }
  return bytes.size() == root.list_size ? std::optional(std::move(bytes)) : std::nullopt;
}

Result<void> LoadSegments(Devices devices, Root* root) {
  const std::vector<Stream> lists = root->lists;
  for (const Stream& list : lists) {
    ASSIGN_OR_RETURN(const auto bytes, ReadList(devices, *root, list));
    if (bytes && DecodeList(*bytes, root)) return {};
  }
  if (lists.empty()) return {};
  return Error{ErrorCode::kCorrupt, "the lists of the segments of the replica are damaged"};
}

Result<Tail> FindTail(Devices devices, const Root& root) {
  Tail tail;
  tail.version = root.checkpoint;
  tail.time_ns = root.time_ns;
  const auto& segments = root.log.segments;
  const auto known = [](const Segment& segment) { return segment.first_frame != kUnknownFrame; };
  const auto earliest = static_cast<size_t>(std::find_if(segments.begin(), segments.end(), known) - segments.begin());
  bool positioned = false;
  BlockCount blocks, least;
  // Each pass reads at least twice as much as the one before, so together they read little more than the log.
  for (size_t first = segments.size(); first-- > 0;) {
    blocks += segments[first].run.run.count;
    if (!known(segments[first]) || (blocks < least && first != earliest)) continue;
    least = blocks + blocks;
    ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, root.log, first));
    EntryReader entries(std::move(frames));
    bool found = false;
    std::optional<FrameReader::Position> end;
    while (true) {
      ASSIGN_OR_RETURN(const auto entry, entries.Next());
      if (entry) {
        found = true;
        if (entry->version.sequence >= tail.version.sequence) tail.version = entry->version;
        continue;
      }
      if (!end) end = entries.position();
      ASSIGN_OR_RETURN(const bool more, entries.SkipDamage());
      if (!more) break;
      tail.damaged = true;
    }
    // An empty segment at the end begins where the one before it ends.
    if (!positioned || entries.frames() > 0) tail.position = *end;
    positioned = positioned || entries.frames() > 0;
    if (entries.frames() > 0) tail.time_ns = entries.time_ns();
    if (found) break;
  }
  return tail;
}

Result<ReplayReport> ReplayCheckpoint(Devices devices, const Root& root,
                                      const std::function<Result<void>(const Entry&)>& apply) {
  ReplayReport report{.version = root.checkpoint, .time_ns = root.time_ns};
  ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, root.checkpoint_stream));
  EntryReader entries(std::move(frames));
  while (true) {
    ASSIGN_OR_RETURN(const auto entry, entries.Next());
    if (entry) {
      RETURN_IF_ERROR(apply(*entry));
      ++report.entries;
      continue;
    }
    const uint64_t expected = entries.position().frame;
    if (expected >= root.checkpoint_frames) return report;
    ASSIGN_OR_RETURN(const bool more, entries.SkipDamage());
    report.damaged_frames += (more ? entries.position().frame : root.checkpoint_frames) - expected;
    if (!more) return report;
  }
}

Result<ReplayReport> ReplayLog(Devices devices, const Root& root, Version from,
                               const std::function<Result<void>(const Entry&)>& apply) {
  ReplayReport report{.version = from, .time_ns = root.time_ns};
  ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, root.log));
  EntryReader entries(std::move(frames));
  while (true) {
    ASSIGN_OR_RETURN(const auto entry, entries.Next());
    if (!entry) return report;
    if (entry->version.sequence <= report.version.sequence) continue;
    // The chain shows that the entry continues this catalog, and not another one with as many batches.
    Version next = report.version;
    EncodeNext(entry->batch, &next);
    if (next != entry->version) return report;
    RETURN_IF_ERROR(apply(*entry));
    report.version = entry->version;
    report.time_ns = entries.time_ns();
    ++report.entries;
  }
}

}  // namespace weightfs::replica

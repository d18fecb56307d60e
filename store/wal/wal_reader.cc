// SPDX-License-Identifier: Apache-2.0
#include "store/wal/wal_reader.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/bytes.h"
#include "common/checksum.h"
#include "engine/superblock.h"

namespace weightfs::wal {
namespace {

// True when the segment lies on one of the devices.
bool Exists(Devices devices, const Segment& segment) {
  const DeviceRun& run = segment.run;
  return run.device.value < devices.size() && ToBytes(run.run.end()).value <= devices[run.device.value]->size().value;
}

Result<void> ReadAgain(BlockDevice& device, ByteOffset offset, std::span<std::byte> memory) {
  Result<void> done = device.Read(offset, memory);
  for (ReadAttempts attempts; !done && attempts.ReadAgain();) done = device.Read(offset, memory);
  return done;
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
  reader.position_.segment = reader.entered_ = first_segment;
  if (first_segment < stream.segments.size()) reader.position_.frame = stream.segments[first_segment].first_frame;
  reader.limits_.assign(stream.segments.size(), UINT64_MAX);
  for (size_t index = stream.segments.size(); index > 1; --index) {
    const Segment& next = stream.segments[index - 1];
    const uint64_t begun = next.first_frame == kUnknownFrame ? UINT64_MAX : next.begun;
    reader.limits_[index - 2] = std::min(reader.limits_[index - 1], begun);
  }
  return reader;
}

void FrameReader::EnterNextSegment() {
  while (position_.segment < stream_.segments.size() &&
         position_.block >= stream_.segments[position_.segment].run.run.count) {
    ++position_.segment;
    position_.block = {};
    if (position_.segment == stream_.segments.size()) return;
    const uint64_t first = stream_.segments[position_.segment].first_frame;
    if (first == kUnknownFrame || first == position_.frame) continue;
    position_.frame = first;
    follows_ = false;
  }
}

Result<std::optional<FrameReader::Frame>> FrameReader::ReadFrame() {
  const Segment& segment = stream_.segments[position_.segment];
  if (!Exists(devices_, segment)) return std::optional<Frame>();
  BlockDevice& device = *devices_[segment.run.device.value];
  const ByteOffset offset = ToBytes(segment.run.run.start + position_.block);
  const std::span<std::byte> memory(memory_.data(), kLargestFrame);
  const auto read = [&](size_t size) {
    unreadable_ = !ReadAgain(device, offset, memory.first(size));
    return !unreadable_;
  };
  // An unreadable block is damage like any other.
  if (!read(kBlockSize)) return std::optional<Frame>();
  const size_t size = FrameSize(memory.first(kBlockSize));
  const ByteCount left = ToBytes(segment.run.run.count - position_.block);
  if (size == 0 || size > left.value) return std::optional<Frame>();
  if (size > kBlockSize && !read(size)) return std::optional<Frame>();
  const auto header = OpenFrame(memory.first(size));
  if (!header || header->store_id != store_id_ || header->stream != stream_.id) return std::optional<Frame>();
  return std::optional<Frame>({*header, TextOf(memory.subspan(header->size, header->payload_size))});
}

Result<std::optional<FrameReader::Frame>> FrameReader::Next() {
  EnterNextSegment();
  if (position_.segment >= stream_.segments.size()) return std::optional<Frame>();
  std::optional<Frame> frame;
  ReadAttempts attempts;
  do {
    ASSIGN_OR_RETURN(frame, ReadFrame());
    if (frame && frame->header.number != position_.frame) frame.reset();
  } while (!frame && !unreadable_ && attempts.ReadAgain());  // it would be the end of the log
  if (!frame) return frame;
  frame->follows = std::exchange(follows_, true);
  entered_ = position_.segment;
  position_.block += BlocksFor(ByteCount{frame->header.size + frame->header.payload_size});
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
      if (is_old_) durable_ = std::max(durable_, entry->version.sequence);
      return entry;
    }
    ASSIGN_OR_RETURN(const auto frame, frames_.Next());
    if (!frame) return std::optional<Entry>();
    time_ns_ = frame->header.time_ns;
    durable_ = std::max(durable_, frame->header.durable);
    is_old_ = frame->header.size == kOldFrameHeaderSize;
    if (!frame->follows) Drop();
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

void EntryReader::Drop() {
  bytes_.clear();
  offset_ = 0;
  synchronized_ = false;
}

Result<bool> EntryReader::SkipDamage() {
  Drop();
  return frames_.SkipDamage();
}

Result<std::optional<Root>> ReadRoot(BlockDevice& device, uint64_t offset, std::span<std::byte> memory) {
  if (device.size().value < offset + kRootCapacity) return std::optional<Root>();
  std::optional<Root> root;
  ReadAttempts attempts;
  do {
    RETURN_IF_ERROR(ReadAgain(device, ByteOffset{offset}, memory.first(kBlockSize)));
    const size_t size = RootSize(TextOf(memory.first(kBlockSize)));
    if (size == 0) continue;
    RETURN_IF_ERROR(ReadAgain(device, ByteOffset{offset}, memory.first(size)));
    root = DecodeRoot(TextOf(memory.first(size)));
  } while (!root && attempts.ReadAgain());
  return root;
}

Result<std::optional<Root>> FindRoot(Devices devices, const std::optional<Uuid>& store_id) {
  std::optional<Root> newest;
  ASSIGN_OR_RETURN(const auto memory, HugePageMemory::Map(kRootCapacity));
  const bool keep_lists = std::ranges::all_of(devices, KeepsLists);
  std::array<bool, 2> found{};  // by the parity of the sequence
  std::array<BlockDevice*, 2> unreadable{};
  for (BlockDevice* device : devices) {
    for (size_t copy = 0; copy < kRootOffsets.size(); ++copy) {
      auto read = ReadRoot(*device, kRootOffsets[copy], {memory.data(), memory.size()});
      if (!read) unreadable[copy % 2] = device;
      if (!read || !*read || (store_id && (*read)->store_id != *store_id)) continue;
      Root& root = **read;
      // A program that does not know lists has written to the store since.
      if (!root.lists.empty() && !keep_lists) continue;
      found[copy % 2] = true;
      if (!newest || root.sequence > newest->sequence) newest = std::move(root);
    }
  }
  if (newest) {
    // A crash leaves one copy of the next root or of the one before it, unless an older program wrote both copies at
    // once. The first two roots of a log are alike.
    const size_t other = 1 - newest->sequence % 2;
    newest->newer_lost = !found[other] && (unreadable[other] != nullptr || (newest->ordered && newest->sequence > 1));
    return newest;
  }
  BlockDevice* const failed = unreadable[0] != nullptr ? unreadable[0] : unreadable[1];
  if (failed == nullptr) return newest;
  return Error{ErrorCode::kIo,
               fmt::format("{}: the roots of the log of the catalog cannot be read; check the device (dmesg)",
                           failed->path())};
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

namespace {

// Reads the entries of the log that continue a version.
class Continuation {
 public:
  static Result<Continuation> Create(Devices devices, const Root& root, Version from) {
    const auto& segments = root.log.segments;
    size_t first = 0;
    for (size_t index = 0; index < segments.size(); ++index) {
      // The entry of that version shows that the log continues it, so it must be read.
      if (segments[index].first_frame != kUnknownFrame && segments[index].begun < from.sequence) first = index;
    }
    ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, root.log, first));
    return Continuation(EntryReader(std::move(frames)), from, from == root.checkpoint);
  }

  // Returns the next entry; nullopt at the end.
  Result<std::optional<Entry>> Next() {
    while (true) {
      ASSIGN_OR_RETURN(auto entry, entries_.Next());
      if (!entry && !has_begun_) {
        // Entries that the version has may be damaged.
        if (!end_) {
          end_ = entries_.position();
          partial_ = !entries_.is_between();
        }
        unreadable_ = unreadable_ || entries_.unreadable();
        ASSIGN_OR_RETURN(const bool more, entries_.SkipDamage());
        if (!more) return entry;
        is_rejected_ = true;  // unless an entry follows that continues it
        continue;
      }
      if (!entry) return entry;
      if (entry->version.sequence > entries_.limit()) continue;
      if (entry->version == version_) is_known_ = true;
      if (entry->version.sequence < version_.sequence || entry->version == version_) {
        if (is_known_) Accept();
        continue;
      }
      // The chain shows that the entry continues this catalog, and not another one with as many batches.
      Version next = version_;
      EncodeNext(entry->batch, &next);
      is_rejected_ = next != entry->version || !(is_known_ || end_);
      if (is_rejected_) return std::optional<Entry>();
      Accept();
      is_known_ = has_begun_ = true;
      version_ = next;
      return entry;
    }
  }

  Version version() const { return version_; }
  bool is_known() const { return is_known_; }        // the log has the first version
  bool is_rejected() const { return is_rejected_; }  // an entry follows that does not continue the last one
  // A part of an entry is at the end, or what the device cannot read.
  bool is_partial() const { return partial_ || !entries_.is_between(); }
  bool is_unreadable() const { return unreadable_ || entries_.unreadable(); }
  EntryReader& entries() { return entries_; }
  FrameReader::Position position() const { return end_ ? *end_ : entries_.position(); }  // where the next frame belongs

 private:
  // Damage before this entry is behind the log.
  void Accept() {
    end_.reset();
    is_rejected_ = partial_ = unreadable_ = false;
  }

  Continuation(EntryReader entries, Version from, bool is_known)
      : entries_(std::move(entries)), version_(from), is_known_(is_known) {}

  EntryReader entries_;
  Version version_;
  bool is_known_;
  bool is_rejected_ = false;
  bool has_begun_ = false;    // an entry after the first version was found
  bool partial_ = false;      // of end_
  bool unreadable_ = false;   // behind end_
  std::optional<FrameReader::Position> end_;  // before damage that is perhaps the end
};

}  // namespace

Result<Tail> FindTail(Devices devices, const Root& root, Version from) {
  Tail tail{.version = from, .time_ns = root.time_ns};
  ASSIGN_OR_RETURN(Continuation log, Continuation::Create(devices, root, from));
  while (true) {
    ASSIGN_OR_RETURN(const auto entry, log.Next());
    if (!entry) break;
    tail.time_ns = log.entries().time_ns();
  }
  EntryReader& entries = log.entries();
  tail.version = log.version();
  tail.continues = log.is_known();
  tail.position = log.position();
  tail.durable = std::max({entries.durable(), root.durable, root.checkpoint.sequence});
  // A later segment with a known frame number was taken when this one was full: frames before it are missing.
  const auto& segments = root.log.segments;
  const auto next = segments.begin() + static_cast<ptrdiff_t>(std::min(tail.position.segment + 1, segments.size()));
  const bool complete = std::all_of(next, segments.end(), [](const Segment& segment) {
    return segment.first_frame == kUnknownFrame;
  });
  tail.clean = complete && !log.is_partial() && !log.is_rejected();
  tail.unreadable = log.is_unreadable();
  ASSIGN_OR_RETURN(bool more, entries.SkipDamage());
  while (more) {
    tail.clean = false;
    RETURN_IF_ERROR(entries.Next());
    tail.durable = std::max(tail.durable, entries.durable());
    ASSIGN_OR_RETURN(more, entries.SkipDamage());
  }
  tail.damaged = tail.durable > tail.version.sequence;
  return tail;
}

Result<uint64_t> ReplayCheckpoint(Devices devices, const Root& root,
                                  const std::function<Result<void>(const Entry&)>& apply) {
  uint64_t damaged_frames = 0;
  ASSIGN_OR_RETURN(FrameReader frames, FrameReader::Create(devices, root.store_id, root.checkpoint_stream));
  EntryReader entries(std::move(frames));
  while (true) {
    ASSIGN_OR_RETURN(const auto entry, entries.Next());
    if (entry) {
      RETURN_IF_ERROR(apply(*entry));
      continue;
    }
    const uint64_t expected = entries.position().frame;
    if (expected >= root.checkpoint_frames) return damaged_frames;
    ASSIGN_OR_RETURN(const bool more, entries.SkipDamage());
    damaged_frames += (more ? entries.position().frame : root.checkpoint_frames) - expected;
    if (!more) return damaged_frames;
  }
}

Result<Version> ReplayLog(Devices devices, const Root& root, Version from, uint64_t last,
                          const std::function<Result<void>(const Entry&)>& apply) {
  ASSIGN_OR_RETURN(Continuation log, Continuation::Create(devices, root, from));
  while (log.version().sequence < last) {
    ASSIGN_OR_RETURN(const auto entry, log.Next());
    if (!entry) break;
    RETURN_IF_ERROR(apply(*entry));
  }
  return log.version();
}

}  // namespace weightfs::wal

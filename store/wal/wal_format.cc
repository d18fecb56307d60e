// SPDX-License-Identifier: Apache-2.0
#include "store/wal/wal_format.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/checksum.h"

namespace weightfs::wal {
namespace {

constexpr uint8_t kVersionFormat = 1;
constexpr uint64_t kOldFrameMagic = 0x454D'4152'4653'4657ULL;  // "WFSFRAME" in disk byte order
constexpr uint64_t kFrameMagic = 0x324D'4152'4653'4657ULL;     // "WFSFRAM2"
constexpr uint64_t kRootMagic = 0x544F'4F52'4653'4657ULL;   // "WFSFROOT"
constexpr uint32_t kRootVersion = 1, kRootVersionWithLists = 2;
constexpr uint16_t kLoggedRoot = 1, kOrderedRoot = 2;  // flags
constexpr size_t kRootFixedSize = 24;  // magic, version, size, checksum
constexpr size_t kSegmentSize = 30;
constexpr size_t kChecksumOffset = 60;  // of a frame
constexpr uint64_t kLargestSequence = UINT64_MAX / 2;
constexpr uint64_t kUnflushedData = kLargestSequence + 1;  // set in the sequence of an entry
constexpr uint64_t kLargestBlock = INT64_MAX / kBlockSize;  // offsets of a device are signed

std::span<const std::byte> BytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

constexpr size_t kChangeHeaderSize = 9;

// The entry with an empty header.
std::string EncodeBody(const KvBatch& batch) {
  size_t size = kEntryHeaderSize;
  for (const KvBatch::Change& change : batch.changes()) {
    size += kChangeHeaderSize + change.key.size() + change.value.size();
  }
  std::string entry;
  entry.reserve(size);
  entry.resize(kEntryHeaderSize);
  for (const KvBatch::Change& change : batch.changes()) {
    AppendLittle(entry, static_cast<uint8_t>(change.kind));
    AppendLittle(entry, static_cast<uint32_t>(change.key.size()));
    AppendLittle(entry, static_cast<uint32_t>(change.value.size()));
    entry += change.key;
    entry += change.value;
  }
  return entry;
}

std::optional<KvBatch> DecodeBody(std::string_view body) {
  KvBatch batch;
  Decoder decoder(body);
  while (decoder.ok() && !decoder.rest().empty()) {
    const auto kind = decoder.Little<uint8_t>();
    const auto key_size = decoder.Little<uint32_t>(), value_size = decoder.Little<uint32_t>();
    std::string key(decoder.Bytes(key_size)), value(decoder.Bytes(value_size));
    switch (static_cast<KvBatch::Change::Kind>(kind)) {
      case KvBatch::Change::Kind::kPut: batch.Put(std::move(key), std::move(value)); break;
      case KvBatch::Change::Kind::kDelete:
        if (!value.empty()) return std::nullopt;
        batch.Delete(std::move(key));
        break;
      case KvBatch::Change::Kind::kDeleteRange: batch.DeleteRange(std::move(key), std::move(value)); break;
      default: return std::nullopt;
    }
  }
  if (!decoder.Done()) return std::nullopt;
  return batch;
}

std::string WithHeader(std::string entry, Version version, bool unflushed_data) {
  const auto size = static_cast<uint32_t>(entry.size() - kEntryHeaderSize);
  const uint64_t sequence = version.sequence | (unflushed_data ? kUnflushedData : 0);
  std::memcpy(entry.data(), &size, sizeof(size));
  std::memcpy(entry.data() + 4, &version.chain, sizeof(version.chain));
  std::memcpy(entry.data() + 8, &sequence, sizeof(sequence));
  return entry;
}

size_t HeaderSize(uint64_t magic) {
  if (magic == kFrameMagic) return kFrameHeaderSize;
  return magic == kOldFrameMagic ? kOldFrameHeaderSize : 0;
}

// These functions state layouts for both directions (common/bytes.h): of a frame's header between the magic and the
// reserved bytes, of a root before its segments, and of a segment.
template <typename Coder, typename Header>
void CodeFrameHeader(Coder&& coder, Header& header) {
  coder.Fields(header.store_id, header.stream, header.number, header.time_ns, header.first_entry, header.payload_size);
}

template <typename Coder, typename AnyRoot>
void CodeRootHead(Coder&& coder, AnyRoot& root, uint16_t& flags, uint64_t& durable) {
  coder.Fields(root.store_id, root.device.value, flags, root.checkpoint.chain, root.sequence, root.time_ns);
  coder.Fields(durable, root.checkpoint.sequence, root.checkpoint_frames);
}

template <typename Coder, typename AnySegment>
void CodeSegment(Coder&& coder, AnySegment& segment) {
  coder.Fields(segment.run.device.value, segment.run.run.start.value);
  coder.template FieldAs<uint32_t>(segment.run.run.count.value);
  coder.Fields(segment.first_frame, segment.begun);
}

void AppendStream(std::string& out, const Stream& stream) {
  AppendLittle(out, stream.id);
  AppendLittle(out, static_cast<uint32_t>(stream.segments.size()));
  for (const Segment& segment : stream.segments) CodeSegment(Encoder(out), segment);
}

// False when a segment is impossible by itself.
bool TakeStream(Decoder& decoder, Stream* stream) {
  stream->id = decoder.Little<uint64_t>();
  const auto count = decoder.Little<uint32_t>();
  if (!decoder.ok() || decoder.rest().size() / kSegmentSize < count) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Segment segment;
    CodeSegment(decoder, segment);
    const auto& [start, blocks] = segment.run.run;
    if (blocks.value == 0 || blocks > kLargestSegment) return false;
    if (start.value < kDataOffset / kBlockSize || start.value > kLargestBlock - blocks.value) return false;
    stream->segments.push_back(segment);
  }
  return decoder.ok();
}

// Readers visit each segment, so segments that share blocks would make them read those again and again.
bool AreDisjoint(const Root& root) {
  std::vector<DeviceRun> runs;
  for (const Segment& segment : SegmentsOf(root)) runs.push_back(segment.run);
  const auto position = [](const DeviceRun& run) { return std::pair(run.device.value, run.run.start.value); };
  std::sort(runs.begin(), runs.end(), [&](const auto& a, const auto& b) { return position(a) < position(b); });
  const auto overlap = [](const DeviceRun& a, const DeviceRun& b) {
    return a.device == b.device && b.run.start < a.run.end();
  };
  return std::adjacent_find(runs.begin(), runs.end(), overlap) == runs.end();
}

}  // namespace

std::string EncodeVersion(Version version) {
  std::string bytes;
  Encoder(bytes).Fields(kVersionFormat, version.sequence, version.chain);
  return bytes;
}

std::optional<Version> DecodeVersion(std::string_view bytes) {
  Decoder decoder(bytes);
  uint8_t format = 0;
  Version version;
  decoder.Fields(format, version.sequence, version.chain);
  if (!decoder.Done() || format != kVersionFormat || version.sequence > kLargestSequence) return std::nullopt;
  return version;
}

std::string EncodeNext(const KvBatch& batch, Version* version) {
  std::string entry = EncodeBody(batch);
  ++version->sequence;
  version->chain = Crc32cExtend(version->chain, BytesOf(entry).subspan(kEntryHeaderSize));
  return WithHeader(std::move(entry), *version, batch.has_unflushed_data());
}

std::string EncodePart(const KvBatch& batch, Version version) { return WithHeader(EncodeBody(batch), version, false); }

size_t EntrySize(std::string_view bytes) {
  if (bytes.size() < kEntryHeaderSize) return 0;
  return kEntryHeaderSize + Decoder(bytes).Little<uint32_t>();
}

std::optional<Entry> DecodeEntry(std::string_view bytes) {
  if (bytes.empty() || EntrySize(bytes) != bytes.size()) return std::nullopt;
  Decoder decoder(bytes);
  decoder.Little<uint32_t>();
  Entry entry;
  entry.version.chain = decoder.Little<uint32_t>();
  const auto sequence = decoder.Little<uint64_t>();
  entry.version.sequence = sequence & kLargestSequence;
  auto batch = DecodeBody(decoder.rest());
  if (!batch) return std::nullopt;
  if ((sequence & kUnflushedData) != 0) batch->NoteUnflushedData();
  entry.batch = std::move(*batch);
  return entry;
}

size_t SealFrame(const FrameHeader& header, std::span<std::byte> frame) {
  std::string bytes;
  AppendLittle(bytes, kFrameMagic);
  CodeFrameHeader(Encoder(bytes), header);
  AppendLittle(bytes, uint32_t{0});  // reserved
  AppendLittle(bytes, uint32_t{0});  // the checksum, computed with zero in its place
  static_assert(kChecksumOffset + sizeof(uint32_t) == kOldFrameHeaderSize);
  AppendLittle(bytes, header.durable);
  WEIGHTFS_ASSERT(bytes.size() == kFrameHeaderSize);
  const size_t size = RoundUp(kFrameHeaderSize + header.payload_size, kBlockSize);
  WEIGHTFS_ASSERT(size <= frame.size());
  std::memcpy(frame.data(), bytes.data(), bytes.size());
  std::memset(frame.data() + kFrameHeaderSize + header.payload_size, 0, size - kFrameHeaderSize - header.payload_size);
  const uint32_t checksum = Crc32c(frame.first(size));
  std::memcpy(frame.data() + kChecksumOffset, &checksum, sizeof(checksum));
  return size;
}

size_t FrameSize(std::span<const std::byte> block) {
  const auto header = PeekFrame(block);
  return header ? RoundUp(header->size + header->payload_size, kBlockSize) : 0;
}

std::optional<FrameHeader> PeekFrame(std::span<const std::byte> block) {
  Decoder decoder(TextOf(block));
  FrameHeader header;
  header.size = HeaderSize(decoder.Little<uint64_t>());
  CodeFrameHeader(decoder, header);
  decoder.Little<uint64_t>();  // reserved, and the checksum
  if (header.size == kFrameHeaderSize) header.durable = decoder.Little<uint64_t>();
  if (!decoder.ok() || header.size == 0 || header.payload_size > kLargestFrame - header.size) return std::nullopt;
  return header;
}

std::optional<FrameHeader> OpenFrame(std::span<const std::byte> frame) {
  if (frame.empty() || FrameSize(frame) != frame.size()) return std::nullopt;
  uint32_t stored = 0;
  std::memcpy(&stored, frame.data() + kChecksumOffset, sizeof(stored));
  const std::array<std::byte, sizeof(uint32_t)> zeros{};
  uint32_t checksum = Crc32cExtend(Crc32c(frame.first(kChecksumOffset)), zeros);
  checksum = Crc32cExtend(checksum, frame.subspan(kOldFrameHeaderSize));
  if (stored != checksum) return std::nullopt;
  const auto header = PeekFrame(frame);
  if (header->first_entry != kNoEntry && header->first_entry >= header->payload_size) return std::nullopt;
  return header;
}

std::string EncodeRoot(const Root& root) {
  std::string body;
  auto flags = static_cast<uint16_t>((root.logged ? kLoggedRoot : 0) | (root.ordered ? kOrderedRoot : 0));
  uint64_t durable = root.logged ? root.durable : 0;
  CodeRootHead(Encoder(body), root, flags, durable);
  if (root.lists.empty()) {
    body += EncodeList(root);
  } else {
    WEIGHTFS_ASSERT(root.lists.size() == kListCopies);
    for (const Stream& list : root.lists) AppendStream(body, list);
    AppendLittle(body, root.list_size);
  }
  AppendLittle(body, static_cast<uint32_t>(root.description.size()));
  body += root.description;
  const size_t size = kRootFixedSize + body.size();
  if (size > kRootCapacity) return {};
  std::string bytes;
  AppendLittle(bytes, kRootMagic);
  AppendLittle(bytes, root.lists.empty() ? kRootVersion : kRootVersionWithLists);
  AppendLittle(bytes, static_cast<uint32_t>(size));
  AppendLittle(bytes, Crc32c(BytesOf(body)));
  AppendLittle(bytes, uint32_t{0});  // reserved
  bytes += body;
  bytes.resize(RoundUp(size, kBlockSize), '\0');
  return bytes;
}

size_t RootSize(std::string_view block) {
  Decoder decoder(block);
  const auto magic = decoder.Little<uint64_t>();
  const auto version = decoder.Little<uint32_t>();
  const auto size = decoder.Little<uint32_t>();
  if (!decoder.ok() || magic != kRootMagic || version < kRootVersion || version > kRootVersionWithLists) return 0;
  return size < kRootFixedSize || size > kRootCapacity ? 0 : RoundUp(size, kBlockSize);
}

std::optional<Root> DecodeRoot(std::string_view bytes) {
  if (bytes.empty() || RootSize(bytes) != bytes.size()) return std::nullopt;
  Decoder head(bytes);
  head.Little<uint64_t>();
  const auto version = head.Little<uint32_t>();
  const auto size = head.Little<uint32_t>();
  const auto checksum = head.Little<uint32_t>();
  const std::string_view body = bytes.substr(kRootFixedSize, size - kRootFixedSize);
  if (checksum != Crc32c(BytesOf(body))) return std::nullopt;
  Decoder decoder(body);
  Root root;
  uint16_t flags = 0;
  uint64_t durable = 0;
  CodeRootHead(decoder, root, flags, durable);
  root.logged = (flags & kLoggedRoot) != 0;
  root.ordered = (flags & kOrderedRoot) != 0;
  root.durable = root.logged ? durable : 0;  // older programs have another number there
  if (version == kRootVersion) {
    if (!TakeStream(decoder, &root.checkpoint_stream) || !TakeStream(decoder, &root.log)) return std::nullopt;
  } else {
    root.lists.resize(kListCopies);
    for (Stream& list : root.lists) {
      if (!TakeStream(decoder, &list)) return std::nullopt;
    }
    root.list_size = decoder.Little<uint64_t>();
    if (root.list_size > kLargestList) return std::nullopt;
  }
  const auto description = decoder.Little<uint32_t>();
  root.description = decoder.Bytes(description);
  if (!decoder.Done() || root.checkpoint.sequence > kLargestSequence || !AreDisjoint(root)) return std::nullopt;
  return root;
}

std::string EncodeList(const Root& root) {
  std::string bytes;
  AppendStream(bytes, root.checkpoint_stream);
  AppendStream(bytes, root.log);
  return bytes;
}

bool DecodeList(std::string_view bytes, Root* root) {
  Decoder decoder(bytes);
  Root read = *root;
  const bool whole = TakeStream(decoder, &read.checkpoint_stream) && TakeStream(decoder, &read.log) && decoder.Done();
  if (!whole || !AreDisjoint(read)) return false;
  *root = std::move(read);
  return true;
}

std::vector<Segment> SegmentsOf(const Root& root) {
  std::vector<Segment> segments;
  const auto add = [&](const Stream& stream) { std::ranges::copy(stream.segments, std::back_inserter(segments)); };
  add(root.checkpoint_stream);
  add(root.log);
  std::ranges::for_each(root.lists, add);
  return segments;
}

}  // namespace weightfs::wal

// SPDX-License-Identifier: Apache-2.0
// The replica of the catalog: versions, entries, frames and roots. The first byte of an input selects the structure,
// and its high bit correct magic numbers, sizes and checksums.
#include "store/wal/wal_format.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs::wal {
namespace {

using fuzz::Bytes;
using fuzz::Put;

constexpr uint64_t kMost = INT64_MAX;
// Offsets in a frame and in a root (docs/FORMAT.md section 10).
constexpr size_t kFrameChecksumAt = 60, kPayloadSizeAt = 52, kReservedAt = 56;
constexpr size_t kRootVersionAt = 8, kRootSizeAt = 12, kRootChecksumAt = 16, kRootReservedAt = 20, kRootBodyAt = 24;
constexpr size_t kUnflushedDataAt = 15;  // in an entry: the highest bit
constexpr size_t kBodyReservedAt = kRootBodyAt + 18;

void CheckVersion(std::string_view bytes) {
  const auto version = DecodeVersion(bytes);
  if (!version) return;
  WEIGHTFS_ASSERT(EncodeVersion(*version) == bytes);
  WEIGHTFS_ASSERT(version->sequence <= kMost);
}

void CheckEntry(std::string bytes, bool repaired) {
  if (repaired && bytes.size() >= kEntryHeaderSize)
    Put(bytes, 0, static_cast<uint32_t>(bytes.size() - kEntryHeaderSize));
  const auto entry = DecodeEntry(bytes);
  if (!entry) return;
  WEIGHTFS_ASSERT(EntrySize(bytes) == bytes.size());
  std::string part = EncodePart(entry->batch, entry->version);
  if (entry->batch.has_unflushed_data()) part[kUnflushedDataAt] = static_cast<char>(part[kUnflushedDataAt] | '\x80');
  WEIGHTFS_ASSERT(part == bytes);
  // The same batch after any version follows that version.
  Version version = entry->version;
  version.sequence = std::min(version.sequence, kMost);
  const uint64_t before = version.sequence;
  const auto next = DecodeEntry(EncodeNext(entry->batch, &version));
  WEIGHTFS_ASSERT(next && next->version == version && version.sequence == before + 1);
}

void CheckFrame(std::string bytes, bool repaired) {
  if (repaired && bytes.size() >= kFrameHeaderSize) {
    const FrameHeader empty;
    std::string model(kBlockSize, '\0');
    SealFrame(empty, std::as_writable_bytes(std::span(model)));
    bytes.replace(0, sizeof(uint64_t), model, 0, sizeof(uint64_t));  // the magic
    Put(bytes, kPayloadSizeAt, static_cast<uint32_t>(bytes.size() - kFrameHeaderSize));
    Put(bytes, kReservedAt, uint64_t{0});
    bytes.resize(RoundUp(bytes.size(), kBlockSize));
    Put(bytes, kFrameChecksumAt, Crc32c(Bytes(bytes)));
  }
  WEIGHTFS_ASSERT(FrameSize(Bytes(bytes)) <= kLargestFrame);
  const auto header = OpenFrame(Bytes(bytes));
  if (!header) return;
  WEIGHTFS_ASSERT(kFrameHeaderSize + header->payload_size <= bytes.size());
  WEIGHTFS_ASSERT(header->first_entry == kNoEntry || header->first_entry < header->payload_size);
  std::string again = bytes;
  WEIGHTFS_ASSERT(SealFrame(*header, std::as_writable_bytes(std::span(again))) == bytes.size());
  if (repaired) WEIGHTFS_ASSERT(again == bytes);
  const auto same = OpenFrame(Bytes(again));
  WEIGHTFS_ASSERT(same && same->store_id == header->store_id && same->stream == header->stream &&
                  same->number == header->number && same->first_entry == header->first_entry &&
                  same->payload_size == header->payload_size && same->time_ns == header->time_ns);
}

void CheckRoot(std::string bytes, bool repaired) {
  if (repaired && bytes.size() >= kBodyReservedAt + sizeof(uint16_t)) {
    Root model;
    if (bytes[kRootVersionAt] == 2) model.lists.resize(kListCopies);
    bytes.replace(0, kRootSizeAt, EncodeRoot(model), 0, kRootSizeAt);
    Put(bytes, kRootSizeAt, static_cast<uint32_t>(bytes.size()));
    Put(bytes, kRootReservedAt, uint32_t{0});
    Put(bytes, kBodyReservedAt, uint16_t{1});  // the log has every change
    Put(bytes, kRootChecksumAt, Crc32c(Bytes(bytes).subspan(kRootBodyAt)));
    bytes.resize(RoundUp(bytes.size(), kBlockSize));
  }
  WEIGHTFS_ASSERT(RootSize(bytes) <= kRootCapacity);
  const auto root = DecodeRoot(bytes);
  if (!root) return;
  WEIGHTFS_ASSERT(root->checkpoint.sequence <= kMost);
  for (const Segment& segment : SegmentsOf(*root)) {
    const auto run = segment.run.run;
    WEIGHTFS_ASSERT(run.count.value > 0 && run.start.value <= kMost / kBlockSize - run.count.value);
  }
  const std::string again = EncodeRoot(*root);
  if (repaired) WEIGHTFS_ASSERT(again == bytes);
  const auto same = DecodeRoot(again);
  WEIGHTFS_ASSERT(same && EncodeRoot(*same) == again);
}

void CheckList(const std::string& bytes) {
  Root root;
  if (DecodeList(bytes, &root)) WEIGHTFS_ASSERT(EncodeList(root) == bytes);
}

}  // namespace
}  // namespace weightfs::wal

std::vector<std::string> weightfs::fuzz::Seeds() {
  using namespace weightfs::wal;
  KvBatch batch;
  batch.Put("key", "value");
  batch.Delete("gone");
  batch.DeleteRange("a", "b");
  Version version{41, 7};
  Root root{.sequence = 5, .checkpoint = {9, 1}, .checkpoint_frames = 2, .description = "{}"};
  root.checkpoint_stream = {1, {{.run = {DeviceId{0}, {DeviceBlock{512}, BlockCount{64}}}, .begun = 4}}};
  root.log = {2, {{{DeviceId{1}, {DeviceBlock{9}, BlockCount{1}}}, kUnknownFrame, 9}, {}}};
  root.log.segments[1].run.run.count = BlockCount{2};
  const std::string entry = EncodePart(batch, version), next = EncodeNext(batch, &version);
  std::string frame(kBlockSize, '\0');
  frame.replace(kFrameHeaderSize, next.size(), next);
  SealFrame({.stream = 2, .number = 1, .first_entry = 0, .payload_size = static_cast<uint32_t>(next.size())},
            std::as_writable_bytes(std::span(frame)));
  const std::string stored = EncodeRoot(root);
  Root listed = root;
  listed.lists = {{4, root.log.segments}, {5, {}}};
  listed.lists[0].segments[1].run.run.start = DeviceBlock{900};
  listed.list_size = EncodeList(root).size();
  // A past finding: a deletion with a value.
  std::string with_value(kEntryHeaderSize, '\0');
  with_value += std::string("\1\4\0\0\0\1\0\0\0gonex", 14);
  return {'\x81' + with_value,
          "\2",  // a past finding: a frame of no bytes
          '\0' + EncodeVersion(version),
          '\1' + entry,
          '\x81' + next,
          '\2' + frame,
          '\x82' + frame.substr(0, kFrameHeaderSize + next.size()),
          '\3' + stored,
          '\3' + EncodeRoot(listed),
          '\4' + EncodeList(root),
          '\x83' + stored.substr(0, Decoder(std::string_view(stored).substr(kRootSizeAt)).Little<uint32_t>())};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs::wal;
  if (size == 0) return 0;
  const std::string bytes(weightfs::fuzz::Text(data + 1, size - 1));
  const bool repaired = (data[0] & 0x80) != 0;
  switch (data[0] & 0x7F) {
    case 0: CheckVersion(bytes); break;
    case 1: CheckEntry(bytes, repaired); break;
    case 2: CheckFrame(bytes, repaired); break;
    case 3: CheckRoot(bytes, repaired); break;
    case 4: CheckList(bytes); break;
    default: break;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "store/wal/wal_format.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace weightfs::wal {
namespace {

KvBatch ABatch() {
  KvBatch batch;
  batch.Put("key", std::string("va\0lue", 6));
  batch.Delete("other");
  batch.DeleteRange("a", "b");
  batch.Put("empty", "");
  return batch;
}

Root ARoot() {
  Root root;
  root.store_id = NewUuid();
  root.device = DeviceId{1};
  root.sequence = 7;
  root.time_ns = -5;
  root.durable = 12;
  root.checkpoint = {100, 0xABCD};
  root.checkpoint_frames = 3;
  root.checkpoint_stream = {.id = 4, .segments = {{{DeviceId{0}, {DeviceBlock{512}, BlockCount{16}}}, 0, 0}}};
  root.log = {.id = 5,
              .segments = {{{DeviceId{1}, {DeviceBlock{600}, BlockCount{16}}}, 9, 99},
                           {{DeviceId{0}, {DeviceBlock{700}, BlockCount{1}}}, kUnknownFrame, 101}}};
  root.description = "{\"format\": 1}\n";
  return root;
}

TEST(ReplicaFormat, EntriesKeepEveryKindOfChange) {
  Version version{41, 7};
  const std::string bytes = EncodeNext(ABatch(), &version);
  EXPECT_EQ(version.sequence, 42U);
  EXPECT_EQ(EntrySize(bytes), bytes.size());
  const auto entry = DecodeEntry(bytes);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->version, version);
  ASSERT_EQ(entry->batch.changes().size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(entry->batch.changes()[i].kind, ABatch().changes()[i].kind);
    EXPECT_EQ(entry->batch.changes()[i].key, ABatch().changes()[i].key);
    EXPECT_EQ(entry->batch.changes()[i].value, ABatch().changes()[i].value);
  }
}

TEST(ReplicaFormat, TheChainDependsOnEveryBatch) {
  Version one, other;
  KvBatch batch;
  batch.Put("k", "1");
  EncodeNext(batch, &one);
  EncodeNext(ABatch(), &other);
  EncodeNext(ABatch(), &one);
  EncodeNext(batch, &other);
  EXPECT_EQ(one.sequence, other.sequence);
  EXPECT_NE(one.chain, other.chain);
}

TEST(ReplicaFormat, ShortenedAndLengthenedEntriesAreRejected) {
  Version version;
  const std::string bytes = EncodeNext(ABatch(), &version);
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(DecodeEntry(bytes.substr(0, size)).has_value());
  EXPECT_FALSE(DecodeEntry(bytes + "x").has_value());
}

TEST(ReplicaFormat, ADeletionWithAValueIsRejected) {
  KvBatch batch;
  batch.Put("key", "value");
  std::string bytes = EncodePart(batch, {1, 1});
  ASSERT_TRUE(DecodeEntry(bytes).has_value());
  bytes[kEntryHeaderSize] = static_cast<char>(KvBatch::Change::Kind::kDelete);
  EXPECT_FALSE(DecodeEntry(bytes).has_value());
}

TEST(ReplicaFormat, NoBytesAreNoFrame) {
  EXPECT_EQ(FrameSize({}), 0U);
  EXPECT_FALSE(OpenFrame({}).has_value());
}

TEST(ReplicaFormat, FramesKeepTheirHeaderAndDetectEveryFlippedByte) {
  FrameHeader header{.store_id = NewUuid(), .stream = 3, .number = 8, .first_entry = 2, .payload_size = 5000};
  std::vector<std::byte> memory(kLargestFrame);
  const size_t size = SealFrame(header, memory);
  ASSERT_EQ(size, 8192U);
  std::span<std::byte> frame(memory.data(), size);
  EXPECT_EQ(FrameSize(frame.first(kBlockSize)), size);
  const auto opened = OpenFrame(frame);
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ(opened->store_id, header.store_id);
  EXPECT_EQ(opened->stream, 3U);
  EXPECT_EQ(opened->number, 8U);
  EXPECT_EQ(opened->first_entry, 2U);
  EXPECT_EQ(opened->payload_size, 5000U);
  for (size_t at = 0; at < size; ++at) {
    frame[at] ^= std::byte{0x10};
    EXPECT_FALSE(OpenFrame(frame).has_value()) << at;
    frame[at] ^= std::byte{0x10};
  }
}

TEST(ReplicaFormat, RootsKeepEveryField) {
  const Root root = ARoot();
  const std::string bytes = EncodeRoot(root);
  ASSERT_EQ(bytes.size() % kBlockSize, 0U);
  EXPECT_EQ(RootSize(bytes.substr(0, kBlockSize)), bytes.size());
  const auto decoded = DecodeRoot(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(EncodeRoot(*decoded), bytes);
  EXPECT_EQ(decoded->store_id, root.store_id);
  EXPECT_EQ(decoded->device.value, 1U);
  EXPECT_EQ(decoded->sequence, 7U);
  EXPECT_EQ(decoded->checkpoint, root.checkpoint);
  EXPECT_EQ(decoded->log.segments[1].begun, 101U);
  EXPECT_EQ(decoded->log.segments[1].first_frame, kUnknownFrame);
  EXPECT_EQ(decoded->description, root.description);
}

TEST(ReplicaFormat, ARootWithListsHasTheirSegmentsAlone) {
  Root root = ARoot();
  const std::string list = EncodeList(root);
  root.lists = {{8, {{{DeviceId{0}, {DeviceBlock{9000}, BlockCount{1}}}, 0, 0}}}, {9, {}}};
  root.list_size = list.size();
  const std::string bytes = EncodeRoot(root);
  auto decoded = DecodeRoot(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(EncodeRoot(*decoded), bytes);
  EXPECT_EQ(decoded->lists[0].segments[0].run.run.start.value, 9000U);
  EXPECT_EQ(decoded->list_size, list.size());
  EXPECT_TRUE(decoded->log.segments.empty());
  ASSERT_TRUE(DecodeList(list, &*decoded));
  EXPECT_EQ(EncodeList(*decoded), list);
  EXPECT_FALSE(DecodeList(list.substr(1), &*decoded));
  // A segment of the list may have no block in common with one of the root.
  decoded->lists[0].segments[0].run = root.log.segments[0].run;
  EXPECT_FALSE(DecodeList(list, &*decoded));
}

TEST(ReplicaFormat, EveryFlippedBitOfARootIsDetected) {
  std::string bytes = EncodeRoot(ARoot());
  Root root;
  const size_t used = bytes.find_last_not_of('\0') + 1;
  for (size_t bit = 0; bit < used * 8; ++bit) {
    if (bit / 8 >= 20 && bit / 8 < 24) continue;  // reserved
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(DecodeRoot(bytes).has_value()) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
}

TEST(ReplicaFormat, ASegmentBeyondEveryOffsetIsRejected) {
  Root root = ARoot();
  BlockRun& run = root.log.segments[0].run.run;
  run = {DeviceBlock{INT64_MAX / kBlockSize - 16}, BlockCount{16}};
  EXPECT_TRUE(DecodeRoot(EncodeRoot(root)).has_value());
  run.count = BlockCount{17};
  EXPECT_FALSE(DecodeRoot(EncodeRoot(root)).has_value());
}

TEST(ReplicaFormat, ImpossibleSegmentsAreRejected) {
  const Root root = ARoot();
  const auto decodes_with = [&](DeviceId device, uint64_t start, uint64_t count) {
    Root other = root;
    other.log.segments[1].run = {device, {DeviceBlock{start}, BlockCount{count}}};
    return DecodeRoot(EncodeRoot(other)).has_value();
  };
  EXPECT_TRUE(decodes_with(DeviceId{0}, 1000, kLargestSegment.value));
  EXPECT_FALSE(decodes_with(DeviceId{0}, 1000, kLargestSegment.value + 1));
  EXPECT_FALSE(decodes_with(DeviceId{0}, 1000, UINT32_MAX));
  EXPECT_FALSE(decodes_with(DeviceId{0}, 1000, 0));
  EXPECT_FALSE(decodes_with(DeviceId{0}, kDataOffset / kBlockSize - 1, 1)) << "the superblocks and roots";
  // The other segments are [512, 528) of device 0 and [600, 616) of device 1.
  EXPECT_TRUE(decodes_with(DeviceId{0}, 528, 8));
  EXPECT_FALSE(decodes_with(DeviceId{0}, 527, 8)) << "overlaps the checkpoint";
  EXPECT_TRUE(decodes_with(DeviceId{1}, 592, 8));
  EXPECT_FALSE(decodes_with(DeviceId{1}, 593, 8)) << "overlaps the log";
  EXPECT_FALSE(decodes_with(DeviceId{1}, 600, 16)) << "the same segment twice";
}

TEST(ReplicaFormat, ARootWithTooManySegmentsIsNotEncoded) {
  Root root = ARoot();
  root.log.segments.resize(kRootCapacity / 30, root.log.segments[0]);
  EXPECT_TRUE(EncodeRoot(root).empty());
}

}  // namespace
}  // namespace weightfs::wal

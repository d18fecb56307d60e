// SPDX-License-Identifier: Apache-2.0
// The log under a whole store: it has every change, and gives the catalog back.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "meta/keys.h"
#include "store/volume/store_directory.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

TestStoreOptions Options(ByteCount size = ByteCount{64 * kMiB}, size_t devices = 1) {
  TestStoreOptions options;
  options.device_size = size;
  options.devices = devices;
  return options;
}

// What a crash after the last event leaves, with everything that was handed over.
CrashImage ImageOf(TestStore& store) {
  return store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
}

// A restored catalog has a version of its own.
KvContent WithoutVersion(KvContent content) {
  content.erase(keys::Store(wal::kVersionFact));
  return content;
}

// Writes to an empty catalog what the log has. Returns the number of damaged frames of the checkpoint.
Result<uint64_t> RestoreCatalog(wal::Devices devices, const wal::Root& root, KvStore& catalog) {
  ASSIGN_OR_RETURN(const uint64_t damaged, wal::ReplayCheckpoint(devices, root, [&](const wal::Entry& part) {
                     return catalog.Write(part.batch);
                   }));
  ASSIGN_OR_RETURN(const auto tail, wal::FindDurableTail(devices, root, root.checkpoint));
  RETURN_IF_ERROR(wal::ReplayLog(devices, root, root.checkpoint, tail.version.sequence, [&](const wal::Entry& entry) {
    return catalog.Write(entry.batch);
  }));
  RETURN_IF_ERROR(catalog.Write(wal::WithVersion({}, tail.version)));
  return damaged;
}

// The catalog that the log in the image gives back; empty if there is none.
KvContent Restored(const CrashImage& image) {
  Restarted restarted = Restart(image);
  const auto devices = restarted.borrowed();
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  if (!root) return {};
  MemoryKvStore catalog(std::make_shared<Journal>());
  const auto restored = RestoreCatalog(devices, *root, catalog);
  EXPECT_TRUE(restored.has_value());
  return catalog.content();
}

TEST(Log, HoldsTheWholeCatalogAfterAClose) {
  TestStore store(Options());
  for (int i = 0; i < 50; ++i) ASSERT_OK(store.WriteFile("f" + std::to_string(i), Pattern(i, 5000)));
  ASSERT_OK(store->names().SetExtendedAttribute(store.Resolve("f7").value(), "user.a", "b", AttributeWrite::kAny));
  ASSERT_OK(store->names().Unlink(kRootInode, "f9"));
  ASSERT_OK(store->Close());
  const CrashImage image = ImageOf(store);
  EXPECT_EQ(WithoutVersion(Restored(image)), WithoutVersion(image.kv));
}

TEST(Log, FollowsTheCatalogThroughManyMountsAndCheckpoints) {
  TestStore store(Options());
  std::mt19937_64 random(1);
  for (int mount = 0; mount < 6; ++mount) {
    for (int i = 0; i < 300; ++i) {
      ASSERT_OK(store.WriteFile("f" + std::to_string(random() % 60), Pattern(random(), random() % 3000)));
      if (i % 20 == 0) ASSERT_OK(store->SyncAll());
    }
    ASSERT_OK(store->Close());
    const CrashImage image = ImageOf(store);
    ASSERT_EQ(WithoutVersion(Restored(image)), WithoutVersion(image.kv)) << "mount " << mount;
    ASSERT_OK(store.Remount());
  }
}

TEST(Log, IsStripedOverDevicesAndFoundOnEach) {
  TestStore store(Options(ByteCount{64 * kMiB}, 3));
  ASSERT_OK(store.WriteFile("a", Pattern(1, 100000)));
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  Restarted restarted = Restart(image);
  for (const auto& device : restarted.devices) {
    BlockDevice* const one[] = {device.get()};
    EXPECT_TRUE(wal::FindRoot(one, std::nullopt).value().has_value());
  }
  EXPECT_EQ(WithoutVersion(Restored(image)), WithoutVersion(image.kv));
}

TEST(Log, AStoreOpensFromARestoredCatalog) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", Pattern(1, 3'000'000)));
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  image.kv = Restored(image);
  TestStore again(image, Options());
  ASSERT_OK(again.opened());
  EXPECT_EQ(again.ReadPath("a").value(), Pattern(1, 3'000'000));
  ASSERT_OK(again.WriteFile("b", Pattern(2, 100000)));
  ASSERT_OK(again->Close());
  EXPECT_EQ(WithoutVersion(Restored(ImageOf(again))), WithoutVersion(ImageOf(again).kv));
}

TEST(Log, TakesNoSpaceThatFilesHaveAndReturnsOldCheckpoints) {
  TestStore store(Options());
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  const BlockCount before = store->Space().free;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 20; ++i) ASSERT_OK(store.WriteFile("f" + std::to_string(i), Pattern(i, 100)));
    ASSERT_OK(store->SyncAll());
  }
  for (int i = 0; i < 20; ++i) ASSERT_OK(store->names().Unlink(kRootInode, "f" + std::to_string(i)));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  EXPECT_GE(store->Space().free.value + kMiB / kBlockSize, before.value);
}

TEST(Log, AFullPoolLeavesItBehindAndItCatchesUp) {
  TestStoreOptions options = Options(ByteCount{16 * kMiB});
  TestStore store(options);
  const InodePtr file = store.Create("big").value();
  uint64_t at = 0;
  while (store.WriteAt(file, at, Pattern(1, kMiB)).has_value()) at += kMiB;
  store->CloseFile(file);
  for (int i = 0; i < 3000; ++i) {
    if (!store.Create("n" + std::to_string(i)).has_value()) break;
    if (i % 10 == 0) ASSERT_OK(store->SyncAll());
  }
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  ASSERT_OK(store->names().Unlink(kRootInode, "big"));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  ASSERT_OK(store->Close());
  EXPECT_TRUE(WithoutVersion(Restored(ImageOf(store))) == WithoutVersion(ImageOf(store).kv));
}

// A damaged or foreign root may list blocks that belong to files.
TEST(Log, IsNotWrittenIfItsBlocksBelongToFiles) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", Pattern(1, 5'000'000)));
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  Restarted restarted = Restart(image);
  const auto devices = restarted.borrowed();
  auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  const DeviceRun& all = {DeviceId{0}, {DeviceBlock{512}, BlockCount{2000}}};
  root->sequence += 7;
  root->log.segments.push_back({all, wal::kUnknownFrame, 0});
  const std::string bytes = wal::EncodeRoot(*root);
  for (const uint64_t offset : wal::kRootOffsets) {
    AlignedMemory memory(bytes.size());
    std::copy_n(AsBytes(bytes).data(), bytes.size(), memory.data());
    ASSERT_OK(devices[0]->Write(ByteOffset{offset}, memory.bytes()));
  }
  ASSERT_OK(devices[0]->Flush());
  image = restarted.journal->ImageAt(restarted.journal->size());
  image.kv = ImageOf(store).kv;
  TestStore again(image, Options());
  ASSERT_OK(again.opened());
  EXPECT_TRUE(again->read_only());
  EXPECT_EQ(again.ReadPath("a").value(), Pattern(1, 5'000'000));
}

TEST(Log, CatchesAnOlderIndexUp) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->SyncAll());
  const KvContent old = store.kv().content();
  ASSERT_OK(store.WriteFile("a", "2"));
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  for (const KvContent& index : {old, KvContent()}) {
    image.kv = index;
    TestStore again(image, Options());
    ASSERT_OK(again.opened());
    EXPECT_EQ(again.ReadPath("a").value(), "2");
  }
}

// It has stored changes that the log has lost in a power cut, as RocksDB may have. They must go.
TEST(Log, AnIndexThatIsNewerIsReplaced) {
  TestStoreOptions options = Options();
  options.store.commit_interval = std::chrono::hours(1);
  TestStore store(options);
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->SyncAll());
  CreateRequest request;
  request.mode = S_IFDIR | 0755;
  ASSERT_TRUE(store->names().Create(kRootInode, "lost", request).has_value());
  const CrashImage image = store.journal().ImageAt(
      store.journal().size(), {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 0.0, .kv_survival = 1.0});
  TestStore again(image, Options());
  ASSERT_OK(again.opened());
  EXPECT_EQ(again.ReadPath("a").value(), "1");
  EXPECT_EQ(again.Resolve("lost").error().code, ErrorCode::kNotFound);
  ASSERT_OK(again.WriteFile("b", "2"));
  ASSERT_OK(again.Remount());
  EXPECT_EQ(again.ReadPath("b").value(), "2");
}

TEST(Log, ChangesOfNamesAreDurableAfterTheCommitInterval) {
  TestStoreOptions options = Options(ByteCount{8192 * kMiB});
  TestStore store(options);
  ASSERT_OK(store->Close());
  options.store.commit_interval = std::chrono::milliseconds(20);
  TestStore again(ImageOf(store), options);
  ASSERT_OK(again.opened());
  for (const char* name : {"user.first", "user.second"}) {
    ASSERT_OK(again->names().SetExtendedAttribute(kRootInode, name, "x", AttributeWrite::kAny));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    const auto survives = [&] {
      const CrashImage image = again.journal().ImageAt(
          again.journal().size(), {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 0.0, .kv_survival = 0.0});
      return Restored(image).contains(keys::Attribute(kRootInode, name));
    };
    while (!survives()) ASSERT_LT(std::chrono::steady_clock::now(), deadline) << name;
  }
}

// The numbers of the events after writes of roots.
std::vector<size_t> CutsAfterRoots(TestStore& store) {
  std::vector<size_t> cuts;
  const auto events = store.journal().events();
  for (size_t number = 0; number < events.size(); ++number) {
    const auto& offsets = wal::kRootOffsets;
    const bool root = std::ranges::find(offsets, events[number].offset.value) != offsets.end();
    if (events[number].kind == Journal::Event::Kind::kWrite && root) cuts.push_back(number + 1);
  }
  return cuts;
}

TEST(Log, ACheckpointIsNotNewerThanTheSyncedCatalog) {
  TestStore store(Options());
  const InodeId ino = store.Create("a").value()->id;
  const std::string value(60 * kKiB, 'x');
  for (int round = 0; store->statistics().log.checkpoints < 4; ++round) {
    const std::string name = "user." + std::to_string(round % 4);
    ASSERT_OK(store->names().SetExtendedAttribute(ino, name, value, AttributeWrite::kAny));
    if (round % 40 == 39) ASSERT_OK(store->SyncAll());
  }
  for (const size_t cut : CutsAfterRoots(store)) {
    const CrashImage image = store.journal().ImageAt(
        cut, {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 1.0, .kv_survival = 0.0, .torn = false});
    TestStore again(image, Options());
    ASSERT_OK(again.opened());
  }
}

void CutWritesOfRoots(size_t largest_root) {
  TestStoreOptions options = Options();
  options.largest_root = largest_root;
  TestStore store(options);
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());  // a root is durable, and the journal starts anew
  for (int round = 0; round < 300; ++round) {
    ASSERT_OK(store.WriteFile("f" + std::to_string(round % 20), Pattern(round, 100)));
    if (round % 10 == 0) ASSERT_OK(store->SyncAll());
  }
  ASSERT_OK(store->Close());
  const auto cuts = CutsAfterRoots(store);
  EXPECT_GT(cuts.size(), 4U);
  for (const size_t cut : cuts) {
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      const CrashImage image = store.journal().ImageAt(cut, {.seed = seed, .device_survival = 1.0});
      Restarted restarted = Restart(image);
      auto root = wal::FindRoot(restarted.borrowed(), std::nullopt).value();
      ASSERT_TRUE(root.has_value()) << "cut " << cut;
      ASSERT_FALSE(root->newer_lost) << "cut " << cut;
      ASSERT_EQ(root->lists.empty(), largest_root == wal::kRootCapacity);
      ASSERT_OK(wal::LoadSegments(restarted.borrowed(), &*root));
    }
  }
}

TEST(Log, ATornWriteOfARootLeavesTheRootBefore) { CutWritesOfRoots(wal::kRootCapacity); }

TEST(Log, ATornWriteOfARootLeavesTheListsOfTheRootBefore) { CutWritesOfRoots(1); }

// Damage that the last mark shows to be no crash.
TEST(Log, ADamagedFrameBeforeTheLastMarkIsNotTakenForTheEnd) {
  TestStore store(Options());
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(store.WriteFile("f" + std::to_string(i), "1"));
    ASSERT_OK(store->SyncAll());
  }
  ASSERT_OK(store->Close());
  Restarted restarted = Restart(ImageOf(store));
  const auto devices = restarted.borrowed();
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  restarted.devices[0]->Corrupt(ToBytes(root->log.segments.front().run.run.start + BlockCount{1}));
  const auto tail = wal::FindDurableTail(devices, *root, root->checkpoint);
  ASSERT_OK(tail);
  EXPECT_TRUE(tail->damaged);
}

// A bit may flip on the way from a sound device.
TEST(Log, AReadThatDiffersOnceEndsNoLog) {
  TestStore store(Options());
  for (const char* name : {"a", "b"}) {
    ASSERT_OK(store.WriteFile(name, Pattern(1, 20000)));
    ASSERT_OK(store->SyncAll());
  }
  const CrashImage image = ImageOf(store);
  const auto last_entry = [&](uint64_t flipped, bool* lied) {
    Restarted restarted = Restart(image);
    const auto devices = restarted.borrowed();
    restarted.devices[0]->StartLying(FaultDevice::Lie::kFlippedRead, flipped);
    wal::Root root = Must(wal::FindRoot(devices, std::nullopt)).value();
    EXPECT_FALSE(root.newer_lost) << flipped;
    EXPECT_TRUE(wal::LoadSegments(devices, &root).has_value());
    const wal::Tail tail = Must(wal::FindDurableTail(devices, root, root.checkpoint));
    EXPECT_FALSE(tail.damaged) << flipped;
    *lied = restarted.devices[0]->has_lied();
    return tail.version.sequence;
  };
  bool lied = true;
  const uint64_t right = last_entry(UINT64_MAX, &lied);
  ASSERT_FALSE(lied);
  uint64_t flipped = 0;
  do {
    EXPECT_EQ(last_entry(++flipped, &lied), right) << flipped;
  } while (lied);
  EXPECT_GT(flipped, 10U);
}

// An entry whose data did not reach the device before the power failed.
TEST(Log, EndsBeforeAnEntryWithoutItsData) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", Pattern(1, 20000)));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.WriteFile("b", Pattern(2, 20000)));
  ASSERT_OK(store->SyncAll());
  const auto inode = store.OpenPath("b").value();
  const auto extents = store->files().Extents(inode, FileBlock{0}, 10).value();
  const CrashImage image = store.journal().ImageAt(
      store.journal().size(), {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 1.0, .kv_survival = 1.0});
  Restarted restarted = Restart(image);
  restarted.devices[0]->Corrupt(ToBytes(extents.front().start) + ByteCount{4096 + 5});
  const CrashImage broken = restarted.journal->ImageAt(restarted.journal->size());
  TestStore again(broken, Options());
  ASSERT_OK(again.opened());
  EXPECT_EQ(again.ReadPath("a").value(), Pattern(1, 20000));
  EXPECT_NE(again.ReadPath("b").value_or("none"), Pattern(2, 20000));
  ASSERT_OK(again.WriteFile("b", "new"));
  ASSERT_OK(again.Remount());
  EXPECT_EQ(again.ReadPath("b").value(), "new");
}

TEST(Log, AnUnreadableBlockIsDamageLikeAnyOther) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->Close());
  Restarted restarted = Restart(ImageOf(store));
  const auto devices = restarted.borrowed();
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  restarted.devices[0]->Fail(FaultDevice::Target::kRead, {.nth = 1, .and_later = true});
  MemoryKvStore catalog(std::make_shared<Journal>());
  const auto restored = RestoreCatalog(devices, *root, catalog);
  ASSERT_TRUE(restored.has_value());
  EXPECT_GE(*restored, 1U);
}

TEST(Log, AFailedCheckpointLeavesTheLogGoing) {
  TestStore store(Options());
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  store.kv().FailIterator(1);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(store.Create("file-with-a-long-name-" + std::to_string(i)).has_value());
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store->Close());
  EXPECT_TRUE(WithoutVersion(Restored(ImageOf(store))) == WithoutVersion(ImageOf(store).kv));
}

TEST(Log, ADamagedFrameOfTheCheckpointCostsOnlyItsRecords) {
  TestStore store(Options());
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(store.Create("file-with-a-long-name-" + std::to_string(i)).has_value());
  }
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  // A catalog with a change that the log lacks: the next mount writes a checkpoint.
  auto version = *wal::DecodeVersion(image.kv[keys::Store(wal::kVersionFact)]);
  ++version.sequence;
  image.kv[keys::Store(wal::kVersionFact)] = wal::EncodeVersion(version);
  TestStore again(image, Options());
  ASSERT_OK(again->Close());
  Restarted restarted = Restart(ImageOf(again));
  const auto devices = restarted.borrowed();
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  const DeviceRun& run = root->checkpoint_stream.segments.front().run;
  restarted.devices[0]->Corrupt(ToBytes(run.run.start));
  MemoryKvStore catalog(std::make_shared<Journal>());
  const auto restored = RestoreCatalog(devices, *root, catalog);
  ASSERT_TRUE(restored.has_value());
  EXPECT_GE(*restored, 1U);
  EXPECT_GE(catalog.content().size(), 1000U);
  EXPECT_LT(catalog.content().size(), image.kv.size());
}

// A log that fills a device from its data area on, without an entry. Every segment has a known first frame, so the
// search for the last entry may begin at each.
wal::Root LongLog(ByteCount device, BlockCount segment) {
  wal::Root root;
  root.log.id = 1;
  DeviceBlock at{kDataOffset / kBlockSize};
  for (; ToBytes(at + segment).value <= device.value; at += segment) {
    root.log.segments.push_back({.run = {DeviceId{0}, {at, segment}}, .first_frame = root.log.segments.size()});
  }
  return root;
}

TEST(Log, ALogWithoutEntriesIsReadAFewTimes) {
  constexpr ByteCount kSize{64 * kMiB};
  FaultDevice device(std::make_shared<Journal>(), kSize);
  BlockDevice* const devices[] = {&device};
  const auto tail = wal::FindTail(devices, LongLog(kSize, BlockCount{4}), {});
  ASSERT_TRUE(tail.has_value());
  EXPECT_FALSE(tail->damaged);
  EXPECT_LE(device.counts().read.value, 8 * kSize.value);
}

TEST(Log, ASegmentOutsideItsDeviceIsNotRead) {
  constexpr ByteCount kSize{64 * kMiB};
  FaultDevice device(std::make_shared<Journal>(), ByteCount{4 * kMiB});
  BlockDevice* const devices[] = {&device};
  ASSERT_TRUE(wal::FindTail(devices, LongLog(kSize, wal::kLargestSegment), {}).has_value());
  EXPECT_EQ(device.counts().reads, 0U);
}

TEST(Log, BlocksThatLookLikeFramesAreReadAFewTimes) {
  constexpr ByteCount kSize{34 * kMiB};
  FaultDevice device(std::make_shared<Journal>(), kSize);
  // Each block is the header of a frame of the largest size, whose checksum is wrong.
  AlignedMemory memory(wal::kLargestFrame);
  const wal::FrameHeader header{
      .stream = 1, .first_entry = 0, .payload_size = wal::kLargestFrame - wal::kFrameHeaderSize};
  wal::SealFrame(header, memory.bytes());
  for (uint64_t at = kBlockSize; at < memory.size(); at += kBlockSize) {
    std::memcpy(memory.data() + at, memory.data(), kBlockSize);
  }
  for (uint64_t at = kDataOffset; at < kSize.value; at += memory.size()) {
    ASSERT_OK(device.Write(ByteOffset{at}, memory.bytes()));
  }
  BlockDevice* const devices[] = {&device};
  const auto tail = wal::FindTail(devices, LongLog(kSize, wal::kLargestSegment), {});
  ASSERT_TRUE(tail.has_value());
  EXPECT_FALSE(tail->damaged);
  EXPECT_LE(device.counts().read.value, 32 * kSize.value);
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The replica of the catalog under a whole store: it follows the catalog, and gives it back.
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
#include "store/wal/logged_kv_store.h"
#include "store/volume/store_directory.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

TestStoreOptions Options(ByteCount size = ByteCount{64 * kMiB}, size_t devices = 1) {
  TestStoreOptions options;
  options.device_size = size;
  options.devices = devices;
  options.replica = true;
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

// The catalog that the replica in the image gives back; empty if there is none.
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

TEST(Replica, HoldsTheWholeCatalogAfterAClose) {
  TestStore store(Options());
  for (int i = 0; i < 50; ++i) ASSERT_OK(store.WriteFile("f" + std::to_string(i), Pattern(i, 5000)));
  ASSERT_OK(store->names().SetExtendedAttribute(store.Resolve("f7").value(), "user.a", "b", AttributeWrite::kAny));
  ASSERT_OK(store->names().Unlink(kRootInode, "f9"));
  ASSERT_OK(store->Close());
  const CrashImage image = ImageOf(store);
  EXPECT_EQ(WithoutVersion(Restored(image)), WithoutVersion(image.kv));
}

TEST(Replica, FollowsTheCatalogThroughManyMountsAndCheckpoints) {
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

TEST(Replica, IsStripedOverDevicesAndFoundOnEach) {
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

TEST(Replica, AStoreOpensFromARestoredCatalog) {
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

TEST(Replica, TakesNoSpaceThatFilesHaveAndReturnsOldCheckpoints) {
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

TEST(Replica, AFullPoolLeavesItBehindAndItCatchesUp) {
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
  EXPECT_EQ(WithoutVersion(Restored(ImageOf(store))), WithoutVersion(ImageOf(store).kv));
}

// A damaged or foreign root may list blocks that belong to files.
TEST(Replica, IsRenewedIfItsBlocksBelongToFiles) {
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
  EXPECT_EQ(again.ReadPath("a").value(), Pattern(1, 5'000'000));
  ASSERT_OK(again.WriteFile("b", Pattern(2, 100)));
  ASSERT_OK(again->Close());
  EXPECT_EQ(WithoutVersion(Restored(ImageOf(again))), WithoutVersion(ImageOf(again).kv))
      << "the new root has a greater number";
}

TEST(Replica, NoticesACatalogThatIsOlder) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->SyncAll());
  const KvContent old = store.kv().content();
  ASSERT_OK(store.WriteFile("a", "2"));
  ASSERT_OK(store->Close());
  CrashImage image = ImageOf(store);
  image.kv = old;
  TestStore again(image, Options());
  ASSERT_FALSE(again.opened().has_value());
  EXPECT_EQ(again.opened().error().code, ErrorCode::kCorrupt);
}

TEST(Replica, HasNoBatchThatTheCatalogHasNotSynced) {
  // So large that no checkpoint is due, which would sync the catalog.
  TestStoreOptions options = Options(ByteCount{8192 * kMiB});
  options.store.commit_interval = std::chrono::hours(1);
  TestStore store(options);
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  const InodeId other = store.Create("b").value()->id, ino = store.Create("a").value()->id;
  ASSERT_OK(store->SyncAll());
  // So much that the replica is written at once.
  const std::string value(60 * kKiB, 'x');
  for (const InodeId of : {other, ino}) {
    for (const char* name : {"user.1", "user.2", "user.3"}) {
      ASSERT_OK(store->names().SetExtendedAttribute(of, name, value, AttributeWrite::kAny));
    }
  }
  store.kv().DuringSync([&] {
    ASSERT_OK(store->names().SetExtendedAttribute(ino, "user.late", "x", AttributeWrite::kAny));
  });
  ASSERT_OK(store->SyncAll());
  const std::string last = keys::Attribute(ino, "user.3"), late = keys::Attribute(ino, "user.late");
  KvContent restored;
  while (!restored.contains(last)) restored = Restored(ImageOf(store));
  EXPECT_FALSE(restored.contains(late));
  const CrashImage image = store.journal().ImageAt(
      store.journal().size(), {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 1.0, .kv_survival = 0.0});
  EXPECT_FALSE(image.kv.contains(late));
  TestStore again(image, options);
  ASSERT_OK(again.opened());
}

TEST(Replica, ChangesOfNamesAreDurableAfterTheCommitInterval) {
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
          again.journal().size(), {.kind = CrashOptions::Kind::kPowerLoss, .device_survival = 1.0, .kv_survival = 0.0});
      return image.kv.contains(keys::Attribute(kRootInode, name));
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

TEST(Replica, ACheckpointIsNotNewerThanTheSyncedCatalog) {
  TestStore store(Options());
  const InodeId ino = store.Create("a").value()->id;
  const std::string value(60 * kKiB, 'x');
  for (int round = 0; store->statistics().replica.checkpoints < 4; ++round) {
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
      ASSERT_EQ(root->lists.empty(), largest_root == wal::kRootCapacity);
      ASSERT_OK(wal::LoadSegments(restarted.borrowed(), &*root));
    }
  }
}

TEST(Replica, ATornWriteOfARootLeavesTheRootBefore) { CutWritesOfRoots(wal::kRootCapacity); }

TEST(Replica, ATornWriteOfARootLeavesTheListsOfTheRootBefore) { CutWritesOfRoots(1); }

TEST(Replica, CatchUpGivesAnOlderCatalogItsLastChanges) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  const KvContent old = store.kv().content();
  ASSERT_OK(store.WriteFile("a", "22"));
  ASSERT_OK(store.WriteFile("b", "333"));
  ASSERT_OK(store->Close());
  const CrashImage image = ImageOf(store);
  Restarted restarted = Restart(image);
  const auto devices = restarted.borrowed();
  MemoryKvStore catalog(std::make_shared<Journal>(), old);
  const auto state = InspectReplica(devices, {}, catalog);
  ASSERT_TRUE(state.has_value() && state->CatalogIsBehind());
  ASSERT_TRUE(CatchUp(devices, *state, catalog).has_value());
  EXPECT_EQ(WithoutVersion(catalog.content()), WithoutVersion(image.kv));
}

TEST(Replica, ADamagedLogEndsThereAndTheStoreOpens) {
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("first", "1"));
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  // Two frames at least: a damaged last frame cannot be told from one that a crash interrupted.
  ASSERT_OK(store.WriteFile("later", "2"));
  ASSERT_OK(store->SyncAll());
  while (WithoutVersion(Restored(ImageOf(store))) != WithoutVersion(store.kv().content())) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) ASSERT_OK(store.WriteFile("later" + std::to_string(i), "2"));
  ASSERT_OK(store->Close());
  const CrashImage image = ImageOf(store);
  Restarted restarted = Restart(image);
  const auto devices = restarted.borrowed();
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  const auto tail = wal::FindTail(devices, *root);
  ASSERT_TRUE(tail.has_value() && tail->version.sequence > root->checkpoint.sequence);
  restarted.devices[0]->Corrupt(ToBytes(root->log.segments.front().run.run.start));
  MemoryKvStore catalog(std::make_shared<Journal>());
  const auto restored = RestoreCatalog(devices, *root, catalog);
  ASSERT_TRUE(restored.has_value());
  EXPECT_FALSE(restored->complete());
  const auto state = InspectReplica(devices, {}, catalog);
  ASSERT_TRUE(state.has_value());
  EXPECT_FALSE(state->CatalogIsBehind()) << "a restored catalog can be mounted";
}

// A replica that is taken for damaged is renewed, and no longer completes the catalog.
TEST(Replica, ALackOfMemoryIsNoDamage) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer needs the memory";
#endif
  TestStore store(Options());
  ASSERT_OK(store.WriteFile("a", "1"));
  ASSERT_OK(store->Close());
  Restarted restarted = Restart(ImageOf(store));
  const auto devices = restarted.borrowed();
  ASSERT_OK(InspectReplica(devices, {}, *restarted.kv));
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const uint64_t used = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (const uint64_t left : {wal::kRootCapacity / 2, wal::kLargestFrame / 2}) {  // too little for each
    const struct rlimit little = {used + 4 * left, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
    // The allocator has free memory of its own, too. One piece of `left` bytes remains, with at most a quarter on each
    // side.
    void* last = std::malloc(left);
    *static_cast<volatile char*>(last) = 0;  // so that the compiler does not remove it
    std::vector<void*> taken;
    taken.reserve(little.rlim_cur / left * 4);
    for (uint64_t size = left; size >= left / 4; size /= 2) {
      while (void* piece = std::malloc(size)) taken.push_back(piece);
    }
    std::free(last);
    const auto state = InspectReplica(devices, {}, *restarted.kv);
    std::for_each(taken.begin(), taken.end(), std::free);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    // It depends on the allocator whether the log can be read with that little.
    if (state.has_value()) {
      EXPECT_GE(left, wal::kRootCapacity);
      EXPECT_FALSE(state->CatalogIsBehind());
    } else {
      EXPECT_EQ(state.error().code, ErrorCode::kNoMemory) << left;
    }
  }
}

TEST(Replica, AnUnreadableBlockIsDamageLikeAnyOther) {
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
  EXPECT_FALSE(restored->complete());
}

TEST(Replica, AFailedCheckpointLeavesTheLogGoing) {
  TestStore store(Options());
  ASSERT_OK(store->Close());
  ASSERT_OK(store.Remount());
  store.kv().FailIterator(1);
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(store.Create("file-with-a-long-name-" + std::to_string(i)).has_value());
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store->Close());
  EXPECT_EQ(WithoutVersion(Restored(ImageOf(store))), WithoutVersion(ImageOf(store).kv));
}

TEST(Replica, ADamagedFrameOfTheCheckpointCostsOnlyItsRecords) {
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
  EXPECT_GE(restored->damaged_frames, 1U);
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

TEST(Replica, ALogWithoutEntriesIsReadAFewTimes) {
  constexpr ByteCount kSize{64 * kMiB};
  FaultDevice device(std::make_shared<Journal>(), kSize);
  BlockDevice* const devices[] = {&device};
  const auto tail = wal::FindTail(devices, LongLog(kSize, BlockCount{4}));
  ASSERT_TRUE(tail.has_value());
  EXPECT_FALSE(tail->damaged);
  EXPECT_LE(device.counts().read.value, 8 * kSize.value);
}

TEST(Replica, ASegmentOutsideItsDeviceIsNotRead) {
  constexpr ByteCount kSize{64 * kMiB};
  FaultDevice device(std::make_shared<Journal>(), ByteCount{4 * kMiB});
  BlockDevice* const devices[] = {&device};
  ASSERT_TRUE(wal::FindTail(devices, LongLog(kSize, wal::kLargestSegment)).has_value());
  EXPECT_EQ(device.counts().reads, 0U);
}

TEST(Replica, BlocksThatLookLikeFramesAreReadAFewTimes) {
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
  const auto tail = wal::FindTail(devices, LongLog(kSize, wal::kLargestSegment));
  ASSERT_TRUE(tail.has_value());
  EXPECT_FALSE(tail->damaged);
  EXPECT_LE(device.counts().read.value, 32 * kSize.value);
}

}  // namespace
}  // namespace weightfs

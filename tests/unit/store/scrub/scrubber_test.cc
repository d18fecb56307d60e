// SPDX-License-Identifier: Apache-2.0
// Scrubs of a whole store: they find damage, and nothing else.
#include <algorithm>
#include <gtest/gtest.h>
#include <random>

#include "meta/keys.h"
#include "store/scrub/scrubber.h"
#include "tests/support/result_asserts.h"
#include "tests/support/seeds.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

TestStoreOptions Options(bool read_only = false) {
  TestStoreOptions options;
  options.store.scrub = {.period = std::chrono::hours(24), .own_thread = false};
  options.store.read_only = read_only;
  return options;
}

// Runs one scrub to its end. Returns the number of steps.
int RunScrub(TestStore& store) {
  int steps = 0;
  while (store->scrubber().Step()) ++steps;
  return steps;
}

ScrubFindings Last(TestStore& store) { return store->Scrub().state.last_found; }

// The device address of a byte of a file whose data is on the device.
ByteOffset PlaceOf(TestStore& store, const InodePtr& inode, uint64_t offset) {
  const auto extents = store->files().Extents(inode, FileBlock{offset / kBlockSize}, 1);
  EXPECT_TRUE(extents.has_value() && !extents->empty());
  const FileExtent& extent = extents->front();
  return ToBytes(extent.start) + ByteCount{offset - ToBytes(extent.first).value};
}

void Damage(TestStore& store, const InodePtr& inode, uint64_t offset) {
  store.device().Corrupt(PlaceOf(store, inode, offset));
}

InodePtr Written(TestStore& store, std::string_view path, std::string_view data) {
  auto inode = store.Create(path);
  EXPECT_TRUE(inode.has_value());
  EXPECT_TRUE(store.WriteAt(*inode, 0, data).has_value());
  EXPECT_TRUE(store->Sync(*inode).has_value());
  return *inode;
}

TEST(Scrub, FindsNothingInAnIntactStore) {
  TestStore store(Options());
  for (int i = 0; i < 20; ++i) Written(store, "f" + std::to_string(i), Pattern(i, i * 100'000 + 1));
  EXPECT_GT(RunScrub(store), 20);
  const ScrubReport report = store->Scrub();
  EXPECT_TRUE(report.state.last_found.clean());
  EXPECT_GE(report.state.checked_bytes, 19'000'000U);
  EXPECT_GT(report.state.last_completed_ns, 0);
  EXPECT_GE(report.next_ns, report.state.last_started_ns);
  EXPECT_EQ(store->statistics().resident_inodes, 21U) << "the scrub loaded inodes";
  EXPECT_GE(store->statistics().device_read_bytes, 19'000'000U);
}

TEST(Scrub, CountsEachDamagedBlockOnce) {
  TestStore store(Options());
  Written(store, "a", Pattern(1, 3 * kMiB));
  const InodePtr b = Written(store, "b", Pattern(2, 3 * kMiB + 100));
  const InodePtr c = Written(store, "c", Pattern(3, 100));
  for (const uint64_t offset : {kMiB + 5, kMiB + 4096, 3 * kMiB + 7}) Damage(store, b, offset);
  Damage(store, c, 0);
  for (int round = 0; round < 2; ++round) {
    RunScrub(store);
    const ScrubFindings found = Last(store);
    EXPECT_EQ(found.blocks, 4U);
    EXPECT_EQ(found.files, 2U);
    ASSERT_EQ(found.listed.size(), 2U);
    EXPECT_EQ(found.listed[0].path, "b");
    EXPECT_EQ(found.listed[0].offset, kMiB);
    EXPECT_EQ(found.listed[0].blocks, 3U);
    EXPECT_EQ(found.listed[1].ino, c->id);
  }
  EXPECT_EQ(store->statistics().checksum_errors, 0U) << "scrubs count their own errors";
}

TEST(Scrub, ForgetsDamageThatIsGone) {
  TestStore store(Options());
  const InodePtr file = Written(store, "a", Pattern(1, kMiB));
  Damage(store, file, 5000);
  RunScrub(store);
  EXPECT_EQ(Last(store).blocks, 1U);
  ASSERT_OK(store.WriteAt(file, 4096, Pattern(2, 4096)));
  ASSERT_OK(store->Sync(file));
  RunScrub(store);
  EXPECT_TRUE(Last(store).clean());
}

TEST(Scrub, ReportsBlocksThatCannotBeRead) {
  TestStore store(Options());
  Written(store, "a", Pattern(1, 8192));
  store.device().Fail(FaultDevice::Target::kRead, {.and_later = true});
  RunScrub(store);
  EXPECT_EQ(Last(store).blocks, 2U);
  store.device().StopFailing();
  RunScrub(store);
  EXPECT_TRUE(Last(store).clean());
}

TEST(Scrub, ReportsBlocksWithoutChecksums) {
  TestStore store(Options());
  const InodePtr file = Written(store, "a", Pattern(1, 2 * kMiB));
  KvBatch batch;
  batch.Delete(keys::Checksums(file->id, 1));
  ASSERT_OK(store.kv().Write(std::move(batch)));
  RunScrub(store);
  EXPECT_EQ(Last(store).blocks, kMiB / kBlockSize);
}

TEST(Scrub, ReportsDamageOfTheCatalog) {
  TestStore store(Options());
  store.kv().DamageTables(true);
  RunScrub(store);
  EXPECT_TRUE(Last(store).catalog);
  store.kv().DamageTables(false);
  RunScrub(store);
  EXPECT_FALSE(Last(store).catalog);
}

TEST(Scrub, SkipsHolesUnwrittenSpaceAndMemory) {
  TestStore store(Options());
  const InodePtr sparse = Written(store, "a", "x");
  ASSERT_OK(store->files().Truncate(sparse, kTiB));
  ASSERT_OK(store->files().Fallocate(sparse, FallocateMode::kAllocate, kMiB, kMiB));
  const InodePtr dirty = store.Create("b").value();
  ASSERT_OK(store.WriteAt(dirty, 0, Pattern(1, 100)));
  ASSERT_OK(store->Sync(sparse));
  RunScrub(store);
  EXPECT_TRUE(Last(store).clean());
}

// The walk holds a snapshot in which the old files still have these blocks.
TEST(Scrub, SeesNoDamageWhereFilesWereReplacedMeanwhile) {
  TestStoreOptions options = Options();
  options.device_size = ByteCount{24 * kMiB};
  TestStore store(options);
  Written(store, "a", Pattern(1, kMiB));
  for (int i = 0; i < 8; ++i) Written(store, "old" + std::to_string(i), Pattern(i, 2 * kMiB));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(store->scrubber().Step());
  for (int i = 0; i < 8; ++i) {
    const std::string name = "old" + std::to_string(i);
    const InodeId ino = store.Resolve(name).value();
    store->CloseFile(store->inodes().Get(ino).value());
    ASSERT_OK(store->names().Unlink(kRootInode, name));
  }
  ASSERT_OK(store->SyncAll());
  for (int i = 0; i < 8; ++i) Written(store, "new" + std::to_string(i), Pattern(100 + i, 2 * kMiB));
  RunScrub(store);
  EXPECT_TRUE(Last(store).clean()) << Last(store).blocks;
}

// The file changes between the lookup of a differing block and the lookup of its checksum.
TEST(Scrub, SeesNoDamageInABlockThatIsReplacedDuringItsCheck) {
  TestStore store(Options());
  const InodePtr file = Written(store, "a", Pattern(1, 8192));
  Damage(store, file, 0);
  int changes = 0;
  const std::function<void()> change = [&] {
    ++changes;
    ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 8192)));
    ASSERT_OK(store->Sync(file));
  };
  while (store->Scrub().state.phase != ScrubPhase::kData) ASSERT_TRUE(store->scrubber().Step());
  store.kv().AfterGet(change);
  RunScrub(store);
  EXPECT_EQ(changes, 1);
  EXPECT_TRUE(Last(store).clean());
}

TEST(Scrub, SeesNoDamageBesideRandomChanges) {
  const uint64_t seed = FirstSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  TestStoreOptions options = Options();
  options.device_size = ByteCount{24 * kMiB};
  TestStore store(options);
  std::vector<InodePtr> files;
  for (int i = 0; i < 6; ++i) files.push_back(Written(store, "f" + std::to_string(i), Pattern(i, 2 * kMiB)));
  for (int round = 0; round < 400; ++round) {
    const InodePtr& file = files[random() % files.size()];
    const uint64_t offset = random() % (2 * kMiB);
    switch (random() % 4) {
      case 0: ASSERT_OK(store.WriteAt(file, offset, Pattern(round, random() % 300'000))); break;
      case 1: ASSERT_OK(store->files().Truncate(file, offset)); break;
      case 2: ASSERT_OK(store->Sync(file)); break;
      default: break;
    }
    static_cast<void>(store->scrubber().Step());
    EXPECT_EQ(store->Scrub().state.found.blocks, 0U);
    EXPECT_EQ(Last(store).blocks, 0U);
  }
}

TEST(Scrub, ContinuesAfterAnUnmountWhereItWas) {
  TestStore store(Options());
  std::vector<InodePtr> files;
  for (int i = 0; i < 10; ++i) files.push_back(Written(store, "f" + std::to_string(i), Pattern(i, 2 * kMiB)));
  Damage(store, files[1], 0);
  Damage(store, files[8], kMiB);
  while (store->Scrub().state.position.ino <= files[4]->id) ASSERT_TRUE(store->scrubber().Step());
  const ScrubState before = store->Scrub().state;
  EXPECT_EQ(before.found.blocks, 1U);
  files.clear();
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(store->Scrub().state.running());
  const uint64_t reads = store.device().counts().reads;
  RunScrub(store);
  EXPECT_LT(store.device().counts().reads - reads, 14U + 8U) << "ten files of two runs each, and one block";
  EXPECT_EQ(Last(store).blocks, 2U);
  EXPECT_EQ(Last(store).files, 2U);
  EXPECT_EQ(store->Scrub().state.last_started_ns, before.started_ns);
}

TEST(Scrub, KeepsItsResultOverMounts) {
  TestStore store(Options());
  Damage(store, Written(store, "a", Pattern(1, 100)), 0);
  RunScrub(store);
  const ScrubState before = store->Scrub().state;
  ASSERT_OK(store.Remount());
  const ScrubState after = store->Scrub().state;
  EXPECT_EQ(EncodeScrubState(after), EncodeScrubState(before));
  EXPECT_FALSE(after.running());
}

TEST(Scrub, OfAReadOnlyMountWritesNothing) {
  TestStore written(Options());
  Damage(written, Written(written, "a", Pattern(1, 100)), 0);
  ASSERT_OK(written->Close());
  const CrashImage image =
      written.journal().ImageAt(written.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
  TestStore store(image, Options(/*read_only=*/true));
  ASSERT_OK(store.opened());
  const KvContent before = store.kv().content();
  RunScrub(store);
  EXPECT_EQ(Last(store).blocks, 1U);
  ASSERT_OK(store->Close());
  EXPECT_EQ(store.kv().content(), before);
  EXPECT_EQ(store.device().counts().writes, 0U);
}

TEST(Scrub, ListsFewFilesAndCountsAll) {
  TestStore store(Options());
  for (int i = 0; i < 40; ++i) Damage(store, Written(store, "f" + std::to_string(i), "x"), 0);
  RunScrub(store);
  EXPECT_EQ(Last(store).files, 40U);
  EXPECT_EQ(Last(store).listed.size(), ScrubFindings::kListed);
}

TEST(Scrub, StopsAtOnceWithTheStore) {
  TestStoreOptions options = Options();
  options.store.scrub.own_thread = true;
  options.store.scrub.rate = ByteCount{1};  // one read would take hours
  TestStore store(options);
  Written(store, "a", Pattern(1, kMiB));
  ASSERT_OK(store->Close());
}

TEST(Scrub, FindsDamageOfTheReplicaAndRenewsIt) {
  TestStoreOptions options = Options();
  TestStore store(options);
  for (int i = 0; i < 30; ++i) Written(store, "f" + std::to_string(i), Pattern(i, 5000));
  ASSERT_OK(store.Remount());  // completes the replica
  std::vector<BlockDevice*> devices = {&store.device()};
  const auto root = wal::FindRoot(devices, std::nullopt).value();
  ASSERT_TRUE(root.has_value());
  RunScrub(store);
  EXPECT_FALSE(Last(store).replica);
  store.device().Corrupt(ToBytes(root->checkpoint_stream.segments.front().run.run.start) + ByteCount{100});
  RunScrub(store);
  EXPECT_TRUE(Last(store).replica);
  ASSERT_OK(store.Remount());
  const auto renewed = wal::FindRoot(std::vector<BlockDevice*>{&store.device()}, std::nullopt).value();
  ASSERT_TRUE(renewed.has_value());
  EXPECT_GT(renewed->sequence, root->sequence);
  RunScrub(store);
  EXPECT_FALSE(Last(store).replica);
}

// A root that is written anew can perhaps be read.
TEST(Scrub, RootsThatCannotBeReadAreDamage) {
  TestStore store(Options());
  Written(store, "f", Pattern(1, 5000));
  ASSERT_OK(store.Remount());
  store.device().Fail(FaultDevice::Target::kRead, {.and_later = true});
  RunScrub(store);
  store.device().StopFailing();
  EXPECT_TRUE(Last(store).replica);
}

TEST(FindPath, NamesFilesInDirectories) {
  TestStore store(Options());
  CreateRequest directory;
  directory.mode = S_IFDIR | 0755;
  const InodeId a = store->names().Create(kRootInode, "a", directory).value().ino;
  ASSERT_OK(store->names().Create(a, "b", directory));
  const InodePtr file = Written(store, "a/b/c", "x");
  const auto never = [] { return false; };
  EXPECT_EQ(FindPath(store.kv(), file->id, never), "a/b/c");
  EXPECT_EQ(FindPath(store.kv(), InodeId{999}, never), "");
}

}  // namespace
}  // namespace weightfs

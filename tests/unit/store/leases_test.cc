// SPDX-License-Identifier: Apache-2.0
// Leases: ranges of files that their holders read and write, bypassing the store.
#include <gtest/gtest.h>
#include <linux/capability.h>

#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"
#include "tests/support/whole_directory.h"

namespace weightfs {
namespace {

constexpr uint64_t kEnd = UINT64_MAX;

uint64_t Available(TestStore& store) { return ToBytes(store->Space().available).value; }

// A commit, after which the space it freed is available.
void SyncTwice(TestStore& store) {
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store->SyncAll());
}

TEST(ReadLeases, ShowUnsyncedWrites) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(1, 3 * kMiB + 123);
  ASSERT_OK(store.WriteAt(file, 0, data));
  EXPECT_TRUE(Must(store.ReadDirect(file, 0, kEnd)) == data);
  ASSERT_OK(store.WriteAt(file, 5000, "patch"));
  EXPECT_EQ(Must(store.ReadDirect(file, 5000, 5)), "patch");
  EXPECT_EQ(Must(store.ReadDirect(file, data.size() - 3, kEnd)), data.substr(data.size() - 3));
}

TEST(ReadLeases, WaitForWritesUnderWay) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(2, 2 * kMiB);
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, data));
  auto lease = StartUntilBlocked([&] { return store->files().LeaseRead(file, 0, kEnd); });
  EXPECT_FALSE(HasEnded(lease));
  store.device().Release();
  const auto got = lease.get();
  ASSERT_OK(got);
  EXPECT_TRUE(Must(store.ReadLeased(*got)) == data);
}

TEST(ReadLeases, LeaveOutHolesAndUnwrittenBlocks) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 8 * kBlockSize, Pattern(3, kBlockSize)));
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kAllocate, 16 * kBlockSize, 4 * kBlockSize));
  const auto lease = store->files().LeaseRead(file, 0, kEnd);
  ASSERT_OK(lease);
  EXPECT_EQ(lease->file_size, 20 * kBlockSize);
  EXPECT_EQ(lease->count.value, 20U);
  ASSERT_EQ(lease->extents.size(), 1U);
  EXPECT_EQ(lease->extents[0].first.value, 8U);
  EXPECT_EQ(lease->extents[0].count.value, 1U);
  EXPECT_EQ(lease->checksums[7], 0U);
  EXPECT_NE(lease->checksums[8], 0U);
}

TEST(ReadLeases, RangesBehindTheEndAreEmpty) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kEnd}) {
    const auto lease = store->files().LeaseRead(file, offset, kEnd);
    ASSERT_OK(lease);
    EXPECT_EQ(lease->count.value, 0U);
    EXPECT_TRUE(lease->extents.empty());
  }
}

TEST(ReadLeases, BeyondTheLargestRangeAreRefused) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store->files().Truncate(file, kMaximumFileSize));  // a hole
  const auto whole = store->files().LeaseRead(file, 0, kEnd);
  ASSERT_FALSE(whole.has_value());
  EXPECT_EQ(whole.error().code, ErrorCode::kFileTooBig);
  ASSERT_OK(store->files().LeaseRead(file, kMaximumFileSize - kMiB, kEnd));
}

TEST(ReadLeases, KeepBlocksThatWereOverwrittenUntilTheyEnd) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(4, 8 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, old));
  ASSERT_OK(store->Sync(file));
  const uint64_t before = Available(store);
  {
    const auto lease = store->files().LeaseRead(file, 0, kEnd);
    ASSERT_OK(lease);
    EXPECT_EQ(store->statistics().pinned_bytes, old.size());
    for (uint64_t round = 0; round < 4; ++round) {  // Freed blocks would be reused.
      ASSERT_OK(store.WriteAt(file, 0, Pattern(10 + round, old.size())));
      SyncTwice(store);
    }
    EXPECT_TRUE(Must(store.ReadLeased(*lease)) == old);
    EXPECT_EQ(Available(store), before - old.size()) << "pinned blocks that no file has count as used";
  }
  EXPECT_EQ(Available(store), before);
  EXPECT_EQ(store->statistics().pinned_bytes, 0U);
}

TEST(ReadLeases, KeepADeletedFilesBlocks) {
  TestStore store;
  const uint64_t empty = Available(store);
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(5, 4 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, old));
  auto lease = store->files().LeaseRead(file, 0, kEnd);
  ASSERT_OK(lease);
  auto second = store->files().LeaseRead(file, kMiB, kMiB);
  ASSERT_OK(second);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  store->CloseFile(file);
  SyncTwice(store);
  ASSERT_OK(store.WriteFile("b", Pattern(6, 16 * kMiB)));
  SyncTwice(store);
  EXPECT_TRUE(Must(store.ReadLeased(*lease)) == old);
  lease = ReadLease();
  EXPECT_TRUE(Must(store.ReadLeased(*second)) == old.substr(kMiB, kMiB));
  second = ReadLease();
  ASSERT_OK(store->names().Unlink(kRootInode, "b"));
  SyncTwice(store);
  EXPECT_EQ(Available(store), empty);
}

TEST(ReadLeases, HaveTheChecksumsOfTheirBlocksAlthoughTheFileChangesMeanwhile) {
  TestStore store;
  const std::string old = Pattern(1, kMiB), fresh = Pattern(2, kMiB);
  ASSERT_OK(store.WriteFile("a", old));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());  // the checksums are in the catalog only
  const InodePtr file = store.OpenPath("a").value();
  ASSERT_EQ(Must(store.ReadAt(file, 0, 0)), "");  // loads the file
  bool changed = false;
  store.kv().AfterGet([&] {
    changed = true;
    ASSERT_OK(store.WriteAt(file, 0, fresh));
    ASSERT_OK(store->Sync(file));
  });
  const auto lease = store->files().LeaseRead(file, 0, kEnd);
  ASSERT_OK(lease);
  EXPECT_TRUE(changed);
  EXPECT_TRUE(Must(store.ReadLeased(*lease)) == fresh);
}

TEST(ReadLeases, OfAFileWithAFailedWriteAreRefused) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(7, 4 * kMiB)));
  store.device().WaitForHeld(2);
  store.device().CompleteOne();
  EXPECT_FALSE(store->files().LeaseRead(file, 0, kEnd).has_value());
  EXPECT_FALSE(store.WriteAt(file, 0, "x").has_value());
  EXPECT_FALSE(store->files().LeaseRead(file, 0, kEnd).has_value()) << "also after a caller received the error";
  store.device().Release();
  static_cast<void>(store->Sync(file).has_value());  // returns an error if it joins the cycle that reverts the file
  EXPECT_EQ(Must(store.ReadDirect(file, 0, kEnd)), "") << "back at its last commit";
}

TEST(WriteLeases, ReplaceAWholeFileAtOnce) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 3 * kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.WriteAt(file, 100, "dirty bytes that go as well"));
  const std::string data = Pattern(2, 2 * kMiB + 77);
  ASSERT_OK(store.WriteDirect(file, 0, data, data.size()));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(WriteLeases, ChangeBlocksInTheMiddleAndGrowTheFile) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(3, 10 * kBlockSize + 5);
  ASSERT_OK(store.WriteAt(file, 0, data));
  const std::string middle = Pattern(4, 2 * kBlockSize), tail = Pattern(5, 3 * kBlockSize + 9);
  ASSERT_OK(store.WriteDirect(file, 4 * kBlockSize, middle, std::nullopt));
  data.replace(4 * kBlockSize, middle.size(), middle);
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store.WriteDirect(file, 20 * kBlockSize, tail, std::nullopt));
  data.resize(20 * kBlockSize, '\0');
  data += tail;
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(WriteLeases, TruncateTheFileInsideTheirLastBlock) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(6, 10 * kBlockSize);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  const std::string head = Pattern(7, kBlockSize);
  ASSERT_OK(store.WriteDirect(file, 0, head, 5 * kBlockSize + 100));
  data.replace(0, head.size(), head);
  data.resize(5 * kBlockSize + 100);
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->files().Truncate(file, 6 * kBlockSize));
  data.resize(6 * kBlockSize, '\0');
  EXPECT_TRUE(Must(store.ReadAll(file)) == data) << "what was cut off reads as zeros";
}

TEST(WriteLeases, WinOverOlderWritesThatAreStillUnderWay) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(8, 4 * kMiB)));
  store.device().WaitForHeld(1);
  const std::string data = Pattern(9, 2 * kMiB);
  auto written = StartUntilBlocked([&] { return store.WriteDirect(file, kMiB, data, std::nullopt); });
  store.device().Release();
  ASSERT_OK(written.get());
  ASSERT_OK(store->Sync(file));
  std::string expected = Pattern(8, 4 * kMiB);
  expected.replace(kMiB, data.size(), data);
  EXPECT_TRUE(Must(store.ReadAll(file)) == expected);
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == expected) << "a checksum of the older write is in the catalog";
}

TEST(WriteLeases, ReplaceAllocatedBlocks) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kAllocate, 0, 2 * kMiB));
  SyncTwice(store);
  const uint64_t before = Available(store);
  const std::string data = Pattern(10, kMiB);
  ASSERT_OK(store.WriteDirect(file, 0, data, std::nullopt));
  SyncTwice(store);
  EXPECT_EQ(Must(store.ReadAt(file, 0, kMiB)), data);
  EXPECT_EQ(Available(store), before);
}

TEST(WriteLeases, ImpossibleOnesAreRefusedAndChangeNothing) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(11, 3 * kBlockSize);
  ASSERT_OK(store.WriteAt(file, 0, data));
  SyncTwice(store);
  const uint64_t before = Available(store);
  const std::vector<uint32_t> one(1), two(2);
  const auto refused = [&](const DirectWrite& write) {
    auto grant = store->files().Reserve(file, FileBlock{0}, BlockCount{1});
    EXPECT_TRUE(grant.has_value());
    const auto result = store->files().CommitDirect(file, write, std::move(*grant));
    return result.has_value() ? std::string("taken") : std::string(ErrorCodeName(result.error().code));
  };
  EXPECT_EQ(refused({.offset = 1, .length = kBlockSize, .checksums = one}), "invalid argument");
  EXPECT_EQ(refused({.offset = 0, .length = 0, .checksums = {}}), "invalid argument");
  EXPECT_EQ(refused({.offset = 0, .length = 100, .checksums = one}), "invalid argument") << "not the end of the file";
  EXPECT_EQ(refused({.offset = 0, .length = kBlockSize, .checksums = two}), "invalid argument");
  EXPECT_EQ(refused({.offset = 0, .length = 2 * kBlockSize, .checksums = two}), "invalid argument") << "not reserved";
  EXPECT_EQ(refused({.offset = 0, .length = kBlockSize, .new_size = 5, .checksums = one}), "invalid argument");
  EXPECT_EQ(refused({.offset = kMaximumFileSize, .length = kBlockSize, .checksums = one}), "file too big");
  EXPECT_EQ(refused({.offset = RoundDown(UINT64_MAX, kBlockSize), .length = kBlockSize, .checksums = one}),
            "file too big");
  EXPECT_EQ(Must(store.ReadAll(file)), data);
  EXPECT_EQ(Available(store), before);
  EXPECT_EQ(store->statistics().granted_bytes, 0U);
}

TEST(WriteLeases, AReservationCountsAsUsedUntilItEnds) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const uint64_t before = Available(store);
  {
    const auto grant = store->files().Reserve(file, FileBlock{0}, BlockCount{1000});
    ASSERT_OK(grant);
    EXPECT_EQ(grant->count().value, 1000U);
    EXPECT_EQ(Available(store), before - 1000 * kBlockSize);
    EXPECT_EQ(store->statistics().granted_bytes, 1000 * kBlockSize);
  }
  EXPECT_EQ(Available(store), before);
  EXPECT_EQ(store->statistics().granted_bytes, 0U);
}

TEST(WriteLeases, AReservationThatDoesNotFitIsRefused) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const uint64_t before = Available(store);
  for (const uint64_t blocks : {before / kBlockSize + 1, uint64_t{1} << 62, UINT64_MAX}) {
    const auto grant = store->files().Reserve(file, FileBlock{0}, BlockCount{blocks});
    ASSERT_FALSE(grant.has_value());
    EXPECT_EQ(grant.error().code, ErrorCode::kNoSpace);
  }
  EXPECT_EQ(Available(store), before);
  ASSERT_OK(store->files().Reserve(file, FileBlock{0}, BlockCount{before / kBlockSize}));
}

TEST(WriteLeases, AReservationFindsTheSpaceThatWaitsForACommit) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 40 * kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->files().Truncate(file, 0));
  ASSERT_OK(store->files().Reserve(file, FileBlock{0}, BlockCount{40 * kMiB / kBlockSize}));
}

TEST(WriteLeases, AReservationInPlaceDropsTheOldContent) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(13, 40 * kMiB), dropped(40 * kMiB, '\0');
  ASSERT_OK(store.WriteAt(file, 0, old));
  ASSERT_OK(store->Sync(file));
  const auto after_crash = [&] {
    TestStore crashed(store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill}), {});
    return Must(crashed.ReadPath("a"));
  };
  const BlockCount count{44 * kMiB / kBlockSize};
  EXPECT_FALSE(store->files().Reserve(file, FileBlock{0}, count).has_value());
  SpaceReservation space;
  ASSERT_OK(store->files().DropContent(file, count, &space));
  EXPECT_EQ(store.SizeOf(file), 40 * kMiB) << "mappings of the old content stay inside the file";
  EXPECT_TRUE(Must(store.ReadAll(file)) == dropped);
  EXPECT_TRUE(after_crash() == old) << "no commit, and nobody may write the blocks yet";
  const auto grant = store->files().ReserveDropped(file, count, &space);
  ASSERT_OK(grant);
  EXPECT_TRUE(after_crash() == dropped) << "its old blocks are the holder's";
  EXPECT_EQ(grant->count(), count);
}

TEST(WriteLeases, AReservationInPlaceKeepsTheOldContentBesideWhichThereIsSpace) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(13, 8 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, old));
  SpaceReservation space;
  ASSERT_OK(store->files().DropContent(file, BlockCount{8 * kMiB / kBlockSize}, &space));
  ASSERT_OK(store->files().ReserveDropped(file, BlockCount{8 * kMiB / kBlockSize}, &space));
  EXPECT_TRUE(Must(store.ReadAll(file)) == old);
}

TEST(WriteLeases, AReservationInPlaceDoesNotCountBlocksThatReadersPin) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(14, 40 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, old));
  const BlockCount count{40 * kMiB / kBlockSize};
  SpaceReservation space;
  const uint64_t before = Available(store);
  {
    const auto lease = store->files().LeaseRead(file, 0, kEnd);
    ASSERT_OK(lease);
    EXPECT_EQ(store->files().DropContent(file, count, &space).error().code, ErrorCode::kNoSpace);
    EXPECT_TRUE(Must(store.ReadAll(file)) == old);
  }
  EXPECT_EQ(Available(store), before);
  ASSERT_OK(store->files().DropContent(file, count, &space));
}

TEST(WriteLeases, TwoReservationsInPlaceDoNotShareTheSameFreeBlocks) {
  TestStore store;
  const InodePtr winner = store.Create("a").value(), loser = store.Create("b").value();
  const std::string old = Pattern(15, 20 * kMiB);
  ASSERT_OK(store.WriteAt(winner, 0, old));
  ASSERT_OK(store.WriteAt(loser, 0, old));
  ASSERT_OK(store->SyncAll());
  const BlockCount count{32 * kMiB / kBlockSize};  // each fits alone
  SpaceReservation space;
  ASSERT_OK(store->files().DropContent(winner, count, &space));
  auto second = StartUntilBlocked([&] {
    SpaceReservation own;
    return store->files().DropContent(loser, count, &own);
  });
  EXPECT_FALSE(HasEnded(second)) << "the first one's blocks are not free yet";
  const auto grant = store->files().ReserveDropped(winner, count, &space);
  ASSERT_OK(grant);
  EXPECT_EQ(second.get().error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(Must(store.ReadAll(loser)) == old);
}

TEST(CreateMany, ManyFilesAppearWithTheirContent) {
  TestStore store({.devices = 2});
  std::vector<TestStore::NamedFile> files;
  for (uint64_t index = 0; index < 40; ++index) {
    files.push_back({"f" + std::to_string(index), Pattern(index, index * 70000 % 1300000)});
  }
  ASSERT_OK(store.CreateMany("", files));
  for (const auto& file : files) EXPECT_TRUE(Must(store.ReadPath(file.name)) == file.data) << file.name;
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());
  for (const auto& file : files) EXPECT_TRUE(Must(store.ReadPath(file.name)) == file.data) << file.name;
}

TEST(CreateMany, ReplacesFilesOfTheSameNamesAndFreesTheirSpace) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, 8 * kMiB)));
  ASSERT_OK(store.WriteFile("b", Pattern(2, 8 * kMiB)));
  const InodePtr open = store.OpenPath("a").value();
  ASSERT_OK(store->names().Link(store.Resolve("b").value(), kRootInode, "other"));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.CreateMany("", {{"a", "new a"}, {"b", "new b"}, {"c", ""}}));
  EXPECT_EQ(Must(store.ReadPath("a")), "new a");
  EXPECT_EQ(Must(store.ReadPath("b")), "new b");
  EXPECT_EQ(Must(store.ReadPath("c")), "");
  EXPECT_TRUE(Must(store.ReadAll(open)) == Pattern(1, 8 * kMiB)) << "who has it open keeps the old file";
  EXPECT_TRUE(Must(store.ReadPath("other")) == Pattern(2, 8 * kMiB));
  const uint64_t before = Available(store);
  store->CloseFile(open);
  SyncTwice(store);
  EXPECT_GE(Available(store), before + 8 * kMiB - kMiB);
  EXPECT_EQ(store->Space().inodes, 5U) << "the root, three new files, and the one with another name";
}

TEST(CreateMany, IsAllOrNothing) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", "old a"));
  CreateRequest directory;
  directory.mode = S_IFDIR | 0755;
  ASSERT_OK(store->names().Create(kRootInode, "d", directory));
  ASSERT_OK(store->SyncAll());
  const uint64_t before = Available(store);
  const auto refused = [&](const std::vector<TestStore::NamedFile>& files) {
    const auto result = store.CreateMany("", files);
    return result.has_value() ? std::string("taken") : std::string(ErrorCodeName(result.error().code));
  };
  EXPECT_EQ(refused({{"a", "new"}, {"d", "new"}}), "is a directory");
  EXPECT_EQ(refused({{"a", "new"}, {"a", "newer"}}), "invalid argument");
  EXPECT_EQ(refused({{"a", "new"}, {"x/y", "new"}}), "invalid argument");
  EXPECT_EQ(refused({{"a", "new"}, {"..", "new"}}), "is a directory");
  EXPECT_EQ(refused({{"a", "new"}, {std::string(256, 'n'), "new"}}), "name too long");
  EXPECT_EQ(Must(store.ReadPath("a")), "old a");
  EXPECT_EQ(ReadDirectory(store->names(), kRootInode)->size(), 4U);
  SyncTwice(store);
  EXPECT_EQ(Available(store), before);
}

TEST(CreateMany, ATotalSizeThatOverflowsIsRefused) {
  TestStore store;
  const InodePtr root = store->inodes().Get(kRootInode).value();
  // In total 2^64 blocks, which wraps to none if unchecked.
  constexpr size_t kCount = (uint64_t{1} << 63) / (kMaximumFileSize / kBlockSize) * 2;
  const std::vector<DirectFile> files(kCount, DirectFile{"a", kMaximumFileSize});
  size_t failed = 0;
  auto grant = store->files().Reserve(root, FileBlock{0}, BlockCount{1});
  ASSERT_OK(grant);
  const auto result = store->CreateMany(root, {}, {0644}, files, {}, std::move(*grant), &failed);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalid);
}

TEST(CreateMany, ChecksTheSamePermissionsAsTheKernel) {
  TestStore store;
  const InodePtr root = store->inodes().Get(kRootInode).value();
  const auto publish = [&](const Credentials& who, const char* name) {
    auto grant = store->files().Reserve(root, FileBlock{0}, BlockCount{1});
    EXPECT_TRUE(grant.has_value());
    const DirectFile file{name, 0};
    size_t failed = 0;
    const auto result = store->CreateMany(root, who, {0640}, {&file, 1}, {}, std::move(*grant), &failed);
    return result.has_value() ? std::string("made") : std::string(ErrorCodeName(result.error().code));
  };
  const Credentials owner{7, 8, {}}, member{9, 10, {8}}, stranger{11, 11, {}};
  AttributeChange change;
  change.uid = 7;
  change.gid = 8;
  change.mode = 0755;
  ASSERT_OK(store->SetAttributes(kRootInode, change));
  EXPECT_EQ(publish(owner, "a"), "made");
  EXPECT_EQ(publish(member, "b"), "access denied");
  change.mode = 03775;  // sticky; the set-group-ID bit is inherited
  ASSERT_OK(store->SetAttributes(kRootInode, change));
  EXPECT_EQ(publish(member, "b"), "made");
  EXPECT_EQ(publish(member, "a"), "not permitted") << "another's file in a sticky directory";
  EXPECT_EQ(publish(stranger, "c"), "access denied");
  const Attributes made = store->names().GetAttributes(store.Resolve("b").value()).value();
  EXPECT_EQ(made.uid, 9U);
  EXPECT_EQ(made.gid, 8U);
  EXPECT_EQ(made.mode, S_IFREG | 0640U);
  const InodePtr file = store->inodes().Get(made.ino).value();
  EXPECT_TRUE(store->names().CheckAccess(file, {11, 8, {}}, 4).has_value());
  EXPECT_FALSE(store->names().CheckAccess(file, {11, 8, {}}, 2).has_value());
  EXPECT_FALSE(store->names().CheckAccess(file, stranger, 4).has_value());
  const auto root_with = [](unsigned capability) { return Credentials{0, 0, {}, uint64_t{1} << capability}; };
  EXPECT_FALSE(store->names().CheckAccess(file, {0, 0, {}}, 4).has_value()) << "root without capabilities";
  EXPECT_TRUE(store->names().CheckAccess(file, root_with(CAP_DAC_OVERRIDE), 6).has_value());
  EXPECT_TRUE(store->names().CheckAccess(file, root_with(CAP_DAC_READ_SEARCH), 4).has_value());
  EXPECT_FALSE(store->names().CheckAccess(file, root_with(CAP_DAC_READ_SEARCH), 2).has_value());
  EXPECT_FALSE(store->names().CheckAccess(file, root_with(CAP_SYS_ADMIN), 4).has_value());
  EXPECT_EQ(publish({0, 0, {}}, "d"), "access denied");
  EXPECT_EQ(publish(root_with(CAP_DAC_OVERRIDE), "d"), "made");
  EXPECT_EQ(publish(root_with(CAP_DAC_OVERRIDE), "a"), "not permitted") << "the sticky bit asks for CAP_FOWNER";
  EXPECT_EQ(publish({0, 0, {}, uint64_t{1} << CAP_DAC_OVERRIDE | uint64_t{1} << CAP_FOWNER}, "a"), "made");
}

TEST(CreateMany, SpaceOfABatchThatFailedInTheCatalogIsNotReused) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {  // The seed determines whether the batch survives.
    TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
    ASSERT_OK(store.WriteFile("a", Pattern(1, 20 * kMiB)));
    ASSERT_OK(store->SyncAll());
    const InodePtr file = store.OpenPath("a").value();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(3, 100000)));  // still in memory
    store.kv().FailWrite(1);
    EXPECT_FALSE(store.CreateMany("", {{"a", Pattern(2, 20 * kMiB)}}).has_value());
    EXPECT_TRUE(store->read_only());
    EXPECT_EQ(store.WriteAt(file, 0, "x").error().code, ErrorCode::kReadOnly);
    EXPECT_EQ(store->files().Reserve(file, FileBlock{0}, BlockCount{1}).error().code, ErrorCode::kReadOnly);
    EXPECT_EQ(store->statistics().granted_bytes, 20 * kMiB);
    EXPECT_FALSE(store->SyncAll().has_value());
    const CrashImage image = store.journal().ImageAt(
        store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill, .seed = seed, .kv_survival = 1.0});
    TestStore after(image, {});
    ASSERT_OK(after.opened());
    const std::string found = Must(after.ReadPath("a"));
    EXPECT_TRUE(found == Pattern(1, 20 * kMiB) || found == Pattern(2, 20 * kMiB));
  }
}

TEST(CreateMany, AFailedFlushCreatesNothing) {
  TestStore store;
  store.device().Fail(FaultDevice::Target::kFlush, {.nth = 1, .and_later = true});
  EXPECT_FALSE(store.CreateMany("", {{"a", "data"}}).has_value());
  EXPECT_FALSE(store.Resolve("a").has_value());
  EXPECT_TRUE(store->read_only());
}

}  // namespace
}  // namespace weightfs

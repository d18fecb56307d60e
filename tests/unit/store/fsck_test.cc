// SPDX-License-Identifier: Apache-2.0
// Names, inodes and facts, and the check as a whole.
#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "meta/keys.h"
#include "meta/records.h"
#include "store/check/fsck.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"
#include "tests/unit/store/fsck_rig.h"

namespace weightfs {
namespace {

using Kind = FindingKind;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Fsck, AStoreInOrderIsClean) {
  const KvContent before = kv();
  const FsckReport report = Check(/*repair=*/true, /*verify=*/true);
  EXPECT_TRUE(report.clean());
  EXPECT_THAT(Kinds(report), IsEmpty());
  EXPECT_EQ(report.inodes, 7u);
  EXPECT_EQ(report.directories, 3u);
  EXPECT_EQ(report.files, 3u);
  EXPECT_EQ(report.entries, 6u);
  EXPECT_EQ(report.orphans, 1u);
  EXPECT_EQ(report.mapped_blocks.value, Record(big_).blocks + Record(small_).blocks);
  EXPECT_EQ(report.verified_bytes, ToBytes(report.mapped_blocks));
  EXPECT_EQ(kv(), before);
}

TEST_F(Fsck, RecordsOfUnknownKindsAreKept) {
  kv()["?what"] = "a kind of the future";
  kv()[keys::Store("fact of the future")] = "";
  const KvContent before = kv();
  EXPECT_TRUE(Check(/*repair=*/true).clean());
  EXPECT_EQ(kv(), before);
}

TEST_F(Fsck, MalformedKeysAreRemoved) {
  kv()["i123"] = "";
  kv()["o"] = "";
  kv()["d12345678"] = "";
  kv()["x"] = "";
  kv()["e1234567812345678more"] = "";
  kv()["c"] = "";
  kv()[keys::Inode(InodeId{UINT64_MAX})] = kv()[keys::Inode(small_)];
  ExpectFoundAndRepaired(std::vector<Kind>(7, Kind::kDamagedKey));
}

TEST_F(Fsck, ADamagedFileIsRebuiltFromItsExtents) {
  const std::string before = *ReadPath("d/big");
  kv()[keys::Inode(big_)] = "garbage";
  ExpectFoundAndRepaired({Kind::kDamagedRecord});
  EXPECT_EQ(Record(big_).mode, S_IFREG | 0600u);
  EXPECT_EQ(Record(big_).size, RoundUp(before.size(), kBlockSize));
  EXPECT_EQ(ReadPath("d/big")->substr(0, before.size()), before);
}

TEST_F(Fsck, ADamagedDirectoryIsRebuiltFromItsEntries) {
  kv()[keys::Inode(directory_)] = "";
  ExpectFoundAndRepaired({Kind::kDamagedRecord});
  EXPECT_EQ(*ReadPath("d/sub/small"), "hello");
}

TEST_F(Fsck, ADamagedEmptyFileIsRebuiltFromItsEntry) {
  SetEntry(kRootInode, "empty", InodeId{900}, S_IFREG);
  kv()[keys::Inode(InodeId{900})] = "garbage";
  ExpectFoundAndRepaired({Kind::kDamagedRecord, Kind::kWrongFact});
  EXPECT_EQ(*ReadPath("empty"), "");
}

TEST_F(Fsck, ADamagedSymbolicLinkIsRemoved) {
  kv()[keys::Inode(link_)] = "garbage";
  ExpectFoundAndRepaired({Kind::kDamagedRecord, Kind::kDanglingEntry});
  EXPECT_FALSE(kv().contains(keys::Entry(kRootInode, "link")));
}

TEST_F(Fsck, AMissingRootIsRecreated) {
  kv().erase(keys::Inode(kRootInode));
  ExpectFoundAndRepaired({Kind::kDamagedRecord, Kind::kWrongFact});
  EXPECT_EQ(*ReadPath("d/sub/small"), "hello");
}

TEST_F(Fsck, DamagedEntriesAreRemovedAndTheirInodesMovedToLostAndFound) {
  kv()[keys::Entry(directory_, "sub")] = "garbage";
  ExpectFoundAndRepaired({Kind::kDamagedRecord, Kind::kLostInode, Kind::kWrongLinkCount});
  EXPECT_EQ(*ReadPath(fmt::format("lost+found/#{}/small", sub_.value)), "hello");
}

// Recovery of the log takes an extent of an entry's generation for one that the entry has written.
TEST_F(Fsck, ARebuiltInodeIsOfTheVersionOfItsExtents) {
  auto [key, extent] = FirstExtent(big_);
  extent.generation = 7;
  kv()[key] = extent.Encode(key);
  kv()[keys::Inode(big_)] = "garbage";
  Check(/*repair=*/true);
  EXPECT_EQ(Record(big_).data_version, 7U);
}

TEST_F(Fsck, LostInodesOfEveryKindAreMovedToLostAndFound) {
  kv().erase(keys::Entry(directory_, "big"));
  kv().erase(keys::Entry(kRootInode, "link"));
  kv().erase(keys::Entry(kRootInode, "d"));
  ExpectFoundAndRepaired({Kind::kLostInode, Kind::kLostInode, Kind::kLostInode, Kind::kWrongLinkCount});
  EXPECT_EQ(ReadPath(fmt::format("lost+found/#{}", big_.value))->size(), 3 * kMiB + 1000);
  EXPECT_EQ(*ReadPath(fmt::format("lost+found/#{}/sub/small", directory_.value)), "hello");
  // A second lost inode uses the same directory.
  kv().erase(keys::Entry(directory_, "sub"));
  ExpectFoundAndRepaired({Kind::kLostInode, Kind::kWrongLinkCount});
  EXPECT_EQ(*ReadPath(fmt::format("lost+found/#{}/small", sub_.value)), "hello");
}

TEST_F(Fsck, AFileNamedLostAndFoundIsKept) {
  SetEntry(kRootInode, "lost+found", small_, S_IFREG);
  InodeRecord record = Record(small_);
  ++record.links;
  SetRecord(small_, record);
  kv().erase(keys::Entry(directory_, "big"));
  ExpectFoundAndRepaired({Kind::kLostInode});
  EXPECT_EQ(*ReadPath("lost+found"), "hello");
  EXPECT_TRUE(ReadPath(fmt::format("lost+found.1/#{}", big_.value)));
}

TEST_F(Fsck, DanglingEntriesAreRemoved) {
  SetEntry(kRootInode, "nowhere", InodeId{5000}, S_IFREG);
  SetEntry(big_, "in a file", small_, S_IFREG);
  SetEntry(InodeId{5001}, "in nothing", small_, S_IFREG);
  SetEntry(kRootInode, "..", small_, S_IFREG);
  SetEntry(kRootInode, "a/b", small_, S_IFREG);
  ExpectFoundAndRepaired(std::vector<Kind>(5, Kind::kDanglingEntry));
}

TEST_F(Fsck, EntriesInARemovedDirectoryAreRemoved) {
  InodeRecord record = Record(orphan_);
  record.mode = S_IFDIR | 0700;
  record.flags = 0;
  SetRecord(orphan_, record);
  SetEntry(orphan_, "left", small_, S_IFREG);
  ExpectFoundAndRepaired({Kind::kDanglingEntry});
}

TEST_F(Fsck, WrongTypesOfEntriesAreCorrected) {
  SetEntry(directory_, "big", big_, S_IFDIR);
  ExpectFoundAndRepaired({Kind::kWrongEntryType});
  EXPECT_TRUE(ReadPath("d/big"));
}

TEST_F(Fsck, WrongCountsAndParentsAreCorrected) {
  for (const InodeId ino : {kRootInode, directory_, big_, small_}) {
    InodeRecord record = Record(ino);
    record.links += 3;
    SetRecord(ino, record);
  }
  InodeRecord record = Record(sub_);
  record.parent = kRootInode.value;
  SetRecord(sub_, record);
  record = Record(big_);
  record.blocks = 1;
  record.flags = 0;
  SetRecord(big_, record);
  record = Record(orphan_);
  record.links = 1;
  SetRecord(orphan_, record);
  ExpectFoundAndRepaired({Kind::kWrongLinkCount, Kind::kWrongLinkCount, Kind::kWrongLinkCount, Kind::kWrongLinkCount,
                          Kind::kWrongLinkCount, Kind::kWrongParent, Kind::kWrongBlockCount, Kind::kWrongFlags});
}

TEST_F(Fsck, ADirectoryWithSeveralNamesKeepsTheFirstInItsParent) {
  SetEntry(kRootInode, "a", sub_, S_IFDIR);    // sorts before the correct one in key order
  SetEntry(directory_, "zzz", sub_, S_IFDIR);  // in the correct directory, but second
  SetEntry(sub_, "up", kRootInode, S_IFDIR);
  ExpectFoundAndRepaired({Kind::kSecondEntry, Kind::kSecondEntry, Kind::kSecondEntry});
  EXPECT_EQ(*ReadPath("d/sub/small"), "hello");
}

TEST_F(Fsck, LoopsOfDirectoriesAreCut) {
  // d becomes a child of its own child.
  kv().erase(keys::Entry(kRootInode, "d"));
  SetEntry(sub_, "d", directory_, S_IFDIR);
  InodeRecord record = Record(directory_);
  record.parent = sub_.value;
  SetRecord(directory_, record);
  record = Record(kRootInode);
  --record.links;
  SetRecord(kRootInode, record);
  record = Record(sub_);
  ++record.links;
  SetRecord(sub_, record);
  const FsckReport report = ExpectFoundAndRepaired({Kind::kUnreachable, Kind::kWrongLinkCount});
  EXPECT_EQ(report.findings[0].severity, FindingSeverity::kMajor);
}

TEST_F(Fsck, PublishedFlagsFollowThePublications) {
  {
    TestStore store(image_, options_);
    ASSERT_TRUE(store.opened());
    const Credentials root{.capabilities = UINT64_MAX};
    ASSERT_TRUE(store->names().Unlink(kRootInode, "hard"));
    Namespace::PublishCall call(directory_, root, std::nullopt);
    ASSERT_TRUE(store->PublishTree(&call)) << call.failed();
    ASSERT_TRUE(store->Close());
    image_ = store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
  }
  EXPECT_TRUE(Check(/*repair=*/false).clean());
  InodeRecord record = Record(small_);
  EXPECT_NE(record.flags & kInodePublished, 0U);
  record.flags &= ~static_cast<uint32_t>(kInodePublished);
  SetRecord(small_, record);
  record = Record(link_);  // outside
  record.flags |= kInodePublished;
  SetRecord(link_, record);
  ExpectFoundAndRepaired({Kind::kWrongFlags, Kind::kWrongFlags});
  EXPECT_NE(Record(small_).flags & kInodePublished, 0U);
  EXPECT_EQ(Record(link_).flags & kInodePublished, 0U);
  // Without the record of the publication, nothing is published.
  kv()[keys::Attribute(directory_, kPublicationName)] = "damaged";
  ExpectFoundAndRepaired(
      {Kind::kDamagedRecord, Kind::kWrongFlags, Kind::kWrongFlags, Kind::kWrongFlags, Kind::kWrongFlags});
  EXPECT_EQ(Record(big_).flags & kInodePublished, 0U);
}

// The next mount reverts it.
TEST_F(Fsck, AnInterruptedPublicationIsNoProblem) {
  const std::string fact = keys::Store(kPublishingFact + std::to_string(directory_.value));
  const auto interrupt = [&](const std::string& value) {
    kv()[fact] = value;
    for (const InodeId ino : {directory_, sub_}) {
      InodeRecord record = Record(ino);
      record.flags |= kInodePublished;
      SetRecord(ino, record);
    }
  };
  interrupt(EncodeFact(directory_.value));
  const KvContent before = kv();
  EXPECT_TRUE(Check(/*repair=*/true).clean());
  EXPECT_EQ(kv(), before);
  // Without its number nobody finds the flags.
  interrupt("damaged");
  ExpectFoundAndRepaired({Kind::kWrongFact, Kind::kWrongFlags, Kind::kWrongFlags});
  EXPECT_FALSE(kv().contains(fact));
}

TEST_F(Fsck, WrongOrphanRecordsAreRemoved) {
  kv()[keys::Orphan(InodeId{5000})] = "";
  kv()[keys::Orphan(big_)] = "";
  kv()[keys::Orphan(kRootInode)] = "";
  ExpectFoundAndRepaired({Kind::kWrongOrphan, Kind::kWrongOrphan, Kind::kWrongOrphan});
  EXPECT_TRUE(ReadPath("d/big"));
}

TEST_F(Fsck, WrongFactsAreCorrected) {
  for (const auto& [next, count] : std::vector<std::pair<std::string, std::string>>{
           {EncodeFact(3), EncodeFact(99)}, {"garbage", ""}, {EncodeFact(UINT64_MAX), EncodeFact(0)}}) {
    kv()[keys::Store(kNextInodeFact)] = next;
    kv()[keys::Store(kInodeCountFact)] = count;
    ExpectFoundAndRepaired({Kind::kWrongFact, Kind::kWrongFact});
  }
  kv().erase(keys::Store(kNextInodeFact));
  ExpectFoundAndRepaired({Kind::kWrongFact});
}

TEST_F(Fsck, WrongFactsOfPublicationsAreRemoved) {
  kv()[keys::Store(kLastVersionFact)] = EncodeFact(kMaximumVersion);
  kv()[keys::Store(kLastPublicationFact)] = EncodeFact(INT64_MAX);
  ExpectCleanAndMountable();
  for (const char* fact : {kLastVersionFact, kLastPublicationFact}) {
    for (const std::string& wrong : {std::string("garbage"), std::string(), EncodeFact(UINT64_MAX)}) {
      kv()[keys::Store(fact)] = wrong;
      ExpectFoundAndRepaired({Kind::kWrongFact});
      EXPECT_FALSE(kv().contains(keys::Store(fact)));
    }
  }
}

TEST_F(Fsck, ErrorsOfTheCatalogEndTheCheck) {
  for (uint64_t nth = 1; nth <= 6; ++nth) {
    Restarted media = Restart(image_);
    BlockDevice* device = media.devices[0].get();
    media.kv->FailIterator(nth);
    const auto report = CheckStore(*media.kv, {&device, 1}, {});
    ASSERT_FALSE(report) << nth;
    EXPECT_EQ(report.error().code, ErrorCode::kIo);
  }
}

TEST_F(Fsck, ACanceledCheckChangesNothing) {
  kv()[keys::Orphan(big_)] = "";
  Restarted media = Restart(image_);
  BlockDevice* device = media.devices[0].get();
  std::atomic<bool> cancel{true};
  const auto report = CheckStore(*media.kv, {&device, 1}, {.repair = true, .cancel = &cancel});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kShutdown);
  EXPECT_EQ(media.kv->content(), kv());
}

// The caller may need to prepare for changes, and a check can take hours.
TEST_F(Fsck, TheCatalogIsTakenForRepairsAtTheFirstOne) {
  const auto taken = [&](bool cancelled) {
    Restarted media = Restart(image_);
    BlockDevice* device = media.devices[0].get();
    std::atomic<bool> cancel{cancelled};
    int calls = 0;
    const auto take = [&]() -> Result<void> {
      ++calls;
      EXPECT_EQ(media.kv->content(), kv());
      return {};
    };
    const FsckOptions options{.repair = true, .cancel = &cancel, .before_repair = take};
    EXPECT_EQ(CheckStore(*media.kv, {&device, 1}, options).has_value(), !cancelled);
    return calls;
  };
  EXPECT_EQ(taken(false), 0) << "there is nothing to repair";
  kv()[keys::Orphan(big_)] = "";
  EXPECT_EQ(taken(true), 0);
  EXPECT_EQ(taken(false), 1);
}

TEST_F(Fsck, ProgressHasATotalInEveryPass) {
  SetEntry(directory_, "dangling", InodeId{999}, S_IFREG);
  Restarted media = Restart(image_);
  BlockDevice* device = media.devices[0].get();
  std::vector<std::string> steps;
  std::map<unsigned, Progress> last;  // by pass
  const auto progress = [&](const Progress& now) {
    steps.emplace_back(now.step);
    EXPECT_GT(now.total, 0u) << now.step;
    EXPECT_LE(now.done, now.total) << now.step;
    EXPECT_EQ(now.passes, 3u);
    if (const auto before = last.find(now.pass); before != last.end()) {
      EXPECT_GE(now.done, before->second.done) << now.step;
      EXPECT_EQ(now.total, before->second.total) << now.step;
    }
    last[now.pass] = now;
  };
  const auto report = CheckStore(*media.kv, {&device, 1}, {.repair = true, .verify_data = true, .progress = progress});
  ASSERT_TRUE(report);
  for (const char* step : {"inodes", "names", "extents", "checksums", "data", "repairing"}) {
    EXPECT_THAT(steps, Contains(step));
  }
  ASSERT_EQ(last.size(), 3u);
  EXPECT_GT(last[1].done, 0u);
  EXPECT_EQ(last[2].done, report->verified_bytes.value);
  EXPECT_EQ(last[2].total, report->verified_bytes.value);
  EXPECT_EQ(last[3].unit, Progress::Unit::kItems);
  EXPECT_EQ(last[3].done, last[3].total);
}

// If any single record is missing, torn or in the wrong location, one repair fixes everything.
TEST_F(Fsck, DamageToAnyOneRecordIsRepaired) {
  const CrashImage intact = image_;
  for (const auto& [key, value] : intact.kv) {
    for (int damage = 0; damage < 4; ++damage) {
      SCOPED_TRACE(fmt::format("key kind {}, size {}, damage {}", key[0], key.size(), damage));
      image_ = intact;
      if (damage == 0) kv().erase(key);
      if (damage == 1) kv()[key] = value.substr(0, value.size() / 2);
      if (damage == 2 && !value.empty()) kv()[key][value.size() / 2] ^= 0x10;
      if (damage == 3) {
        kv().erase(key);
        std::string moved = key;
        moved.back() ^= 0x01;
        kv()[moved] = value;
      }
      Check(/*repair=*/true);
      ExpectCleanAndMountable();
      if (HasFailure()) return;
    }
  }
}

TEST_F(Fsck, TheNamesOfManyFindingsTakeOneSearchOfTheirDirectory) {
  constexpr int kFiles = 200;
  TestStore store(image_, options_);
  for (int i = 0; i < kFiles; ++i) ASSERT_TRUE(store.Create("d/sub/f" + std::to_string(i)));
  ASSERT_OK(store->Close());
  image_ = store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
  Check(/*repair=*/false);
  const int without = iterators_;
  for (auto& [key, value] : kv()) {
    const auto inode = key[0] == keys::kInode ? InodeRecord::Decode(value) : Result<InodeRecord>(ErrorCode::kInvalid);
    if (!inode || inode->size > 0 || !S_ISREG(inode->mode) || inode->links == 0) continue;
    InodeRecord record = *inode;
    record.links = 7;
    value = record.Encode();
  }
  const FsckReport report = Check(/*repair=*/false);
  ASSERT_EQ(report.findings.size(), size_t{kFiles});
  EXPECT_LT(iterators_, without + 10);
  for (const Finding& finding : report.findings) EXPECT_THAT(finding.text, HasSubstr("/d/sub/f"));
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Damaged logs and indexes, and repairs, also those that are killed.
#include <rocksdb/comparator.h>
#include <rocksdb/db.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meta/keys.h"
#include "meta/records.h"
#include "store/volume/open_catalog.h"
#include "store/volume/recover_store.h"
#include "tests/unit/store/store_location_fixture.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// As if the disk had lost the last writes of the log.
TEST_F(StoreLocationTest, ALogThatLacksWhatTheLastUnmountHadIsDamaged) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"), "a")), "d");
  ASSERT_GT(SuperblockOf(Path("one")).catalog_sequence, 0U);
  Change(Path("one"), [](Superblock& superblock) { ++superblock.catalog_sequence; });
  for (const char* index : {"a", "b"}) {
    const auto opened = OpenStoreParts(Must(Find(Path("one"), index)), {});
    ASSERT_FALSE(opened.has_value());
    EXPECT_NE(opened.error().what.find("the log of the catalog on the devices is damaged"), std::string::npos)
        << opened.error().what;
  }
  EXPECT_TRUE(Has(Must(Find(Path("one"), "b")), "d", /*read_only=*/true));
}

// A copy of the device that was put back, with a damaged frame. The sequence of the index is greater, and says nothing.
TEST_F(StoreLocationTest, AnIndexOfAnotherHistoryDoesNotReplaceADamagedLog) {
  FormatDevices({"one"});
  for (const char* name : {"d", "e"}) Make(Must(Find(Path("one"), "a")), name);
  fs::copy_file(Path("one"), Path("older"));
  for (const char* name : {"f", "g"}) Make(Must(Find(Path("one"), "a")), name);
  fs::copy_file(Path("older"), Path("one"), fs::copy_options::overwrite_existing);
  const DeviceBlock frame = RootOf(Path("one")).log.segments.front().run.run.start;
  Poke(Path("one"), ToBytes(frame).value, std::string(kBlockSize, '\0'));
  const auto opened = OpenStoreParts(Must(Find(Path("one"), "a")), {});
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().what.find("the log of the catalog on the devices is damaged"), std::string::npos)
      << opened.error().what;
  Repair(Must(Find(Path("one"), "a")), "fact");
  EXPECT_TRUE(HasFact(Must(Find(Path("one"), "a")), "fact"));
  EXPECT_FALSE(Has(Must(Find(Path("one"), "a")), "f"));
}

// After a kill only the newest root says how long the log is.
TEST_F(StoreLocationTest, ALogWithoutItsNewestRootIsDamaged) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"), "a")), "d");
  Change(Path("one"), [](Superblock& superblock) {
    superblock.clean = false;
    superblock.catalog_sequence = superblock.catalog_chain = 0;
  });
  const size_t pair = RootOf(Path("one")).sequence % 2;
  Poke(Path("one"), wal::kRootOffsets[pair], std::string(kBlockSize, '\0'));
  for (const char* index : {"a", "b"}) EXPECT_TRUE(Has(Must(Find(Path("one"), index)), "d", /*read_only=*/true));
  Poke(Path("one"), wal::kRootOffsets[pair + 2], std::string(kBlockSize, '\0'));
  for (const char* index : {"a", "b"}) {
    const auto opened = OpenStoreParts(Must(Find(Path("one"), index)), {});
    ASSERT_FALSE(opened.has_value());
    EXPECT_NE(opened.error().what.find("the log of the catalog on the devices is damaged"), std::string::npos)
        << opened.error().what;
  }
  EXPECT_TRUE(OpenStoreParts(Must(Find(Path("one"), "b")), {.read_only = true}).has_value());
  Repair(Must(Find(Path("one"), "b")), "fact");
  Make(Must(Find(Path("one"), "b")), "e");
}

// An interruption, or a kill, before the repair has changed anything.
TEST_F(StoreLocationTest, ARepairThatEndsEarlyAcceptsNoLoss) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"), "a")), "d");
  Change(Path("one"), [](Superblock& superblock) { ++superblock.catalog_sequence; });
  for (const char* index : {"a", "b"}) {
    for (const bool interrupted : {false, true}) {
      auto parts = OpenStoreParts(Must(Find(Path("one"), index)), {.repair = true});
      ASSERT_TRUE(parts.has_value()) << parts.error().what;
      EXPECT_TRUE(parts->lost);
      ASSERT_TRUE(!interrupted || MarkClean(parts->devices, parts->superblocks).has_value());
    }
    for (const fs::directory_entry& entry : fs::directory_iterator(Path(index))) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(kOldCatalogs)) << "a copy for each try";
    }
    EXPECT_FALSE(OpenStoreParts(Must(Find(Path("one"), index)), {}).has_value()) << index;
  }
  Repair(Must(Find(Path("one"), "b")), "fact");
  EXPECT_TRUE(Has(Must(Find(Path("one"), "b")), "d"));
}

TEST_F(StoreLocationTest, ADamagedSuperblockIsRebuilt) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"))), "d");
  for (const uint64_t offset : kSuperblockOffsets) Poke(Path("one"), offset + 100, "damage");
  const Error error = FindError(Path("one"));
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.what.find("weightfs recover"), std::string::npos) << error.what;
  const StoreLocation found =
      Must(FindStore(Path("one"), {.index = Path("b"), .damaged_too = true, .device_links = Path("links")}));
  RecoverReport report;
  EXPECT_TRUE(RecoverStore(found, {}, &report).has_value());
  EXPECT_EQ(report.superblocks.size(), 1U);
  EXPECT_TRUE(Has(Must(Find(Path("one"))), "d"));
}

// A kill before the log is written leaves the log as it was.
TEST_F(StoreLocationTest, ARepairIsInItsIndexUntilTheLogIsWritten) {
  FormatDevices({"one", "two"});
  const StoreLocation old = Must(Find(Path("one"), "a")), repaired = Must(Find(Path("one"), "b"));
  Make(old, "d");
  Make(repaired, "e");
  Repair(repaired, "fact");
  for (const char* index : {"a", "c"}) {
    EXPECT_TRUE(Has(Must(Find(Path("one"), index)), "e", /*read_only=*/true)) << index;
    EXPECT_FALSE(HasFact(Must(Find(Path("one"), index)), "fact")) << index;
  }
  EXPECT_TRUE(HasFact(repaired, "fact"));
  EXPECT_TRUE(WriteLog(repaired).has_value());
  for (const char* index : {"a", "b", "c"}) EXPECT_TRUE(HasFact(Must(Find(Path("one"), index)), "fact")) << index;
  EXPECT_TRUE(Has(old, "e"));
}

TEST_F(StoreLocationTest, TheIndexOfAKilledRepairMayBeLost) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"), "a")), "d");
  Repair(Must(Find(Path("one"), "a")), "fact");
  EXPECT_FALSE(HasFact(Must(Find(Path("one"), "a")), kInodeCountFact));  // it may change
  fs::remove_all(Path("a"));
  EXPECT_TRUE(Has(Must(Find(Path("one"), "a")), "d"));
  EXPECT_FALSE(HasFact(Must(Find(Path("one"), "a")), "fact"));
}

// The devices of a store of an older program have a replica, and no log.
TEST_F(StoreLocationTest, TheDevicesOfAnOlderStoreAreRepaired) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"), "a")), "d");
  Change(Path("one"), [](Superblock& superblock) { superblock.logged = false; });
  const StoreLocation store = Must(Find(Path("one"), "b"));
  Repair(store, "fact");
  EXPECT_TRUE(HasFact(store, "fact"));
  ASSERT_TRUE(WriteLog(store).has_value());
  EXPECT_TRUE(Has(Must(Find(Path("one"), "c")), "d"));
  EXPECT_TRUE(HasFact(Must(Find(Path("one"), "c")), "fact"));
}

TEST_F(StoreLocationTest, ASecondRepairThatIsKilledKeepsTheFirst) {
  FormatDevices({"one", "two"});
  const StoreLocation store = Must(Find(Path("one"), "a"));
  Make(store, "d");
  Repair(store, "first");
  ASSERT_TRUE(WriteLog(store).has_value());
  fs::copy_file(Path("two"), Path("before"));
  Repair(store, "second");
  fs::copy_file(Path("before"), Path("two"), fs::copy_options::overwrite_existing);
  EXPECT_TRUE(HasFact(store, "first"));
}

TEST_F(StoreLocationTest, TheLogOfANewStoreIsWholeDuringARepair) {
  FormatDevices({"one"});
  Repair(Must(Find(Path("one"), "a")), "fact");
  fs::remove_all(Path("a"));
  EXPECT_FALSE(HasFact(Must(Find(Path("one"), "a")), "fact"));
  Make(Must(Find(Path("one"), "a")), "d");
}

// A mount that is killed before its first change has the version of the index in its log, and keeps the index.
TEST_F(StoreLocationTest, ARepairAfterAKilledOneAndAKilledMountIsInNoLog) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one"), "a"));
  Make(store, "d");
  {
    auto parts = OpenStoreParts(store, {.repair = true});
    ASSERT_TRUE(parts.has_value() && BeginRepair(&*parts).has_value());
    parts->catalog.reset();
  }
  {
    auto session = StoreSession::Open(store, {}, {.memory = kLeastMemory});
    ASSERT_TRUE(session.has_value()) << session.error().what;
    fs::copy_file(Path("one"), Path("killed"));
    fs::copy(Path("a"), Path("killed_a"), fs::copy_options::recursive);
  }
  fs::remove_all(Path("a"));
  fs::rename(Path("killed"), Path("one"));
  fs::rename(Path("killed_a"), Path("a"));
  Repair(store, "fact");
  ASSERT_TRUE(WriteLog(store).has_value());
  EXPECT_TRUE(HasFact(Must(Find(Path("one"), "b")), "fact"));
}

// The superblocks of some devices do not name the index yet. The index still has everything, also what a damaged log
// lacks.
TEST_F(StoreLocationTest, ARepairThatIsKilledBeforeItBeginsChangesNothing) {
  for (const std::string name : {"clean", "unclean"}) {
    const std::vector<std::string> devices = {name + "1", name + "2"};
    FormatDevices(devices);
    const StoreLocation store = Must(Find(Path(devices[0]) + "," + Path(devices[1]), name));
    for (const char* made : {"d", "e"}) Make(store, made);
    if (name == "unclean") {
      for (const std::string& device : devices) {
        Change(Path(device), [](Superblock& superblock) {
          superblock.clean = false;
          superblock.catalog_sequence = superblock.catalog_chain = 0;
        });
      }
    }
    fs::copy_file(Path(devices[1]), Path("before"), fs::copy_options::overwrite_existing);
    for (int i = 0; i < 2; ++i) {  // and once more
      {
        auto parts = OpenStoreParts(store, {.repair = true});
        ASSERT_TRUE(parts.has_value() && BeginRepair(&*parts).has_value());
        parts->catalog.reset();
      }
      fs::copy_file(Path("before"), Path(devices[1]), fs::copy_options::overwrite_existing);
    }
    const DeviceRun log = RootOf(Path(devices[0])).log.segments.front().run;
    // After a clean unmount the log need not have the last change.
    const BlockCount damaged = name == "clean" ? log.run.count : BlockCount{1};
    Poke(Path(devices[log.device.value]), ToBytes(log.run.start).value, std::string(ToBytes(damaged).value, '\0'));
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(Has(store, "d")) << name;
      EXPECT_TRUE(Has(store, "e")) << name;
    }
    Make(store, "f");
    EXPECT_TRUE(Has(store, "f")) << name;
    fs::remove_all(Path("first"));
  }
}

// Another index continues the log, which does not have the repairs.
TEST_F(StoreLocationTest, AnIndexWithRepairsGetsNoEntriesOfAnotherHistory) {
  FormatDevices({"one"});
  const StoreLocation repaired = Must(Find(Path("one"), "a")), other = Must(Find(Path("one"), "b"));
  Make(repaired, "d");
  Repair(repaired, "fact");
  Make(other, "e");
  EXPECT_FALSE(HasFact(repaired, "fact"));
  EXPECT_TRUE(Has(repaired, "e"));
}

// As if a device had lost the writes of the superblocks, but not those that followed.
TEST_F(StoreLocationTest, ALogThatIsLongerThanACompleteIndexIsUsed) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one"), "a"));
  Make(store, "d");
  const Superblock before = SuperblockOf(Path("one"));
  fs::copy(Path("a"), Path("older"), fs::copy_options::recursive);
  Make(store, "e");
  Change(Path("one"), [&](Superblock& superblock) {
    superblock.catalog_sequence = before.catalog_sequence;
    superblock.catalog_chain = before.catalog_chain;
  });
  fs::remove_all(Path("a"));
  fs::rename(Path("older"), Path("a"));
  EXPECT_TRUE(Has(store, "e"));
  EXPECT_TRUE(Has(store, "d"));
}

// The log has all that the index has.
TEST_F(StoreLocationTest, AnIndexThatCannotBeReadIsKeptForItsRepairsOnly) {
  for (const bool has_repairs : {false, true}) {
    const std::string device = has_repairs ? "two" : "one";
    FormatDevices({device});
    fs::remove_all(Path("a"));
    const StoreLocation store = Must(Find(Path(device), "a"));
    Make(store, "d");
    if (has_repairs) Repair(store, "fact");
    const std::string index = Path("a/" + std::string(kCatalogName));
    fs::remove_all(index);
    rocksdb::Options options;
    options.create_if_missing = true;
    options.comparator = rocksdb::ReverseBytewiseComparator();  // with another, opening it fails, as a read may
    rocksdb::DB* made = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(options, index, &made).ok());
    delete made;
    EXPECT_TRUE(Has(store, "d"));
    bool kept = false;
    for (const fs::directory_entry& entry : fs::directory_iterator(Path("a"))) {
      kept = kept || entry.path().filename().string().starts_with(kOldCatalogs);
    }
    EXPECT_EQ(kept, has_repairs);
    fs::remove_all(Path("first"));
  }
}

// The next tables of the index cannot be opened.
TEST_F(StoreLocationTest, ALackOfDescriptorsIsNoDamage) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one"), "a"));
  Make(store, "d");
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  bool failed = false;
  for (rlim_t most = 8; most < 64; ++most) {
    const rlimit low{.rlim_cur = most, .rlim_max = limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    const auto opened = OpenStoreParts(store, {.read_only = true});
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    EXPECT_FALSE(opened && opened->rebuilt) << most;
    failed = failed || (!opened && opened.error().what.find("raise that limit") != std::string::npos);
  }
  EXPECT_TRUE(failed);
}

TEST_F(StoreLocationTest, OneSuperblockThatSaysLessHidesNoLoss) {
  FormatDevices({"one", "two"});
  const std::string both = Path("one") + "," + Path("two");
  Make(Must(Find(both, "a")), "d");
  Change(Path("one"), [](Superblock& superblock) { superblock.clean = false; });
  Change(Path("two"), [](Superblock& superblock) {
    superblock.clean = false;
    ++superblock.catalog_sequence;
  });
  const auto opened = OpenStoreParts(Must(Find(both, "b")), {});
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().what.find("the log of the catalog on the devices is damaged"), std::string::npos)
      << opened.error().what;
}

// Reads of the roots fail.
class UnreadableRoots final : public BlockDevice {
 public:
  explicit UnreadableRoots(std::unique_ptr<BlockDevice> base) : base_(std::move(base)) {}
  ByteCount size() const override { return base_->size(); }
  std::string_view path() const override { return base_->path(); }
  Result<void> Flush() override { return base_->Flush(); }
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      const bool root = request->offset.value >= wal::kRootOffsets[0] && request->offset.value < kDataOffset;
      if (root && request->operation == IoRequest::Operation::kRead) {
        request->OnComplete(ErrorCode::kIo);
      } else {
        base_->Submit({&request, 1});
      }
    }
  }

 private:
  const std::unique_ptr<BlockDevice> base_;
};

TEST_F(StoreLocationTest, ACompleteIndexServesWithoutRootsThatCanBeRead) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one"), "a"));
  Make(store, "d");
  auto parts = OpenStoreParts(store, {.read_only = true});
  ASSERT_TRUE(parts.has_value()) << parts.error().what;
  const uint64_t sequence = parts->log.root_sequence;
  parts->catalog.reset();
  parts->log = {};
  parts->devices[0] = std::make_unique<UnreadableRoots>(std::move(parts->devices[0]));
  const auto opened = OpenCatalog(store, {.read_only = true}, &*parts);
  ASSERT_TRUE(opened.has_value()) << opened.error().what;
  EXPECT_TRUE(parts->catalog->Get(keys::Store(kStoreIdFact)).value().has_value());
  EXPECT_GT(parts->log.root_sequence, sequence) << "older roots win if they can be read again";
}

// A repair changes records, and not the version that it finds.
TEST_F(StoreLocationTest, AnIndexOfTheVersionBeforeTheRepairGetsTheRepairs) {
  FormatDevices({"one"});
  const StoreLocation repaired = Must(Find(Path("one"), "a"));
  Make(repaired, "d");
  fs::copy(Path("a"), Path("b"), fs::copy_options::recursive);
  Repair(repaired, "one");
  fs::copy(Path("a"), Path("c"), fs::copy_options::recursive);
  Repair(repaired, "two");
  EXPECT_TRUE(WriteLog(repaired).has_value());
  for (const char* index : {"a", "b", "c"}) {
    for (const char* fact : {"one", "two"}) EXPECT_TRUE(HasFact(Must(Find(Path("one"), index)), fact)) << index;
  }
}

TEST_F(StoreLocationTest, AStoreDirectoryGetsTheRepairsOfItsDevice) {
  Format("s");
  Make(Path("s"), "d");
  const StoreLocation device = Must(Find(Path("s/pool")));
  Repair(device, "fact");
  EXPECT_TRUE(Has(Path("s"), "d", /*read_only=*/true));
  EXPECT_TRUE(WriteLog(device).has_value());
  EXPECT_TRUE(Has(Path("s"), "d"));
  EXPECT_TRUE(HasFact(Path("s"), "fact"));
}

TEST_F(StoreLocationTest, ALogThatIsNotWrittenNamesTheIndex) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one")));
  const auto held = OpenStoreParts(store, {});
  const auto written = WriteLog(store);
  ASSERT_FALSE(written.has_value());
  for (const char* words : {"in use by", "must not be removed"}) {
    EXPECT_NE(written.error().what.find(words), std::string::npos) << written.error().what;
  }
  EXPECT_NE(written.error().what.find("the index in " + Path("a")), std::string::npos);
}

}  // namespace
}  // namespace weightfs

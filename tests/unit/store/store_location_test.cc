// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_location.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>

#include "meta/facts.h"
#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "store/volume/catalog_swap.h"
#include "store/volume/open_catalog.h"
#include "store/volume/recover_store.h"
#include "store/volume/store_session.h"
#include "store/wal/wal_reader.h"
#include "tests/unit/store/store_directory_fixture.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

// Stores that are devices. Their indexes are in the directories "a", "b" and so on.
class StoreLocationTest : public StoreDirectoryTest {
 protected:
  // Formats devices, which are files, with the index in "first".
  StoreLocation FormatDevices(std::vector<std::string> names) {
    FormatOptions options = Sized(kSmall);
    options.fill = PoolFill::kNone;
    options.index = Path("first");
    for (const std::string& name : names) options.devices.push_back(Path(name));
    auto made = FormatStore("", options);
    EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().what);
    return made ? made->location : StoreLocation();
  }
  Result<StoreLocation> Find(const std::string& argument, const std::string& index = "a") const {
    return FindStore(argument, {.index = Path(index), .device_links = Path("links")});
  }
  Error FindError(const std::string& argument) const {
    const auto found = Find(argument);
    EXPECT_FALSE(found.has_value()) << argument;
    return found ? Error{ErrorCode::kIo} : found.error();
  }
  StoreLocation Must(Result<StoreLocation> found) const {
    EXPECT_TRUE(found.has_value()) << (found ? "" : found.error().what);
    return found ? *found : StoreLocation();
  }
  void Make(const StoreLocation& location, const std::string& name) const {
    auto session = StoreSession::Open(location, {}, {.memory = kLeastMemory});
    ASSERT_TRUE(session.has_value()) << session.error().what;
    CreateRequest directory;
    directory.mode = S_IFDIR | 0755;
    ASSERT_TRUE((*session)->store().names().Create(kRootInode, name, directory).has_value());
    ASSERT_TRUE((*session)->Close().has_value());
  }
  static void Change(const std::string& device, const std::function<void(Superblock&)>& change) {
    Superblock superblock = SuperblockOf(device);
    change(superblock);
    const auto opened = FileDevice::Open(device, {});
    ASSERT_TRUE(opened.has_value() && WriteSuperblock(**opened, superblock).has_value());
  }
  static wal::Root RootOf(const std::string& path) {
    const auto device = FileDevice::Open(path, {}).value();
    BlockDevice* const one[] = {device.get()};
    return wal::FindRoot(one, std::nullopt).value().value();
  }
  // As a repair that is killed before it writes the log.
  void Repair(const StoreLocation& location, const std::string& fact) const {
    auto parts = OpenStoreParts(location, {.repair = true});
    ASSERT_TRUE(parts.has_value()) << parts.error().what;
    ASSERT_TRUE(BeginRepair(&*parts).has_value());
    KvBatch batch;
    batch.Put(keys::Store(fact), "value");
    ASSERT_TRUE(parts->catalog->Write(std::move(batch)).has_value());
    ASSERT_TRUE(parts->catalog->Sync().has_value());
  }
  bool HasFact(const StoreLocation& location, const std::string& fact) const {
    const auto parts = OpenStoreParts(location, {.read_only = true});
    EXPECT_TRUE(parts.has_value()) << parts.error().what;
    return parts && parts->catalog->Get(keys::Store(fact)).value().has_value();
  }
  bool Has(const StoreLocation& location, const std::string& name, bool read_only = false) const {
    auto session = StoreSession::Open(location, {.read_only = read_only}, {.memory = kLeastMemory});
    EXPECT_TRUE(session.has_value()) << session.error().what;
    return session && (*session)->store().names().Lookup(kRootInode, name).has_value();
  }
};

TEST_F(StoreLocationTest, ADirectoryIsAStoreDirectoryEvenIfItIsMissing) {
  fs::create_directory(Path("a,b"));
  for (const char* name : {"a,b", "missing"}) {
    const StoreLocation found = Must(FindStore(Path(name)));
    EXPECT_EQ(found.directory, Path(name));
    EXPECT_FALSE(found.described);
  }
  EXPECT_EQ(FindError(Path("a,b")).code, ErrorCode::kInvalid);
}

TEST_F(StoreLocationTest, TheLogIsOnTheDevicesOfANewStore) {
  FormatDevices({"one"});
  fs::remove_all(Path("first"));
  const StoreLocation found = Must(Find(Path("one")));
  EXPECT_TRUE(SuperblockOf(Path("one")).logged);
  EXPECT_TRUE(SuperblockOf(Path("one")).clean);
  Make(found, "d");
}

TEST_F(StoreLocationTest, TheDevicesHaveEverythingForAnotherIndex) {
  FormatDevices({"one", "two"});
  const std::string both = Path("one") + "," + Path("two");
  Make(Must(Find(both, "a")), "d");
  EXPECT_TRUE(Has(Must(Find(both, "b")), "d"));
  Make(Must(Find(both, "b")), "e");
  // The first one is out of date by now.
  EXPECT_TRUE(Has(Must(Find(both, "a")), "e"));
}

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

TEST_F(StoreLocationTest, TheNameIsAStoreAgain) {
  FormatDevices({"one"});
  fs::create_symlink(Path("one"), Path("link"));
  const StoreLocation found = Must(Find(Path("link")));
  EXPECT_EQ(found.name, Path("one") + ",index=" + Path("a"));
  const StoreLocation again = Must(FindStore(found.name));
  EXPECT_EQ(again.directory, Path("a"));
  EXPECT_TRUE(FindServedAs(again.name, found));
  Make(found, "d");
  EXPECT_EQ(ReadStoreDescription(Path("a"))->devices[0].path, Path("link"));
}

TEST_F(StoreLocationTest, TwoIndexesOfOneStoreExcludeEachOther) {
  FormatDevices({"one"});
  const auto first = OpenStoreParts(Must(Find(Path("one"), "a")), {});
  ASSERT_TRUE(first.has_value());
  const auto second = OpenStoreParts(Must(Find(Path("one"), "b")), {});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kBusy);
  EXPECT_FALSE(fs::exists(Path("b/store.json"))) << "it has changed a directory before it had the devices";
}

TEST_F(StoreLocationTest, AStoreDirectoryAndItsDeviceExcludeEachOther) {
  Format("s");
  Make(Path("s"), "d");
  const StoreLocation device = Must(Find(Path("s/pool")));
  {
    const auto directory = OpenStoreParts(Path("s"), {});
    EXPECT_EQ(OpenStoreParts(device, {}).error().code, ErrorCode::kBusy);
  }
  {
    const auto parts = OpenStoreParts(device, {});
    ASSERT_TRUE(parts.has_value());
    EXPECT_EQ(OpenStoreParts(Path("s"), {}).error().code, ErrorCode::kBusy);
  }
  Make(device, "e");
  EXPECT_TRUE(Has(Path("s"), "e"));
  EXPECT_EQ(ReadStoreDescription(Path("s"))->devices[0].path, "pool");
}

TEST_F(StoreLocationTest, APathInAStoreDirectoryStays) {
  Format("s");
  Make(Must(Find(Path("s/pool"), "s")), "d");
  EXPECT_EQ(ReadStoreDescription(Path("s"))->devices[0].path, "pool");
}

TEST_F(StoreLocationTest, AStoreIsReadWithoutADirectory) {
  FormatDevices({"one"});
  Make(Must(Find(Path("one"))), "d");
  const StoreLocation nowhere = Must(Find(Path("one"), "missing/index"));
  EXPECT_TRUE(Has(nowhere, "d", /*read_only=*/true));
  EXPECT_FALSE(fs::exists(Path("missing")));
  EXPECT_EQ(OpenStoreParts(nowhere, {}).error().code, ErrorCode::kNotFound);
}

TEST_F(StoreLocationTest, ALookChangesNothing) {
  FormatDevices({"one"});
  const auto parts = OpenStoreParts(Must(Find(Path("one"))), {.lock = false});
  EXPECT_TRUE(parts.has_value());
  EXPECT_FALSE(fs::exists(Path("a")));
}

TEST_F(StoreLocationTest, TheDirectoryOfAnIndexIsPrivate) {
  FormatDevices({"one"});
  const mode_t before = umask(0);
  Make(Must(Find(Path("one"))), "d");
  umask(before);
  struct stat status = {};
  ASSERT_EQ(stat(Path("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700U);
}

TEST_F(StoreLocationTest, ADirectoryOfAnotherStoreIsRefused) {
  FormatDevices({"one"});
  Format("s");
  const auto before = Snapshot("s");
  const auto opened = OpenStoreParts(Must(Find(Path("one"), "s")), {});
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(Snapshot("s"), before);
}

TEST_F(StoreLocationTest, ADirectoryWithOtherFilesIsRefused) {
  FormatDevices({"one"});
  fs::create_directory(Path("full"));
  MakeFile("full/letter", ByteCount{1});
  EXPECT_EQ(OpenStoreParts(Must(Find(Path("one"), "full")), {}).error().code, ErrorCode::kExists);
  EXPECT_FALSE(fs::exists(Path("full/lock")));
}

TEST_F(StoreLocationTest, ADirectoryThatIsNoCatalogIsNotReplaced) {
  FormatDevices({"one"});
  const StoreLocation store = Must(Find(Path("one"), "full"));
  for (const char* name : {"full/meta/letter", "full/meta.txt", "full/meta"}) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    MakeFile(name, ByteCount{1});
    const auto opened = OpenStoreParts(store, {});
    ASSERT_FALSE(opened.has_value()) << name;
    EXPECT_EQ(opened.error().code, ErrorCode::kExists) << name;
    EXPECT_TRUE(fs::exists(Path(name)));
    fs::remove_all(Path("full"));
  }
}

TEST_F(StoreLocationTest, ACatalogOfSomethingElseIsKept) {
  FormatDevices({"one"});
  fs::create_directory(Path("a"));
  {
    RocksKvStore::Options options;
    options.create = true;
    ASSERT_TRUE(RocksKvStore::Open(Path("a/meta"), options).has_value());
  }
  Make(Must(Find(Path("one"))), "d");
  const auto is_kept = [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("meta.damaged-");
  };
  const fs::directory_iterator entries(Path("a"));
  EXPECT_TRUE(std::any_of(begin(entries), end(entries), is_kept));
}

TEST_F(StoreLocationTest, AMissingDeviceIsNamed) {
  FormatDevices({"one", "two"});
  fs::rename(Path("two"), Path("elsewhere"));
  const Error error = FindError(Path("one"));
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  EXPECT_NE(error.what.find("device 1"), std::string::npos) << error.what;
  EXPECT_NE(error.what.find(Path("two")), std::string::npos) << error.what;
  Make(Must(Find(Path("elsewhere") + "," + Path("one"))), "d");
}

TEST_F(StoreLocationTest, OneDeviceFindsTheOthers) {
  FormatDevices({"one", "two"});
  Make(Must(Find(Path("one"))), "d");
  EXPECT_EQ(Must(Find(Path("two"))).name, Path("two") + ",index=" + Path("a"));
  fs::rename(Path("two"), Path("elsewhere"));
  fs::create_directories(Path("links/by-id"));
  fs::create_symlink(Path("elsewhere"), Path("links/by-id/two"));
  for (const char* index : {"a", "b"}) EXPECT_TRUE(Has(Must(Find(Path("one"), index)), "d"));
}

TEST_F(StoreLocationTest, ACopyOfADeviceDoesNotFindTheOthersOfTheOriginal) {
  FormatDevices({"one", "two"});
  Make(Must(Find(Path("one"))), "d");
  for (const char* name : {"one", "two"}) fs::copy_file(Path(name), Path(std::string("copy-") + name));
  for (const char* name : {"copy-one", "copy-two"}) {
    const Error error = FindError(Path(name));
    EXPECT_EQ(error.code, ErrorCode::kInvalid) << error.what;
    EXPECT_NE(error.what.find("name all 2 devices"), std::string::npos) << error.what;
  }
  EXPECT_TRUE(Has(Must(Find(Path("two"))), "d"));
  EXPECT_TRUE(Has(Must(Find(Path("copy-two") + "," + Path("copy-one"), "b")), "d"));
}

TEST_F(StoreLocationTest, DevicesOfTwoCopiesAreRefused) {
  FormatDevices({"one", "two"});
  fs::create_directory(Path("copy"));
  Make(Must(Find(Path("one"))), "d");
  for (const char* name : {"one", "two"}) fs::copy_file(Path(name), Path("copy/") + name);
  Make(Must(Find(Path("one") + "," + Path("two"))), "e");
  const auto mixed = [&](bool read_only) {
    return OpenStoreParts(Must(Find(Path("copy/one") + "," + Path("two"), "b")), {.read_only = read_only}).error();
  };
  for (const bool read_only : {true, false}) {
    EXPECT_EQ(mixed(read_only).code, ErrorCode::kInvalid) << mixed(read_only).what;
    EXPECT_NE(mixed(read_only).what.find("two copies"), std::string::npos) << mixed(read_only).what;
  }
  EXPECT_TRUE(Has(Must(Find(Path("copy/one") + "," + Path("copy/two"), "b")), "d"));
  EXPECT_TRUE(Has(Must(Find(Path("one") + "," + Path("two"))), "e"));
}

TEST_F(StoreLocationTest, WhatIsNoDeviceOfOneStoreIsRefused) {
  FormatDevices({"one"});
  fs::remove_all(Path("first"));
  FormatDevices({"other"});
  fs::copy_file(Path("one"), Path("copy"));
  fs::create_symlink(Path("one"), Path("link"));
  MakeFile("zeros", kSmall);
  const auto refused = [&](const std::string& second, ErrorCode code, const std::string& word) {
    const Error error = FindError(Path("one") + "," + Path(second));
    EXPECT_EQ(error.code, code) << error.what;
    EXPECT_NE(error.what.find(word), std::string::npos) << error.what;
  };
  refused("other", ErrorCode::kInvalid, "belongs to the store");
  refused("copy", ErrorCode::kInvalid, "copy");
  refused("link", ErrorCode::kInvalid, "given twice");
  refused("zeros", ErrorCode::kNotFound, "weightfs format");
  refused("missing", ErrorCode::kNotFound, "check the path");
  EXPECT_EQ(FindError("/dev/null,/dev/null").code, ErrorCode::kInvalid);
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
    {
      auto parts = OpenStoreParts(store, {.repair = true});
      ASSERT_TRUE(parts.has_value() && BeginRepair(&*parts).has_value());
    }
    fs::copy_file(Path("before"), Path(devices[1]), fs::copy_options::overwrite_existing);
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

TEST_F(StoreLocationTest, AStoreThatWasNeverMountedNeedsItsDirectory) {
  Format("s");
  const auto opened = OpenStoreParts(Must(Find(Path("s/pool"))), {});
  ASSERT_FALSE(opened.has_value());
  EXPECT_NE(opened.error().what.find("store directory"), std::string::npos) << opened.error().what;
}

TEST_F(StoreLocationTest, APathWithACommaIsRefused) {
  FormatDevices({"one"});
  EXPECT_EQ(Find(Path("one"), "a,b").error().code, ErrorCode::kInvalid);
  fs::create_directory(Path("c,d"));
  fs::copy_file(Path("one"), Path("c,d/one"));
  fs::create_symlink(Path("c,d"), Path("link"));
  EXPECT_EQ(FindError(Path("c,d/one")).code, ErrorCode::kInvalid);
  FormatOptions options = Sized(kSmall);
  for (const char* name : {"c,d/two", "link/two"}) {
    options.devices = {Path(name)};
    options.index = Path("second");
    EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kInvalid);
    EXPECT_FALSE(fs::exists(Path("c,d/two")));
  }
  options.devices = {Path("two")};
  options.index = Path("e,f");
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kInvalid);
  EXPECT_FALSE(fs::exists(Path("two")) || fs::exists(Path("e,f")));
}

TEST_F(StoreLocationTest, FormatReplacesAnIndexOnlyWithItsStore) {
  FormatDevices({"one"});
  MakeFile("other", kSmall);
  FormatOptions options = OnDevices({Path("one")});
  options.index = Path("first");
  options.fill = PoolFill::kNone;
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kExists);
  options.force = true;
  for (int round = 0; round < 2; ++round) {
    const auto made = FormatStore("", options);
    ASSERT_TRUE(made.has_value()) << made.error().what;
    Make(made->location, "d");
  }
  options.devices = {Path("other")};
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kInvalid);
  EXPECT_TRUE(Has(Must(Find(Path("one"), "first")), "d"));
}

TEST_F(StoreLocationTest, FormatMakesDevicesAndOverwritesNone) {
  FormatDevices({"one"});
  FormatOptions options = OnDevices({Path("one")});
  options.index = Path("second");
  options.fill = PoolFill::kNone;
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kExists);
  options.size = kSmall;
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kInvalid);
  options.devices = {Path("new"), Path("new")};
  EXPECT_EQ(FormatStore("", options).error().code, ErrorCode::kInvalid);
  EXPECT_FALSE(fs::exists(Path("new"))) << "a failed format has left a file";
  EXPECT_FALSE(fs::exists(Path("second"))) << "a failed format has left a directory";
}

}  // namespace
}  // namespace weightfs

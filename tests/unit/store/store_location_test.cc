// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_location.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "meta/rocks_kv_store.h"
#include "tests/unit/store/store_location_fixture.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;

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

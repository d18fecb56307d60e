// SPDX-License-Identifier: Apache-2.0
// Stores that are devices, for the tests of unit_store_directory.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "meta/keys.h"
#include "store/volume/open_catalog.h"
#include "store/volume/store_location.h"
#include "store/volume/store_session.h"
#include "store/wal/wal_reader.h"
#include "tests/unit/store/store_directory_fixture.h"

namespace weightfs {

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

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// A closed store whose catalog a test damages, and what fsck makes of it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meta/keys.h"
#include "store/check/fsck.h"
#include "tests/support/catalog_check.h"
#include "tests/support/test_store.h"

namespace weightfs {

// A closed store with an instance of everything. Each test damages its catalog and checks what fsck reports and does.
class Fsck : public ::testing::Test {
 protected:
  Fsck() {
    TestStore store(options_);
    auto& names = store->names();
    directory_ = names.Create(kRootInode, "d", {.mode = S_IFDIR | 0755})->ino;
    sub_ = names.Create(directory_, "sub", {.mode = S_IFDIR | 0755})->ino;
    std::string data(3 * kMiB + 1000, 'x');
    for (size_t i = 0; i < data.size(); i += 512) data[i] = static_cast<char>(i / 512);
    EXPECT_TRUE(store.WriteFile("d/big", data));
    EXPECT_TRUE(store.WriteFile("d/sub/small", "hello"));
    big_ = *store.Resolve("d/big");
    small_ = *store.Resolve("d/sub/small");
    EXPECT_TRUE(names.Link(small_, kRootInode, "hard"));
    link_ = names.Create(kRootInode, "link", {.mode = S_IFLNK, .symlink = "d/big"})->ino;
    EXPECT_TRUE(names.SetExtendedAttribute(big_, "user.note", "v", AttributeWrite::kAny));
    orphan_ = names.CreateUnnamed(kRootInode, {.mode = S_IFREG | 0600})->ino;
    EXPECT_TRUE(store->SyncAll());
    EXPECT_TRUE(store->Close());
    image_ = store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
  }

  KvContent& kv() { return image_.kv; }
  InodeRecord Record(InodeId ino) { return InodeRecord::Decode(kv().at(keys::Inode(ino))).value(); }
  void SetRecord(InodeId ino, const InodeRecord& record) { kv()[keys::Inode(ino)] = record.Encode(); }
  void SetEntry(InodeId parent, std::string_view name, InodeId ino, uint32_t type) {
    kv()[keys::Entry(parent, name)] = EntryRecord{ino, type}.Encode();
  }
  std::pair<std::string, ExtentRecord> FirstExtent(InodeId ino) {
    const auto found = kv().lower_bound(keys::ExtentPrefix(ino));
    return {found->first, ExtentRecord::Decode(found->first, found->second).value()};
  }
  void SetExtent(InodeId ino, uint64_t block, const ExtentRecord& record) {
    const std::string key = keys::Extent(ino, FileBlock{block});
    kv()[key] = record.Encode(key);
  }

  // Runs one check. The image takes over its changes.
  FsckReport Check(bool repair, bool verify = false) {
    Restarted media = Restart(image_);
    std::vector<BlockDevice*> devices;
    for (const auto& device : media.devices) devices.push_back(device.get());
    if (prepare_) prepare_(*media.devices[0]);
    iterators_ = 0;
    media.kv->AfterNewIterator([this] { ++iterators_; });
    const FsckOptions options{.repair = repair, .verify_data = verify, .device_sizes = {options_.device_size}};
    auto report = CheckStore(*media.kv, devices, options);
    EXPECT_TRUE(report) << ToString(report.error());
    kv() = media.kv->content();
    return report ? *report : FsckReport();
  }
  static std::vector<std::string> Kinds(const FsckReport& report) {
    std::vector<std::string> kinds;
    for (const Finding& finding : report.findings) kinds.emplace_back(FindingKindName(finding.kind));
    return kinds;
  }
  // Checks that exactly these problems are found, that nothing changes without a repair, that a repair fixes all of
  // them, and that the next check finds none.
  FsckReport ExpectFoundAndRepaired(const std::vector<FindingKind>& expected) {
    std::vector<std::string> names;
    for (const FindingKind kind : expected) names.emplace_back(FindingKindName(kind));
    const KvContent before = kv();
    const FsckReport found = Check(/*repair=*/false);
    EXPECT_THAT(Kinds(found), ::testing::UnorderedElementsAreArray(names));
    EXPECT_FALSE(found.clean());
    EXPECT_EQ(found.repaired, 0u);
    EXPECT_EQ(kv(), before);
    FsckReport repaired = Check(/*repair=*/true);
    EXPECT_THAT(Kinds(repaired), ::testing::UnorderedElementsAreArray(names));
    EXPECT_TRUE(repaired.sound());
    for (const Finding& finding : repaired.findings) EXPECT_TRUE(finding.repaired) << finding.text;
    ExpectCleanAndMountable();
    return repaired;
  }
  void ExpectCleanAndMountable() {
    const FsckReport again = Check(/*repair=*/false);
    EXPECT_TRUE(again.clean());
    for (const Finding& finding : again.findings) {
      ADD_FAILURE() << FindingKindName(finding.kind) << ": " << finding.text;
    }
    EXPECT_THAT(CheckCatalog(kv()), ::testing::IsEmpty());
    TestStore store(image_, options_);
    ASSERT_TRUE(store.opened());
    EXPECT_FALSE(store->read_only());
  }
  // Reads the path in a mount of the image.
  Result<std::string> ReadPath(std::string_view path) {
    TestStore store(image_, options_);
    return store.ReadPath(path);
  }

  const TestStoreOptions options_{.device_size = ByteCount{32 * kMiB}};
  CrashImage image_;
  std::function<void(FaultDevice&)> prepare_;
  int iterators_ = 0;  // that the last check made
  InodeId directory_, sub_, big_, small_, link_, orphan_;
};

}  // namespace weightfs

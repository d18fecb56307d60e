// SPDX-License-Identifier: Apache-2.0
// The in-memory inodes: which of them stay.
#include "store/names/inode_table.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/support/file_services.h"
#include "tests/support/memory_kv_store.h"

namespace weightfs {
namespace {

InodeRecord RegularFile() {
  InodeRecord record;
  record.mode = S_IFREG | 0644;
  record.links = 1;
  return record;
}

TEST(InodeTable, KeepsInodesInUseAndALimitedNumberOfOthers) {
  MemoryKvStore catalog(std::make_shared<Journal>());
  TestFileServices services;
  InodeTable table(catalog, services.services(), 100);
  std::vector<InodePtr> used;
  for (uint64_t ino = 1; ino <= 1000; ++ino) used.push_back(table.Insert(InodeId{ino}, RegularFile()));
  EXPECT_EQ(table.size(), 1000U);
  for (const InodePtr& inode : used) EXPECT_EQ(table.Find(inode->id), inode);
  used.clear();
  for (uint64_t ino = 1001; ino <= 2000; ++ino) table.Insert(InodeId{ino}, RegularFile());
  EXPECT_LE(table.size(), 101U);
  EXPECT_NE(table.Find(InodeId{2000}), nullptr) << "the last one was just asked for";
}

// If each insert scanned all inodes, this would exceed the time limit of a test.
TEST(InodeTable, AnInsertDoesNotScanTheInodesInUse) {
  MemoryKvStore catalog(std::make_shared<Journal>());
  TestFileServices services;
  InodeTable table(catalog, services.services(), 16384);
  std::vector<InodePtr> used;
  for (uint64_t ino = 1; ino <= 1'000'000; ++ino) used.push_back(table.Insert(InodeId{ino}, RegularFile()));
  EXPECT_EQ(table.size(), used.size());
}

// Gives the file of an inode extents that are not contiguous.
void LoadExtents(Inode& inode, uint64_t count) {
  ExtentMap extents;
  for (uint64_t i = 0; i < count; ++i) {
    ASSERT_TRUE(extents.Load(FileBlock{2 * i}, {DeviceId{0}, DeviceBlock{300 + 2 * i}, BlockCount{1}, 0, 1}));
  }
  MutexLock lock(inode.mutex);
  inode.file->Load(std::move(extents));
}

TEST(InodeTable, BoundsTheExtentsOfFilesThatNobodyUses) {
  MemoryKvStore catalog(std::make_shared<Journal>());
  TestFileServices services;
  constexpr size_t kResident = 100, kMost = kResident * InodeTable::kExtentsPerInode;
  InodeTable table(catalog, services.services(), kResident);
  const InodePtr used = table.Insert(InodeId{1}, RegularFile());
  LoadExtents(*used, 10);
  for (uint64_t ino = 2; ino <= 50; ++ino) {
    LoadExtents(*table.Insert(InodeId{ino}, RegularFile()), 1000);
    EXPECT_LE(services.extent_memory().extents(), kMost + kMost / 8 + 1000);
  }
  EXPECT_EQ(table.Find(InodeId{1}), used);
  // Without a new inode too: all of these are in memory before their extents are.
  for (uint64_t ino = 101; ino <= 120; ++ino) table.Insert(InodeId{ino}, RegularFile());
  for (uint64_t ino = 101; ino <= 120; ++ino) {
    const auto inode = table.Get(InodeId{ino});
    if (inode) LoadExtents(**inode, 1000);
    EXPECT_LE(services.extent_memory().extents(), kMost + kMost / 8 + 1000);
  }
  // Those of files in use stay, and do not make each call a scan.
  std::vector<InodePtr> all;
  for (uint64_t ino = 201; ino <= 220; ++ino) {
    all.push_back(table.Insert(InodeId{ino}, RegularFile()));
    LoadExtents(*all.back(), 1000);
  }
  EXPECT_GE(services.extent_memory().extents(), 20'000U);
  all.clear();
  LoadExtents(*table.Insert(InodeId{301}, RegularFile()), kMost);
  table.Insert(InodeId{302}, RegularFile());
  EXPECT_LE(services.extent_memory().extents(), kMost);
}

}  // namespace
}  // namespace weightfs

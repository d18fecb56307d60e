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

}  // namespace
}  // namespace weightfs

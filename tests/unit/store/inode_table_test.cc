// The inodes in memory: which of them stay.
#include "store/inode_table.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "tests/support/memory_kv_store.h"

namespace weightfs {
namespace {

InodeRecord File() {
  InodeRecord record;
  record.mode = S_IFREG | 0644;
  record.links = 1;
  return record;
}

TEST(InodeTable, KeepsThoseInUseAndAboutAsManyOthersAsItShould) {
  MemoryKvStore catalog(std::make_shared<Journal>());
  InodeTable table(catalog, 100);
  std::vector<InodePtr> used;
  for (uint64_t ino = 1; ino <= 1000; ++ino) used.push_back(table.Insert(InodeId{ino}, File()));
  EXPECT_EQ(table.size(), 1000U);
  for (const InodePtr& inode : used) EXPECT_EQ(table.Find(inode->id), inode);
  used.clear();
  for (uint64_t ino = 1001; ino <= 2000; ++ino) table.Insert(InodeId{ino}, File());
  EXPECT_LE(table.size(), 101U);
  EXPECT_NE(table.Find(InodeId{2000}), nullptr) << "the last one was just asked for";
}

// A limit far above what it takes, and far below what it took with a look at all for each.
TEST(InodeTable, ThoseInUseAreNotLookedAtForEachThatComes) {
  MemoryKvStore catalog(std::make_shared<Journal>());
  InodeTable table(catalog, 16384);
  std::vector<InodePtr> used;
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t ino = 1; ino <= 100'000; ++ino) used.push_back(table.Insert(InodeId{ino}, File()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace weightfs

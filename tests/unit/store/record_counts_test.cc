// SPDX-License-Identifier: Apache-2.0
// How many records the everyday operations change in the catalog, and in how many batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "meta/keys.h"
#include "store/wal/wal_format.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RecordCounts : public ::testing::Test {
 protected:
  RecordCounts() {
    EXPECT_TRUE(store_.WriteFile("first", ""));  // takes inode numbers, and deletes the number of inodes
    EXPECT_TRUE(store_->SyncAll());
    static_cast<void>(Batches());
  }

  // The batches since the last call. Each is the changes, in order of their kinds: '+' or '-', and the kind of key. The
  // version, which every batch has, is left out.
  std::vector<std::string> Batches() {
    std::vector<std::string> batches;
    const auto events = store_.journal().events();
    for (; seen_ < events.size(); ++seen_) {
      if (events[seen_].batch == nullptr) continue;
      std::vector<std::string> changes;
      for (const KvBatch::Change& change : events[seen_].batch->changes()) {
        if (change.key == keys::Store(wal::kVersionFact)) continue;
        changes.push_back({change.kind == KvBatch::Change::Kind::kPut ? '+' : '-', change.key[0]});
      }
      std::sort(changes.begin(), changes.end());
      std::string& batch = batches.emplace_back();
      for (const std::string& change : changes) batch += change;
    }
    return batches;
  }

  // As the kernel does when a program creates and closes a file.
  InodeId Write(std::string_view path) {
    const InodePtr file = store_.Create(path).value();
    store_->inodes().AddLookups(file->id, 1);
    EXPECT_TRUE(store_.WriteAt(file, 0, Pattern(1, kBlockSize)));
    store_->CloseFile(file);
    EXPECT_TRUE(store_->SyncAll());
    return file->id;
  }

  TestStore store_;
  size_t seen_ = 0;
};

TEST_F(RecordCounts, AFileIsCreatedWithThreeRecords) {
  store_->CloseFile(store_.Create("f").value());
  EXPECT_THAT(Batches(), ElementsAre("+d+i+i"));  // the name, the file, and the times of the directory
}

TEST_F(RecordCounts, ABlockIsCommittedWithThreeRecords) {
  const InodePtr file = store_.Create("f").value();
  static_cast<void>(Batches());
  EXPECT_TRUE(store_.WriteAt(file, 0, Pattern(1, kBlockSize)));
  EXPECT_TRUE(store_->Sync(file));
  EXPECT_THAT(Batches(), ElementsAre("+c+e+i"));
}

TEST_F(RecordCounts, AClosedFileIsUnlinkedInOneBatch) {
  const InodeId ino = Write("f");
  static_cast<void>(Batches());
  EXPECT_TRUE(store_->names().Unlink(kRootInode, "f"));
  store_->names().Forget(ino, 1);
  EXPECT_THAT(Batches(), ElementsAre("+i-c-d-e-i"));
}

TEST_F(RecordCounts, AFileIsReplacedByARenameInOneBatch) {
  const InodeId old = Write("f");
  Write("f.tmp");
  static_cast<void>(Batches());
  EXPECT_TRUE(store_->names().Rename(kRootInode, "f.tmp", kRootInode, "f", RenameMode::kReplace));
  store_->names().Forget(old, 1);
  EXPECT_THAT(Batches(), ElementsAre("+d+i+i-c-d-e-i"));
}

TEST_F(RecordCounts, AnOpenFileIsDeletedInTwoBatches) {
  const InodePtr file = store_.Create("f").value();
  static_cast<void>(Batches());
  EXPECT_TRUE(store_->names().Unlink(kRootInode, "f"));
  EXPECT_THAT(Batches(), ElementsAre("+i+i+o-d"));
  store_->CloseFile(file);
  EXPECT_THAT(Batches(), ElementsAre("-i-o"));
}

TEST_F(RecordCounts, TheAttributesOfADeletedFileAreReadWithoutAChange) {
  const InodeId ino = Write("f");
  EXPECT_TRUE(store_->names().Unlink(kRootInode, "f"));
  static_cast<void>(Batches());
  EXPECT_EQ(store_->names().GetAttributes(ino)->links, 0U);
  EXPECT_EQ(store_->names().GetAttributes(ino)->size, kBlockSize);
  EXPECT_THAT(Batches(), IsEmpty());
}

TEST_F(RecordCounts, ANewUseOfADeletedFileWritesItsRecordsAgain) {
  const InodeId ino = Write("f");
  EXPECT_TRUE(store_->names().Unlink(kRootInode, "f"));
  static_cast<void>(Batches());
  const InodePtr file = store_->OpenFile(ino, false).value();
  EXPECT_THAT(Batches(), ElementsAre("+c+e+i+o"));
  store_->CloseFile(file);
  EXPECT_THAT(Batches(), IsEmpty());
  store_->names().Forget(ino, 1);
  EXPECT_THAT(Batches(), ElementsAre("-c-e-i-o"));
}

}  // namespace
}  // namespace weightfs

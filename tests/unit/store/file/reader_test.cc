// SPDX-License-Identifier: Apache-2.0
#include "store/file/reader.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/support/file_rig.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

class ReaderTest : public ::testing::Test {
 protected:
  Result<std::string> Read(uint64_t offset, uint64_t size, ReadStream* stream = nullptr) {
    std::promise<Result<ReadView>> promise;
    reader_.Read(inode_, ByteOffset{offset}, ByteCount{size}, stream,
                 [&](Result<ReadView> view) { promise.set_value(std::move(view)); });
    ASSIGN_OR_RETURN(const ReadView view, promise.get_future().get());
    return ToText(view);
  }
  void WriteToDevice(const std::string& data) {
    rig_.Write(inode_, 0, data);
    rig_.WriteBackAll(inode_);
  }

  FileRig rig_;
  Reader reader_{rig_.kv(),
                 rig_.devices(),
                 rig_.space(),
                 rig_.cache(),
                 Reader::Pools{rig_.stripes(), rig_.small()},
                 /*verify=*/true,
                 /*read_only=*/false};
  InodePtr inode_ = rig_.NewFile(3);
};

TEST_F(ReaderTest, JoinsDirtyMemoryHolesAndTheDevice) {
  const std::string stored = Pattern(1, 2 * kBlockSize), fresh = Pattern(2, 1000);
  WriteToDevice(stored);
  rig_.Write(inode_, 4 * kBlockSize, fresh);
  const std::string all = Read(0, kMiB).value();
  EXPECT_EQ(all, stored + std::string(2 * kBlockSize, '\0') + fresh);
  EXPECT_EQ(Read(kBlockSize - 10, 20).value(), stored.substr(kBlockSize - 10, 20));
  EXPECT_EQ(Read(all.size(), 10).value(), "");
}

TEST_F(ReaderTest, DirtyMemoryCostsNoDeviceRead) {
  const std::string data = Pattern(1, 3 * kBlockSize);
  rig_.Write(inode_, 0, data);
  EXPECT_EQ(Read(0, data.size()).value(), data);
  EXPECT_EQ(rig_.device().counts().reads, 0U);
}

TEST_F(ReaderTest, AMismatchIsReadAgainAndThenAnError) {
  WriteToDevice(Pattern(1, 4 * kBlockSize));
  DeviceBlock start;
  {
    MutexLock lock(inode_->mutex);
    start = inode_->file->extents().Lookup(FileBlock{1}, BlockCount{1}).extent->start;
  }
  rig_.device().Corrupt(ToBytes(start));
  EXPECT_EQ(Read(kBlockSize, 10).error().code, ErrorCode::kCorrupt);
  EXPECT_GE(reader_.counters().checksum_errors.load(), 4U);
  EXPECT_TRUE(Read(0, kBlockSize)) << "only the damaged block is lost";
  EXPECT_TRUE(Read(2 * kBlockSize, 2 * kBlockSize));
}

TEST_F(ReaderTest, ChecksumsComeFromTheCatalogWithoutTheMutex) {
  const std::string data = Pattern(1, 2 * kMiB);
  for (uint64_t at = 0; at < data.size(); at += kMiB / 2) rig_.Write(inode_, at, data.substr(at, kMiB / 2));
  rig_.WriteBackAll(inode_);
  {
    // As a commit does; afterwards the table has no checksums in memory.
    MutexLock lock(inode_->mutex);
    ASSERT_TRUE(inode_->file->Seal());
    ChecksumSegments loaded;
    std::vector<uint64_t> missing;
    KvBatch batch;
    ASSERT_TRUE(inode_->file->AppendChecksums(UINT64_MAX, loaded, &missing, &batch).value());
    ASSERT_TRUE(rig_.kv().Write(batch));
    inode_->file->FinishCommit();
  }
  EXPECT_EQ(Read(kMiB - 100, 200).value(), data.substr(kMiB - 100, 200));
}

TEST_F(ReaderTest, AStreamReadsAheadOnce) {
  std::string data;
  for (uint64_t at = 0; at < 8 * kMiB; at += kMiB) {
    data += Pattern(at, kMiB);
    rig_.Write(inode_, at, data.substr(at, kMiB));
    rig_.WriteBackAll(inode_);
  }
  ReadStream stream;
  for (uint64_t at = 0; at < data.size(); at += kMiB) EXPECT_EQ(Read(at, kMiB, &stream).value(), data.substr(at, kMiB));
  EXPECT_EQ(rig_.device().counts().read.value, data.size()) << "every byte is read from the device once";
}

TEST_F(ReaderTest, AReadSeesWhatWasWrittenOverAChunk) {
  WriteToDevice(Pattern(1, 2 * kBlockSize));
  ASSERT_TRUE(Read(0, 2 * kBlockSize));
  const std::string fresh = Pattern(2, kBlockSize);
  rig_.Write(inode_, 0, fresh);
  EXPECT_EQ(Read(0, kBlockSize).value(), fresh);
  rig_.WriteBackAll(inode_);
  EXPECT_EQ(Read(0, kBlockSize).value(), fresh);
}

TEST_F(ReaderTest, TheReadEpochEndsBeforeTheAnswer) {
  WriteToDevice(Pattern(1, 4 * kBlockSize));
  SpaceReservation some, all;
  ASSERT_TRUE(rig_.space().Reserve(&some, BlockCount{8}));
  const SpaceManager::Request request{
      .ino = InodeId{9}, .first = FileBlock{0}, .count = BlockCount{8}, .after = std::nullopt};
  auto runs = rig_.space().Allocate(request, &some).value();
  rig_.device().Hold();
  std::promise<bool> free;
  reader_.Read(inode_, ByteOffset{0}, ByteCount{2 * kBlockSize}, nullptr, [&](const Result<ReadView>&) {
    free.set_value(
        rig_.space().Reserve(&all, TestFileServices::kBlocks - BlockCount{4}, /*privileged=*/true).has_value());
  });
  rig_.space().Retire(std::move(runs));
  rig_.device().Release();
  EXPECT_TRUE(free.get_future().get());
}

TEST_F(ReaderTest, CountsTheBytesThatWereRead) {
  WriteToDevice(Pattern(1, 1000));
  ReadStream stream;
  EXPECT_EQ(Read(400, kMiB, &stream)->size(), 600U);
  EXPECT_EQ(Read(5000, kMiB, &stream)->size(), 0U);
  EXPECT_EQ(reader_.counters().read_bytes.load(), 600U);
}

}  // namespace
}  // namespace weightfs

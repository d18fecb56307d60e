// SPDX-License-Identifier: Apache-2.0
// A single file: plans, writeback, seals and reverts.
#include "store/file/file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/support/file_rig.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

class FileTest : public ::testing::Test {
 protected:
  FileTest() : inode_(rig_.NewFile(7)) {}

  WriteNeeds NeedsOfCopy(uint64_t offset, uint64_t size) {
    WriteSupplies supplies;
    WritePlan plan(supplies);
    MutexLock lock(inode_->mutex);
    inode_->file->PlanCopy(offset, size, nullptr, Staging::kSmall, &plan);
    return plan.needs();
  }

  FileRig rig_;
  InodePtr inode_;
};

TEST_F(FileTest, APlanReportsEverythingItLacksAtOnce) {
  const WriteNeeds needs = NeedsOfCopy(0, 3 * kSmallStaging.value);
  EXPECT_EQ(needs.space.value, 3 * kSmallStaging.value / kBlockSize);
  EXPECT_EQ(needs.small, 3U);
  EXPECT_TRUE(needs.content.empty());
  MutexLock lock(inode_->mutex);
  EXPECT_TRUE(inode_->file->dirty().ranges().empty()) << "a plan changes nothing";
}

TEST_F(FileTest, AWriteIntoDirtyBlocksLacksNothing) {
  rig_.Write(inode_, 0, Pattern(1, 10000));
  EXPECT_TRUE(NeedsOfCopy(100, 5000).empty());
  EXPECT_EQ(NeedsOfCopy(3 * kBlockSize, kBlockSize).space.value, 1U) << "the buffer has room, the pool must have too";
}

TEST_F(FileTest, APartOfABlockOnTheDeviceNeedsItsContent) {
  rig_.Write(inode_, 0, Pattern(1, 4 * kBlockSize));
  rig_.WriteBackAll(inode_);
  const WriteNeeds needs = NeedsOfCopy(kBlockSize + 100, 2 * kBlockSize);
  EXPECT_EQ(needs.content, (std::vector<FileBlock>{{1}, {3}}));
  EXPECT_TRUE(NeedsOfCopy(kBlockSize, kBlockSize).content.empty()) << "a whole block keeps nothing";
}

TEST_F(FileTest, PlansOfZerosLeaveHolesAlone) {
  WriteSupplies supplies;
  WritePlan plan(supplies);
  MutexLock lock(inode_->mutex);
  inode_->file->SetSize(kBlockSize);
  inode_->file->PlanZeros(10, 20, &plan);
  EXPECT_TRUE(plan.needs().empty());
  EXPECT_FALSE(plan.needs().privileged);
}

TEST_F(FileTest, BlocksOverUnwrittenExtentsNeedNoSpace) {
  SpaceReservation all, some;
  ASSERT_TRUE(rig_.space().Reserve(&some, BlockCount{8}));
  SpaceManager::Request request;
  request.ino = inode_->id;
  request.count = BlockCount{8};
  const auto runs = rig_.space().Allocate(request, &some).value();
  ASSERT_TRUE(rig_.space().Reserve(&all, TestFileServices::kBlocks - BlockCount{8}, /*privileged=*/true));
  {
    MutexLock lock(inode_->mutex);
    inode_->file->MapUnwritten(FileBlock{0}, runs);
  }
  rig_.Write(inode_, 0, Pattern(1, 3 * kBlockSize));
  EXPECT_EQ(NeedsOfCopy(2 * kBlockSize, 4 * kBlockSize).space.value, 0U);
  EXPECT_EQ(NeedsOfCopy(7 * kBlockSize, 2 * kBlockSize).space.value, 1U) << "nor do those that are dirty already";
}

TEST_F(FileTest, WritebackTakesTheWholeBufferAndReservedSpace) {
  const BlockCount free = rig_.space().Statistics().free;
  rig_.Write(inode_, 0, Pattern(1, 8 * kBlockSize));
  EXPECT_EQ((free - rig_.space().Statistics().free).value, 8U);
  PendingWrites writes;
  {
    MutexLock lock(inode_->mutex);
    EXPECT_EQ(inode_->file->reserved().value, 8U);
    rig_.write_back().Start(inode_, FileBlock{2}, FileBlock{3}, false, &writes);
    EXPECT_EQ(inode_->file->dirty().dirty().value, 0U);
    EXPECT_EQ(inode_->file->reserved().value, 0U);
    EXPECT_EQ(inode_->file->extents().mapped().value, 8U);
    EXPECT_EQ(inode_->attributes.blocks, 8U);
  }
  EXPECT_EQ((free - rig_.space().Statistics().free).value, 8U);
  rig_.write_back().Submit(&writes);
}

TEST_F(FileTest, ASealTakesTheDifferenceOnce) {
  rig_.Write(inode_, 0, Pattern(1, 2 * kBlockSize));
  rig_.WriteBackAll(inode_);
  MutexLock lock(inode_->mutex);
  const auto sealed = inode_->file->Seal();
  ASSERT_TRUE(sealed);
  EXPECT_EQ(sealed->size, 2 * kBlockSize);
  EXPECT_EQ(sealed->blocks, 2U);
  EXPECT_EQ(sealed->version, 1U);
  ASSERT_EQ(sealed->changes.size(), 1U);
  EXPECT_TRUE(sealed->freed.empty());
  EXPECT_FALSE(inode_->file->Seal());
  EXPECT_TRUE(inode_->file->commit().committing());
  inode_->file->FinishCommit();
  EXPECT_FALSE(inode_->file->Uncommitted());
}

TEST_F(FileTest, OverwrittenBlocksAreFreedByTheNextSeal) {
  rig_.Write(inode_, 0, Pattern(1, 2 * kBlockSize));
  rig_.WriteBackAll(inode_);
  {
    MutexLock lock(inode_->mutex);
    ASSERT_TRUE(inode_->file->Seal());
    inode_->file->FinishCommit();
  }
  rig_.Write(inode_, 0, Pattern(2, kBlockSize));
  rig_.WriteBackAll(inode_);
  MutexLock lock(inode_->mutex);
  const auto sealed = inode_->file->Seal();
  ASSERT_EQ(sealed->freed.size(), 1U);
  EXPECT_EQ(sealed->freed[0].run.count.value, 1U);
}

TEST_F(FileTest, ARevertForgetsTheContentAndKeepsTheError) {
  rig_.device().Fail(FaultDevice::Target::kWrite, {});
  rig_.Write(inode_, 0, Pattern(1, 2 * kBlockSize));
  rig_.WriteBackAll(inode_);
  MutexLock lock(inode_->mutex);
  File& file = *inode_->file;
  EXPECT_TRUE(file.write_error().failed());
  EXPECT_TRUE(file.write_error().RefuseChange());
  ASSERT_TRUE(file.Seal());
  file.WaitForSealedWrites(lock);
  const Timestamp changed = inode_->attributes.changed;
  file.Revert(0, 0);
  EXPECT_GT(inode_->attributes.changed, changed) << "a lease of the content that is gone differs by it";
  EXPECT_FALSE(file.loaded());
  EXPECT_FALSE(file.write_error().failed());
  EXPECT_TRUE(file.Uncommitted()) << "the error waits for its report";
  EXPECT_EQ(inode_->attributes.size, 0U);
  EXPECT_EQ(inode_->attributes.blocks, 0U);
}

TEST_F(FileTest, ADroppedFileGivesAllItsBlocks) {
  rig_.Write(inode_, 0, Pattern(1, 4 * kBlockSize));
  rig_.WriteBackAll(inode_);
  rig_.Write(inode_, 0, Pattern(2, kBlockSize));
  rig_.WriteBackAll(inode_);
  MutexLock lock(inode_->mutex);
  uint64_t blocks = 0;
  for (const DeviceRun& run : inode_->file->Drop({})) blocks += run.run.count.value;
  EXPECT_EQ(blocks, 5U) << "the overwritten block too";
  EXPECT_EQ(inode_->attributes.blocks, 0U);
  EXPECT_FALSE(inode_->file->Uncommitted());
}

TEST_F(FileTest, AnAdoptedBufferIsTheFilesMemory) {
  const Buffer buffer = rig_.stripes().Allocate();
  const std::string data = Pattern(3, 300 * kKiB + 100);
  std::memcpy(buffer.data(), data.data(), data.size());
  WriteSupplies supplies;
  supplies.small.push_back(rig_.small().Allocate());
  ASSERT_TRUE(rig_.space().Reserve(&supplies.space, BlocksFor(ByteCount{data.size()})));
  MutexLock lock(inode_->mutex);
  File& file = *inode_->file;
  WritePlan plan(supplies);
  file.PlanAdoption(0, {buffer.data(), data.size()}, buffer, &plan);
  ASSERT_TRUE(plan.needs().empty());
  file.Apply(std::move(plan));
  EXPECT_EQ(file.dirty().Find(FileBlock{0})->buffer.data(), buffer.data());
  EXPECT_NE(file.dirty().Find(FileBlock{75})->buffer.data(), buffer.data()) << "the last block is not full";
  EXPECT_TRUE(file.dirty().IsDirty(FileBlock{0}, BlockCount{76}));
  EXPECT_TRUE(supplies.small.empty());
  EXPECT_EQ(file.DirtyBefore(FileBlock{76}).value, 0U);
}

TEST_F(FileTest, AnOlderWriteSetsNoChecksumsOfReplacedBlocks) {
  rig_.Write(inode_, 0, Pattern(1, 2 * kBlockSize));
  SpaceReservation reservation;
  ASSERT_TRUE(rig_.space().Reserve(&reservation, BlockCount{2}));
  const SpaceManager::Request request{
      .ino = inode_->id, .first = FileBlock{0}, .count = BlockCount{2}, .after = std::nullopt};
  const auto runs = rig_.space().Allocate(request, &reservation).value();
  const std::vector<uint32_t> checksums = {111, 222};
  PendingWrites writes;
  {
    MutexLock lock(inode_->mutex);
    rig_.write_back().StartAll(inode_, &writes);
    inode_->file->ReplaceBlocks(FileBlock{0}, runs, checksums);
  }
  rig_.write_back().Submit(&writes);  // computes the checksums of the older write
  MutexLock lock(inode_->mutex);
  inode_->file->WaitForAllWrites(lock);
  ChecksumSegments loaded;
  std::vector<uint64_t> missing;
  std::vector<uint32_t> found(2);
  ASSERT_TRUE(inode_->file->Checksums(FileBlock{0}, found, loaded, &missing).value());
  EXPECT_EQ(found, checksums);
}

// The commit for which the file asked leaves it out while it is being replaced.
TEST_F(FileTest, AReplacedFileNeedsAnEarlyCommitAgain) {
  constexpr uint64_t kMany = 33'000;
  MutexLock lock(inode_->mutex);
  File& file = *inode_->file;
  const auto needs_commit = [&] {
    for (uint64_t i = 0; i < kMany; ++i) {
      const DeviceRun run{DeviceId{0}, {DeviceBlock{2 * i}, BlockCount{1}}};
      file.MapUnwritten(FileBlock{2 * i}, {&run, 1});
    }
    static_cast<void>(file.Touch());
    return file.NeedsCommit();
  };
  EXPECT_TRUE(needs_commit());
  EXPECT_FALSE(file.NeedsCommit()) << "once";
  file.SetSize(0);
  static_cast<void>(file.BeginReplacement());
  file.Settle();
  EXPECT_TRUE(needs_commit());
}

TEST_F(FileTest, ApplyingAPlanThatLacksSomethingIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  WriteSupplies supplies;
  MutexLock lock(inode_->mutex);
  WritePlan plan(supplies);
  inode_->file->PlanCopy(0, 10, nullptr, Staging::kSmall, &plan);
  EXPECT_DEATH(inode_->file->Apply(std::move(plan)), "assertion failed");
}

}  // namespace
}  // namespace weightfs

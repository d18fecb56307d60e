// SPDX-License-Identifier: Apache-2.0
#include "client/plan/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "client/lane.h"
#include "client/piece.h"
#include "common/units.h"
#include "tests/support/aligned_memory.h"
#include "tests/unit/client/fake_target.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;
using Kind = Step::Kind;
using testing::Each;
using testing::ElementsAre;

constexpr uint64_t kBlock = 4096;

class StepTest : public testing::Test {
 protected:
  // Returns the whole plan of an operation on these bytes of the file.
  std::vector<Step> Plan(Direction direction, uint64_t offset, uint64_t size, uint64_t block_size) {
    memory_ = std::make_unique<AlignedMemory>(size + kBlock);
    // Memory with the same alignment as the file's offset.
    const MemoryView view(memory_->bytes().subspan(offset % kBlock, size));
    const auto operation = MakeOperation(facts_, direction, view, offset);
    if (refused_) operation->RefuseDirect();
    std::vector<Step> steps;
    for (uint64_t next = 0; next < size; next += steps.back().size) {
      steps.push_back(PlanStep(*operation, next, size, {.block_size = block_size, .bounce_size = kMiB}));
      EXPECT_EQ(steps.back().at, next);
      EXPECT_GT(steps.back().size, 0U);
      if (steps.back().size == 0) break;
    }
    return steps;
  }
  static std::vector<Kind> KindsOf(const std::vector<Step>& steps) {
    std::vector<Kind> kinds;
    for (const Step& step : steps) kinds.push_back(step.kind);
    return kinds;
  }
  static bool IsDirect(const Step& step) { return step.kind == Kind::kDirect && step.descriptor >= 0; }

  TargetFacts facts_;
  bool refused_ = false;
  std::unique_ptr<AlignedMemory> memory_;
};

TEST_F(StepTest, WholeBlocksAreDirectAndPartsOfBlocksAreNot) {
  const auto steps = Plan(Direction::kRead, 100, 3 * kBlock, 1 << 20);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_FALSE(IsDirect(steps[0]));
  EXPECT_EQ(steps[0].size, kBlock - 100);
  EXPECT_TRUE(IsDirect(steps[1]));
  EXPECT_EQ(steps[1].size, 2 * kBlock);
  EXPECT_EQ(steps[1].offset, kBlock);
  EXPECT_FALSE(IsDirect(steps[2]));
  EXPECT_EQ(steps[2].size, 100U);
}

TEST_F(StepTest, TransfersEndAtMultiplesOfTheBlockSize) {
  const auto steps = Plan(Direction::kWrite, 3 * kBlock, 6 * kBlock, 4 * kBlock);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].size, kBlock);
  EXPECT_EQ(steps[1].size, 4 * kBlock);
  EXPECT_EQ(steps[2].size, kBlock);
}

TEST_F(StepTest, TransfersOfAFileOfPartsAreWholeBlocksOfTheFile) {
  facts_.shift = 160;
  for (const auto& step : Plan(Direction::kRead, kBlock - 160, 20 * kBlock, 4 * kBlock)) {
    EXPECT_TRUE(IsDirect(step)) << step.at;
    EXPECT_EQ(step.size % kBlock, 0U) << step.at;
  }
}

TEST_F(StepTest, ABlockSizeBelowTheDevicesBlockIsRaisedToIt) {
  EXPECT_EQ(Plan(Direction::kRead, 0, 3 * kBlock, 1).size(), 3U);
}

TEST_F(StepTest, RunsOfTheFileEndTransfers) {
  facts_.run = 2 * kBlock;
  EXPECT_EQ(Plan(Direction::kRead, 0, 5 * kBlock, 1 << 20).size(), 3U);
}

TEST_F(StepTest, AfterARefusedDirectTransferAllAreBuffered) {
  refused_ = true;
  for (const auto& step : Plan(Direction::kRead, 0, 5 * kBlock, 2 * kBlock)) EXPECT_FALSE(IsDirect(step));
}

TEST_F(StepTest, ByALeaseWholeBlocksAreTransferredAroundTheEnds) {
  facts_.leased = true;
  facts_.shift = 10 * kBlock;
  const auto steps = Plan(Direction::kRead, 100, 3 * kBlock, 1 << 20);
  ASSERT_EQ(steps.size(), 3U);
  EXPECT_EQ(steps[0].lead, 100U);
  EXPECT_EQ(steps[0].size, kBlock - 100);
  EXPECT_EQ(steps[0].transfer, kBlock);
  EXPECT_EQ(steps[0].offset, 10 * kBlock);
  EXPECT_EQ(steps[1].lead, 0U);
  EXPECT_EQ(steps[1].transfer, 2 * kBlock);
  EXPECT_EQ(steps[2].size, 100U);
  EXPECT_EQ(steps[2].transfer, kBlock);
  for (const auto& step : steps) EXPECT_EQ(step.descriptor, facts_.file.get());
}

TEST_F(StepTest, ByALeaseATransferThroughABounceBufferIncludesTheEnds) {
  facts_.leased = true;
  const auto written = Plan(Direction::kWrite, kBlock, 3 * kBlock - 5, 1 << 20);
  ASSERT_EQ(written.size(), 1U);
  EXPECT_EQ(written[0].size, 3 * kBlock - 5);
  EXPECT_EQ(written[0].transfer, 3 * kBlock);
  // Memory that O_DIRECT cannot use.
  facts_.alignment.memory = uint64_t{1} << 60;
  memory_.reset();
  const auto read = Plan(Direction::kRead, 100, 3 * kBlock, 1 << 20);
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].transfer, 4 * kBlock);
  facts_.is_memory = true;
  EXPECT_THAT(KindsOf(Plan(Direction::kRead, 100, 3 * kBlock, 1 << 20)),
              ElementsAre(Kind::kBounce, Kind::kDirect, Kind::kBounce));
}

TEST_F(StepTest, PartsOfBlocksAtTheEndsOfAWriteAreEdges) {
  EXPECT_THAT(KindsOf(Plan(Direction::kWrite, 100, 3 * kBlock, kMiB)),
              ElementsAre(Kind::kEdge, Kind::kDirect, Kind::kEdge));
  EXPECT_THAT(KindsOf(Plan(Direction::kRead, 100, 3 * kBlock, kMiB)), Each(Kind::kDirect));
  // A file without O_DIRECT has no edges.
  facts_.descriptor = -1;
  EXPECT_THAT(KindsOf(Plan(Direction::kWrite, 100, 3 * kBlock, kMiB)), Each(Kind::kDirect));
  facts_.leased = true;  // nothing is leased, so that all of it goes through the buffered descriptor
  EXPECT_THAT(KindsOf(Plan(Direction::kWrite, 100, 3 * kBlock, kMiB)), ElementsAre(Kind::kEdge));
}

TEST_F(StepTest, AHoleIsReadInStepsOfABoundedSize) {
  facts_.leased = true;
  facts_.descriptor = -1;
  const auto steps = Plan(Direction::kRead, 100, 2 * kLargestHole + 5, kMiB);
  EXPECT_THAT(KindsOf(steps), ElementsAre(Kind::kHole, Kind::kHole, Kind::kHole));
  EXPECT_EQ(steps[0].size, kLargestHole);
  EXPECT_EQ(steps[2].size, 5U);
}

TEST_F(StepTest, MemoryThatCannotBeTransferredPassesThroughABounceBuffer) {
  facts_.alignment.memory = uint64_t{1} << 60;
  const auto steps = Plan(Direction::kRead, 0, 3 * kMiB, 2 * kMiB);
  EXPECT_THAT(KindsOf(steps), ElementsAre(Kind::kBounce, Kind::kBounce, Kind::kBounce));
  EXPECT_EQ(steps[0].size, kMiB);  // of the buffer
  facts_ = {};
  facts_.checksums = true;  // a copy is sent
  EXPECT_THAT(KindsOf(Plan(Direction::kWrite, 0, kMiB, kMiB)), ElementsAre(Kind::kBounce));
  EXPECT_THAT(KindsOf(Plan(Direction::kRead, 0, kMiB, kMiB)), ElementsAre(Kind::kDirect));
}

class PreparedWriteTest : public StepTest {
 protected:
  // A piece with a bounce buffer, prepared for a write of these bytes.
  Bytes Prepare(const Bytes& bytes, uint64_t transfer) {
    Bytes source = bytes;
    Slice slice{.operation = MakeOperation(facts_, Direction::kWrite, MemoryView(std::span<std::byte>(source))),
                .end = source.size()};
    const auto pool = BufferPool::Create({.buffer_size = {kMiB}, .count = 1}).value();
    Piece piece;
    piece.slice = &slice;
    piece.size = source.size();
    piece.transfer = transfer;
    piece.bounce = pool->TryAllocate();
    piece.data = piece.bounce.data();
    std::memset(piece.data, 0x5a, transfer);
    PrepareWrite(piece);
    const auto sent = piece.blocks();
    return {sent.begin(), sent.end()};
  }
};

TEST_F(PreparedWriteTest, TheCopyIsFilledWithZerosToItsEnd) {
  const Bytes bytes = RandomBytes(20'000);
  const Bytes sent = Prepare(bytes, 5 * kBlock);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), sent.begin()));
  EXPECT_EQ(std::count(sent.begin() + 20'000, sent.end(), std::byte{0}), static_cast<long>(5 * kBlock - 20'000));
  EXPECT_TRUE(facts_.noted.empty());
}

TEST_F(PreparedWriteTest, TheTargetGetsTheBytesThatAreSent) {
  facts_.checksums = true;
  const Bytes sent = Prepare(RandomBytes(20'000), 5 * kBlock);
  Bytes noted;
  for (const auto& [offset, bytes] : facts_.noted) {
    EXPECT_EQ(offset, noted.size());
    noted.insert(noted.end(), bytes.begin(), bytes.end());
  }
  EXPECT_EQ(noted, sent);
}

TEST_F(StepTest, AnErrorNamesTheTransferAndTheFilesEnd) {
  Bytes bytes(50);
  const auto failed = MakeOperation(facts_, Direction::kWrite, MemoryView(std::span<std::byte>(bytes)), 80);
  FailAt(*failed, 90, {ErrorCode::kNoSpace});
  EXPECT_FALSE(failed->Complete());
  EXPECT_EQ(failed->error()->error_number(), ENOSPC);
  EXPECT_EQ(failed->error()->offset, 90U);
  EXPECT_EQ(failed->error()->what,
            "write of 50 bytes at offset 80 of the-file failed at offset 90: No space left on device");
  // The kernel's error for a damaged sector of a disk.
  const auto damaged = MakeOperation(facts_, Direction::kRead, MemoryView(std::span<std::byte>(bytes)), 0);
  FailAt(*damaged, 10, Error{ErrorCode{ENODATA}});
  EXPECT_FALSE(damaged->Complete());
  EXPECT_EQ(damaged->error()->error_number(), EIO);
  EXPECT_EQ(damaged->error()->what,
            "read of 50 bytes at offset 0 of the-file failed at offset 10: Input/output error");
  const auto short_read = MakeOperation(facts_, Direction::kRead, MemoryView(std::span<std::byte>(bytes)), 80);
  FailAt(*short_read, 100, {kEndOfFile});
  EXPECT_FALSE(short_read->Complete());
  EXPECT_EQ(short_read->error()->error_number(), ENODATA);
  EXPECT_EQ(short_read->error()->what, "read of 50 bytes at offset 80 of the-file: only 20 bytes there");
}

}  // namespace
}  // namespace weightfs::client

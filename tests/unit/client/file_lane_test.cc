// SPDX-License-Identifier: Apache-2.0
#include "client/file_lane.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "client/piece.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/fake_target.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

constexpr uint64_t kBlock = 4096;

class FileLaneTest : public KernelHooksTest {
 protected:
  FileLaneTest() { facts_.Fill(content_); }

  // Starts a read of the block with this number.
  Piece& Start(uint64_t number, bool direct = true) {
    Slice& slice = slices_.emplace_back();
    bytes_.emplace_back(kBlock);
    slice.operation =
        MakeOperation(facts_, Direction::kRead, MemoryView(std::span<std::byte>(bytes_.back())), number * kBlock);
    Piece& piece = pieces_.emplace_back();
    piece.slice = &slice;
    piece.size = piece.transfer = kBlock;
    piece.offset = number * kBlock;
    piece.descriptor = direct ? facts_.file.get() : -1;
    piece.data = bytes_.back().data();
    lane_->Start(piece);
    return piece;
  }
  // Waits for the next piece that ends.
  Lane::Ended Next() {
    for (;;) {
      if (auto ended = lane_->Next()) return *std::move(ended);
      if (lane_->TransferBuffered()) continue;
      lane_->Submit();
      if (lane_->ended() == 0) lane_->Reap(1, std::nullopt);
    }
  }
  void ExpectRead(const Piece& piece) {
    const auto begin = content_.begin() + static_cast<long>(piece.offset);
    EXPECT_TRUE(std::equal(piece.data, piece.data + kBlock, begin));
  }

  const Bytes content_ = RandomBytes(8 * kBlock);
  TargetFacts facts_;
  std::list<Slice> slices_;
  std::list<Bytes> bytes_;
  std::list<Piece> pieces_;
  const std::unique_ptr<FileLane> lane_ = FileLane::Create({.queue_depth = 4}).value();
};

TEST_F(FileLaneTest, PiecesEndWithTheirBytes) {
  const Piece& direct = Start(2);
  const Piece& buffered = Start(3, false);
  EXPECT_EQ(lane_->queued(), 1U);
  EXPECT_EQ(lane_->buffered(), 1U);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(Next().error.has_value());
  ExpectRead(direct);
  ExpectRead(buffered);
  EXPECT_TRUE(lane_->idle());
}

TEST_F(FileLaneTest, RefusedDirectTransfersUseTheBufferedDescriptor) {
  OnEvent([](KernelEvent& event) { event.result = -EINVAL; });
  const Piece& piece = Start(1);
  EXPECT_FALSE(Next().error.has_value());
  ExpectRead(piece);
  EXPECT_TRUE(piece.operation().direct_refused());
}

TEST_F(FileLaneTest, AShortTransferThatMakesNoProgressIsCompletedByTheBufferedDescriptor) {
  OnEvent([](KernelEvent& event) { event.result = std::min<int64_t>(event.result, 100); });
  const Piece& piece = Start(1);
  EXPECT_FALSE(Next().error.has_value());
  ExpectRead(piece);
  EXPECT_FALSE(piece.operation().direct_refused());
}

TEST_F(FileLaneTest, AReadPastTheEndOfTheFileEndsWithErrnoZero) {
  Start(8);
  const auto ended = Next();
  ASSERT_TRUE(ended.error.has_value());
  EXPECT_EQ(ended.error->error_number(), 0);
}

TEST_F(FileLaneTest, OtherErrorsOfTheKernelEndThePiece) {
  OnEvent([](KernelEvent& event) { event.result = -ENODEV; });
  const Piece& piece = Start(1);
  const auto ended = Next();
  EXPECT_EQ(ended.piece, &piece);
  EXPECT_EQ(ended.error.value().error_number(), ENODEV);
}

TEST_F(FileLaneTest, ALeaseRetriesEagainAndNeverUsesTheBufferedDescriptor) {
  facts_.leased = true;
  int answers = 0;
  OnEvent([&](KernelEvent& event) {
    if (++answers < 3) event.result = -EAGAIN;
  });
  const Piece& retried = Start(1);
  EXPECT_FALSE(Next().error.has_value());
  EXPECT_EQ(answers, 3);
  ExpectRead(retried);
  OnEvent([&](KernelEvent& event) { event.result = -EINVAL; });
  Start(2);
  EXPECT_EQ(Next().error.value().error_number(), EINVAL);
}

TEST_F(FileLaneTest, PiecesOfAStoppedOperationAreWithdrawn) {
  OnSubmit([](Controls) -> long {
    ADD_FAILURE() << "a withdrawn transfer reached the kernel";
    return -EINVAL;
  });
  for (const bool direct : {true, false}) {
    const Piece& piece = Start(1, direct);
    piece.operation().Cancel();
    const auto ended = Next();
    EXPECT_EQ(ended.piece, &piece);
    EXPECT_TRUE(ended.withdrawn);
  }
  EXPECT_TRUE(lane_->idle());
}

TEST_F(FileLaneTest, ABatchEndsBeforeTheNextBegins) {
  for (uint64_t i = 0; i < 6; ++i) Start(i);
  lane_->Submit();
  EXPECT_EQ(lane_->in_kernel(), 4U);
  size_t ended = 0;
  while (ended < 3) {
    lane_->Reap(1, std::nullopt);
    for (; lane_->in_kernel() > 0 && lane_->Next(); ++ended) {
    }
    if (lane_->in_kernel() == 0) break;
    lane_->Submit();
    EXPECT_EQ(lane_->queued(), 2U);
  }
  while (lane_->in_kernel() > 0) lane_->Reap(1, std::nullopt);
  lane_->Submit();
  EXPECT_EQ(lane_->queued(), lane_->ended() > 0 ? 2U : 0U) << "a new batch begins when the last one is handled";
  while (!lane_->idle()) Next();
}

}  // namespace
}  // namespace weightfs::client

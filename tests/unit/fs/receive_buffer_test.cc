// SPDX-License-Identifier: Apache-2.0
#include "fs/receive_buffer.h"

#include <gtest/gtest.h>

#include <thread>

namespace weightfs {
namespace {

std::unique_ptr<ReceiveBuffers> Buffers(size_t shared) {
  return ReceiveBuffers::Create(
             {.payload = ByteCount{64 * kKiB}, .shared_memory = ByteCount{shared * 64 * kKiB}, .receivers = 1})
      .value();
}

std::span<const std::byte> PayloadOf(std::span<std::byte> memory) { return memory.subspan(kWriteHeader); }

TEST(ReceiveBuffer, PayloadBeginsOnAPage) {
  const auto buffers = Buffers(2);
  ReceiveBuffer receiver(*buffers);
  const auto memory = receiver.Prepare();
  EXPECT_EQ(memory.size(), kWriteHeader + 64 * kKiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(PayloadOf(memory).data()) % kBlockSize, 0U);
}

TEST(ReceiveBuffer, ReusesMemoryThatNobodyClaimed) {
  const auto buffers = Buffers(2);
  ReceiveBuffer receiver(*buffers);
  const auto* first = receiver.Prepare().data();
  EXPECT_EQ(receiver.Prepare().data(), first);
  EXPECT_EQ(buffers->shared().in_use(), 1U);
}

TEST(ReceiveBuffer, ClaimedMemoryIsTheClaimersAlone) {
  const auto buffers = Buffers(2);
  ReceiveBuffer receiver(*buffers);
  const auto payload = PayloadOf(receiver.Prepare());
  Buffer claimed = ReceiveBuffer::Claim(payload, 0);
  ASSERT_TRUE(claimed);
  EXPECT_EQ(claimed.data(), payload.data());
  EXPECT_NE(receiver.Prepare().data() + kWriteHeader, claimed.data());
  claimed = Buffer();
  EXPECT_EQ(buffers->shared().in_use(), 1U) << "given back with the last reference";
}

TEST(ReceiveBuffer, OnlyTheWholePayloadOfTheOwnThreadCanBeClaimed) {
  const auto buffers = Buffers(2);
  ReceiveBuffer receiver(*buffers);
  const auto payload = PayloadOf(receiver.Prepare());
  EXPECT_FALSE(ReceiveBuffer::Claim(payload.subspan(1), 0));
  std::thread([&] { EXPECT_FALSE(ReceiveBuffer::Claim(payload, 0)); }).join();
  EXPECT_TRUE(ReceiveBuffer::Claim(payload, 0));
  EXPECT_FALSE(ReceiveBuffer::Claim(payload, 0)) << "a second time";
}

TEST(ReceiveBuffer, GoesOnReceivingWhenEveryBufferIsKept) {
  const auto buffers = Buffers(1);
  ReceiveBuffer receiver(*buffers);
  const Buffer kept = ReceiveBuffer::Claim(PayloadOf(receiver.Prepare()), 0);
  ASSERT_TRUE(kept);
  const auto memory = receiver.Prepare();
  ASSERT_EQ(memory.size(), kWriteHeader + 64 * kKiB);
  EXPECT_FALSE(ReceiveBuffer::Claim(PayloadOf(memory), 0)) << "the receiver's last memory is never given away";
}

TEST(ReceiveBuffer, LearnsWhereTheBlocksOfAnUnalignedStreamLie) {
  const auto buffers = Buffers(2);
  ReceiveBuffer receiver(*buffers);
  const auto first = PayloadOf(receiver.Prepare());
  EXPECT_TRUE(ReceiveBuffer::Claim(first.first(kBlockSize - 16), 0)) << "the first piece begins on a block";
  const auto second = PayloadOf(receiver.Prepare());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data()) % kBlockSize, kBlockSize - 16);
  EXPECT_FALSE(ReceiveBuffer::Claim(second, kBlockSize)) << "another place inside its block than its memory has";
  EXPECT_TRUE(ReceiveBuffer::Claim(PayloadOf(receiver.Prepare()), 0)) << "what was learnt last";
}

}  // namespace
}  // namespace weightfs

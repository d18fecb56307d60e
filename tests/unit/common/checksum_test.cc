// SPDX-License-Identifier: Apache-2.0
#include "common/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common/units.h"

namespace weightfs {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// The known answers of RFC 3720, appendix B.4.
TEST(Crc32cTest, MatchesTheKnownAnswers) {
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283U);
  std::vector<std::byte> bytes(32);
  EXPECT_EQ(Crc32c(bytes), 0x8A9136AAU);
  std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
  EXPECT_EQ(Crc32c(bytes), 0x62A8AB43U);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(bytes), 0x46DD794EU);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(Crc32c(bytes), 0x113FDB5CU);
}

TEST(Crc32cTest, OfNothingIsZero) { EXPECT_EQ(Crc32c({}), 0U); }

// Computed bit by bit from the polynomial, independently of the library.
TEST(Crc32cTest, MatchesADefinitionAtEveryLengthAndAlignment) {
  std::vector<std::byte> bytes(300);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 13);
  for (size_t start = 0; start < 16; ++start) {
    for (size_t size = 0; size + start <= bytes.size(); size += 11) {
      const auto part = std::span(bytes).subspan(start, size);
      uint32_t crc = ~0U;
      for (const auto byte : part) {
        crc ^= static_cast<uint32_t>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78U : crc >> 1;
      }
      EXPECT_EQ(Crc32c(part), ~crc) << start << "+" << size;
    }
  }
}

TEST(Crc32cTest, ExtendingEqualsTheWhole) {
  const auto whole = Bytes("checksums may be taken in pieces");
  for (size_t cut = 0; cut <= whole.size(); ++cut) {
    EXPECT_EQ(Crc32cExtend(Crc32c(whole.first(cut)), whole.subspan(cut)), Crc32c(whole));
  }
}

TEST(Crc32cTest, PartsContributeInAnyOrder) {
  std::vector<std::byte> whole(70'001);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::byte>(i * 7 + i / 13);
  const std::vector<std::byte> zeros(whole.size());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{2}, size_t{4096}, size_t{65'537}, whole.size()}) {
    EXPECT_EQ(Crc32cOfZeros(size), Crc32c(std::span(zeros).first(size))) << size;
    const auto all = std::span(whole).first(size);
    for (const size_t step : {size_t{1000}, size_t{4096}, size_t{66'000}}) {
      uint32_t forwards = Crc32cOfZeros(size), backwards = forwards;
      for (size_t at = 0; at < size; at += step) {
        const auto part = all.subspan(at, std::min(step, size - at));
        forwards ^= Crc32cContribution(part, size - at - part.size());
      }
      for (size_t end = size; end > 0;) {
        const size_t at = (end - 1) / step * step;
        backwards ^= Crc32cContribution(all.subspan(at, end - at), size - end);
        end = at;
      }
      EXPECT_EQ(forwards, Crc32c(all)) << size << " by " << step;
      EXPECT_EQ(backwards, Crc32c(all)) << size << " by " << step;
    }
  }
}

TEST(Crc32cTest, BlocksHaveOneChecksumEach) {
  std::vector<std::byte> blocks(3 * kBlockSize);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i / 100);
  std::vector<uint32_t> sums(4, 42);
  Crc32cBlocks(blocks, sums.data());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(sums[i], Crc32c(std::span(blocks).subspan(i * kBlockSize, kBlockSize)));
  EXPECT_EQ(sums[3], 42U) << "one more than there are blocks";
}

TEST(ReadVerifiedTest, ReadsAgainUntilTheChecksumMatches) {
  const uint32_t expected = 42;
  const Result<uint32_t> differing = expected + 1, failed = ErrorCode::kIo;
  const auto read = [&](std::vector<Result<uint32_t>> results) {
    size_t reads = 0;
    const ReadOutcome outcome = ReadVerified(expected, [&] { return results.at(reads++); });
    return std::pair(outcome, reads);
  };
  EXPECT_EQ(read({expected}), std::pair(ReadOutcome::kIntact, size_t{1}));
  EXPECT_EQ(read({failed, differing, differing, expected}), std::pair(ReadOutcome::kIntact, size_t{4}));
  EXPECT_EQ(read({failed, failed, differing, failed}), std::pair(ReadOutcome::kMismatch, size_t{4}));
  EXPECT_EQ(read({failed, failed, failed, failed}), std::pair(ReadOutcome::kUnreadable, size_t{4}));
}

TEST(ReadAttemptsTest, TheLastOneIsKnownBeforeItEnds) {
  ReadAttempts attempts;
  for (unsigned i = 1; i < ReadAttempts::kMost; ++i) {
    EXPECT_FALSE(attempts.last());
    EXPECT_TRUE(attempts.ReadAgain());
  }
  EXPECT_TRUE(attempts.last());
  EXPECT_FALSE(attempts.ReadAgain());
}

TEST(ZipCrc32Test, MatchesTheKnownAnswer) {
  EXPECT_EQ(ZipCrc32(Bytes("123456789")), 0xCBF43926U);
  EXPECT_EQ(ZipCrc32({}), 0U);
}

}  // namespace
}  // namespace weightfs

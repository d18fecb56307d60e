// SPDX-License-Identifier: Apache-2.0
#include "common/bytes.h"

#include <gtest/gtest.h>

#include <array>
#include <tuple>

namespace weightfs {
namespace {

TEST(DecoderTest, ReadsWhatWasAppended) {
  std::string bytes;
  AppendLittle<uint16_t>(bytes, 0x0102);
  AppendBig64(bytes, 0x0102030405060708);
  AppendLittle<int64_t>(bytes, -5);
  bytes += "tail";
  EXPECT_EQ(bytes[0], 2) << "little-endian";
  EXPECT_EQ(bytes[2], 1) << "big-endian";
  Decoder decoder(bytes);
  EXPECT_EQ(decoder.Little<uint16_t>(), 0x0102);
  EXPECT_EQ(decoder.Big64(), 0x0102030405060708U);
  EXPECT_EQ(decoder.Little<int64_t>(), -5);
  EXPECT_FALSE(decoder.Done()) << "bytes are left";
  EXPECT_EQ(decoder.rest(), "tail");
  EXPECT_EQ(decoder.Bytes(4), "tail");
  EXPECT_TRUE(decoder.Done());
}

TEST(DecoderTest, FieldsAreInTheOrderOfTheCall) {
  const std::array<uint8_t, 2> raw{7, 8};
  std::string bytes;
  Encoder encoder(bytes);
  encoder.Fields(uint8_t{1}, uint16_t{2}, raw);
  encoder.FieldAs<uint8_t>(300);
  EXPECT_EQ(bytes, std::string("\1\2\0\7\10\54", 6));
  Decoder decoder(bytes);
  uint8_t one = 0;
  uint16_t two = 0;
  std::array<uint8_t, 2> read{};
  uint64_t last = 0;
  decoder.Fields(one, two, read);
  decoder.FieldAs<uint8_t>(last);
  EXPECT_TRUE(decoder.Done());
  EXPECT_EQ(std::tuple(one, two, read, last), std::tuple(1, 2, raw, 300U % 256));
}

TEST(DecoderTest, NeverReadsPastTheEndAndStaysFailed) {
  for (size_t size = 0; size < 8; ++size) {
    const std::string bytes(size, 'x');
    Decoder decoder(bytes);
    EXPECT_EQ(decoder.Little<uint64_t>(), 0U);
    EXPECT_FALSE(decoder.ok());
    decoder.Bytes(size);  // would fit by itself
    EXPECT_FALSE(decoder.ok());
    EXPECT_FALSE(decoder.Done());
  }
}

TEST(DecoderTest, RefusesALengthLargerThanTheInput) {
  Decoder decoder("abc");
  EXPECT_TRUE(decoder.Bytes(~size_t{0}).empty());
  EXPECT_FALSE(decoder.ok());
}

TEST(DecoderTest, NothingIsDoneAtOnce) {
  Decoder decoder("");
  EXPECT_TRUE(decoder.Done());
  EXPECT_TRUE(decoder.Bytes(0).empty());
  EXPECT_TRUE(decoder.Done());
}

TEST(BigEndianTest, ByteOrderIsNumericOrder) {
  std::string previous;
  for (const uint64_t value : {0ULL, 1ULL, 255ULL, 256ULL, 65'536ULL, 1ULL << 40, ~0ULL}) {
    std::string bytes;
    AppendBig64(bytes, value);
    EXPECT_LT(previous, bytes) << value;
    previous = bytes;
  }
}

}  // namespace
}  // namespace weightfs

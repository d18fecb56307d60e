// SPDX-License-Identifier: Apache-2.0
#include "common/units.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "common/result.h"

namespace weightfs {
namespace {

template <typename A, typename B>
concept Addable = requires(A a, B b) {
  a + b;
};

// Different quantities do not mix.
static_assert(Addable<ByteOffset, ByteCount>);
static_assert(!Addable<ByteOffset, ByteOffset>);
static_assert(!Addable<ByteOffset, BlockCount>);
static_assert(!Addable<ByteCount, BlockCount>);
static_assert(!std::is_convertible_v<uint64_t, ByteCount>);
static_assert(!std::is_convertible_v<FileBlock, DeviceBlock>);

TEST(UnitsTest, PositionsDifferByDistances) {
  const ByteOffset a{10};
  EXPECT_EQ(a + ByteCount{5}, ByteOffset{15});
  EXPECT_EQ((a + ByteCount{5}) - a, ByteCount{5});
  EXPECT_LT(a, a + ByteCount{1});
}

TEST(UnitsTest, BlocksAndBytesConvert) {
  EXPECT_EQ(ToBytes(BlockCount{2}), ByteCount{8192});
  EXPECT_EQ(ToBytes(DeviceBlock{3}), ByteOffset{12288});
  EXPECT_EQ(BlocksFor(ByteCount{0}), BlockCount{0});
  EXPECT_EQ(BlocksFor(ByteCount{1}), BlockCount{1});
  EXPECT_EQ(BlocksFor(ByteCount{4096}), BlockCount{1});
  EXPECT_EQ(BlocksFor(ByteCount{4097}), BlockCount{2});
}

TEST(UnitsTest, RoundingGoesToMultiples) {
  EXPECT_EQ(RoundUp(0, 512), 0U);
  EXPECT_EQ(RoundUp(1, 512), 512U);
  EXPECT_EQ(RoundUp(512, 512), 512U);
  EXPECT_EQ(RoundDown(1023, 512), 512U);
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::kInvalid, "odd"};
  return value / 2;
}

Result<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Result<void> CheckEven(int value) {
  RETURN_IF_ERROR(Half(value));
  return {};
}

TEST(ResultTest, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).error().what, "odd");
  EXPECT_TRUE(CheckEven(4).has_value());
  EXPECT_EQ(CheckEven(3).error().code, ErrorCode::kInvalid);
}

TEST(ResultTest, TextNamesTheCode) {
  EXPECT_EQ(ToString(Error{ErrorCode::kBusy}), "busy");
  EXPECT_EQ(ToString(Error{ErrorCode::kBusy, "/dev/x: locked"}), "/dev/x: locked (busy)");
}

}  // namespace
}  // namespace weightfs

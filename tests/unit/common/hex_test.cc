// SPDX-License-Identifier: Apache-2.0
#include "common/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace weightfs {
namespace {

using std::string_view_literals::operator""sv;

TEST(HexTest, TwoDigitsAByte) {
  EXPECT_EQ(ToHex(""sv), "");
  EXPECT_EQ(ToHex("\x00\x0f\x7f\x80\xff"sv), "000f7f80ff");
  EXPECT_EQ(ToHex(std::array<uint8_t, 3>{1, 0xAB, 0xF0}), "01abf0");
}

}  // namespace
}  // namespace weightfs

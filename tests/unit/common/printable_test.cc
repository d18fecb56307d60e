// SPDX-License-Identifier: Apache-2.0
#include "common/printable.h"

#include <gtest/gtest.h>

namespace weightfs {
namespace {

TEST(Printable, TextStaysAsItIs) {
  for (const std::string text : {"", "model.safetensors", "größe/重み/🙂", "a b\\c 'd' \"e\""}) {
    EXPECT_EQ(Printable(text), text);
  }
}

TEST(Printable, ControlCharactersAreWrittenAsNumbers) {
  EXPECT_EQ(Printable("a\nb\r\tc"), "a\\x0ab\\x0d\\x09c");
  EXPECT_EQ(Printable("\x1b[2J\x7f"), "\\x1b[2J\\x7f");
  EXPECT_EQ(Printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\u009b31m"), "\\xc2\\x9b31m") << "a control sequence in one character";
}

TEST(Printable, CharactersThatReorderOrBreakLinesAreWrittenAsNumbers) {
  EXPECT_EQ(Printable("a\u202eb"), "a\\xe2\\x80\\xaeb");
  EXPECT_EQ(Printable("a\u2066b\u2028c"), "a\\xe2\\x81\\xa6b\\xe2\\x80\\xa8c");
}

TEST(Printable, BytesThatAreNotUtf8AreWrittenAsNumbers) {
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("a\xc3"), "a\\xc3") << "cut off";
  EXPECT_EQ(Printable("\xc3(x"), "\\xc3(x");
  EXPECT_EQ(Printable("\xc0\x8a"), "\\xc0\\x8a") << "a line break in a longer form than its shortest";
  EXPECT_EQ(Printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair of UTF-16";
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "behind the last character";
}

TEST(Printable, Utf8IsRecognized) {
  for (const char* text : {"", "a\n", "größe/重み/🙂"}) EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* text : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80"}) EXPECT_FALSE(IsUtf8(text)) << text;
}

}  // namespace
}  // namespace weightfs

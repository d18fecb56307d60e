// SPDX-License-Identifier: Apache-2.0
#include "common/shell_quote.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace weightfs {
namespace {

TEST(ShellQuoteTest, PlainWordsStayAsTheyAre) { EXPECT_EQ(ShellQuote("/srv/tensors-1.0_x"), "/srv/tensors-1.0_x"); }

TEST(ShellQuoteTest, OneLineForEveryName) {
  EXPECT_EQ(ShellQuote("/mnt/my tensors"), "'/mnt/my tensors'");
  EXPECT_EQ(ShellQuote("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuote(""), "''");
  EXPECT_EQ(ShellQuote("a\nb"), "$'a\\012b'");
}

TEST(ShellQuoteTest, AShellReadsTheWordBack) {
  for (const std::string word :
       {"a b", "$(true)", "`x`", "it's", "a\nb", "tab\there's \\ one", "*?[]{}~#!;&|<>\"", "\xc3\xa4"}) {
    std::FILE* shell = popen(("bash -c " + ShellQuote("printf %s " + ShellQuote(word))).c_str(), "r");
    ASSERT_NE(shell, nullptr);
    std::string out(64, '\0');
    out.resize(fread(out.data(), 1, out.size(), shell));
    EXPECT_EQ(pclose(shell), 0);
    EXPECT_EQ(out, word);
  }
}

}  // namespace
}  // namespace weightfs

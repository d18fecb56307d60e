// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

using std::chrono::seconds;

TEST(ProcessOutput, ReturnsTheOutputOfASuccessfulCommand) {
  EXPECT_EQ(ProcessOutput("echo a; echo b", seconds(60)).value(), "a\nb\n");
  EXPECT_EQ(ProcessOutput("echo a; exec >&-; exit 3", seconds(60)).error().what, "it exited with 3");
  EXPECT_EQ(ProcessOutput("exit 255", seconds(60)).error().what, "it exited with 255");
  EXPECT_EQ(ProcessOutput("echo a; kill -9 $$", seconds(60)).error().what, "signal 9 ended it");
}

TEST(ProcessOutput, TheTimeoutAlsoEndsACommandThatHasClosedItsOutput) {
  const auto start = std::chrono::steady_clock::now();
  const auto output = ProcessOutput("echo {}; exec >&-; sleep 1000", seconds(1));
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().what, "it was not done after 1 s");
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(100));
}

TEST(ProcessOutput, AnInterruptionAlsoEndsACommandThatHasClosedItsOutput) {
  const UserFiles files;
  const auto closed = files.variables.at("HOME") + "/closed";
  const auto output = ProcessOutput("exec >&-; touch " + closed + "; sleep 1000", seconds(1000),
                                    [&] { return std::filesystem::exists(closed); });
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace weightfs::s3

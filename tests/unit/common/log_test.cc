// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/sink.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <string>

namespace weightfs {
namespace {

std::string Content(int file) {
  std::string text(1000, '\0');
  const ssize_t got = pread(file, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

class LogTest : public testing::Test {
 protected:
  void SetUp() override { before_ = spdlog::default_logger(); }
  void TearDown() override { spdlog::set_default_logger(before_); }
  std::shared_ptr<spdlog::logger> before_;
};

TEST_F(LogTest, AMessageIsOneLineWhateverNamesAreInIt) {
  LogToStderr(spdlog::level::info);
  LimitStderr(spdlog::level::off);
  const int file = memfd_create("log", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  LogToFile(UniqueFd(dup(file)));
  spdlog::warn("inode 5: its entry '{}' leads nowhere", "a\nroot::0:0::/:/bin/sh\n\x1b[2J\xff");
  const std::string text = Content(file);
  EXPECT_TRUE(
      text.ends_with(" warning inode 5: its entry 'a\\x0aroot::0:0::/:/bin/sh\\x0a\\x1b[2J\\xff' leads nowhere\n"))
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  close(file);
}

TEST_F(LogTest, LinesComeInTheirOrder) {
  LogToStderr(spdlog::level::info);
  LimitStderr(spdlog::level::off);
  const int file = memfd_create("log", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  LogToFile(UniqueFd(dup(file)));
  spdlog::info("first");
  spdlog::debug("left out");
  spdlog::error("second");
  const std::string text = Content(file);
  EXPECT_NE(text.find(" info first\n"), std::string::npos) << text;
  EXPECT_LT(text.find("first"), text.find(" error second\n")) << text;
  EXPECT_EQ(text.find("left out"), std::string::npos) << text;
  close(file);
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/sink.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
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

TEST_F(LogTest, TheFileBeginsWithWhatWasKeptForIt) {
  LogToStderr(spdlog::level::info);
  LimitStderr(spdlog::level::off);
  spdlog::info("lost");
  KeepForFile();
  spdlog::info("kept");
  const UniqueFd file(memfd_create("log", MFD_CLOEXEC));
  LogToFile(UniqueFd(dup(file.get())));
  spdlog::info("later");
  const std::string text = Content(file.get());
  EXPECT_EQ(text.find("lost"), std::string::npos) << text;
  EXPECT_LT(text.find(" info kept\n"), text.find(" info later\n")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST_F(LogTest, ContinuesInAnotherFile) {
  LogToStderr(spdlog::level::info);
  LimitStderr(spdlog::level::off);
  const UniqueFd first(memfd_create("first", MFD_CLOEXEC)), second(memfd_create("second", MFD_CLOEXEC));
  LogToFile(UniqueFd(dup(first.get())));
  spdlog::info("before");
  LogToFile(UniqueFd(dup(second.get())));
  spdlog::info("after");
  EXPECT_TRUE(Content(first.get()).ends_with(" info before\n"));
  EXPECT_TRUE(Content(second.get()).ends_with(" info after\n"));
  EXPECT_EQ(Content(second.get()).find("before"), std::string::npos);
}

// Standard error is a file, which is the journal's stream if $JOURNAL_STREAM names it.
class JournalTest : public LogTest {
 protected:
  void SetUp() override {
    LogTest::SetUp();
    ASSERT_GE(dup2(file_.get(), STDERR_FILENO), 0);
    struct stat status = {};
    ASSERT_EQ(fstat(file_.get(), &status), 0);
    stream_ = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  }
  void TearDown() override {
    unsetenv("JOURNAL_STREAM");
    dup2(stderr_.get(), STDERR_FILENO);
    LogTest::TearDown();
  }
  const UniqueFd stderr_{dup(STDERR_FILENO)};
  const UniqueFd file_{memfd_create("journal", MFD_CLOEXEC)};
  std::string stream_;
};

TEST_F(JournalTest, GetsPrioritiesAndNoLevels) {
  setenv("JOURNAL_STREAM", stream_.c_str(), 1);
  LogToStderr(spdlog::level::debug);
  spdlog::error("one");
  spdlog::warn("two\nlines");
  spdlog::info("three");
  spdlog::debug("four");
  spdlog::default_logger()->flush();
  EXPECT_EQ(Content(file_.get()), "<3>one\n<4>two\\x0alines\n<6>three\n<7>four\n");
}

TEST_F(JournalTest, AnotherStreamGetsTheLevel) {
  setenv("JOURNAL_STREAM", (stream_ + "0").c_str(), 1);
  LogToStderr(spdlog::level::info);
  spdlog::warn("one");
  spdlog::default_logger()->flush();
  EXPECT_EQ(Content(file_.get()), "weightfs: warning: one\n");
}

}  // namespace
}  // namespace weightfs

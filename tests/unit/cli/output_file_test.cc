// SPDX-License-Identifier: Apache-2.0
#include "cli/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/temporary_directory.h"

namespace weightfs::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(OutputFileTest, AnOldFileKeepsItsContentUntilThereIsANewOne) {
  const TemporaryDirectory scratch;
  const std::string path = scratch.path().string() + "/report.html";
  std::ofstream(path) << "the old report, and it is longer";
  {
    auto unused = OutputFile::Open(path);
    ASSERT_TRUE(unused.has_value());
    EXPECT_EQ(Contents(path), "the old report, and it is longer");
  }
  EXPECT_EQ(Contents(path), "the old report, and it is longer");
  auto file = OutputFile::Open(path);
  ASSERT_TRUE(file.has_value());
  ASSERT_TRUE(file->Write("new").has_value());
  EXPECT_EQ(Contents(path), "new\n");
}

TEST(OutputFileTest, ANewFileThatWasNotWrittenIsRemoved) {
  const TemporaryDirectory scratch;
  const std::string path = scratch.path().string() + "/report.html";
  {
    auto unused = OutputFile::Open(path);
    ASSERT_TRUE(unused.has_value());
    const OutputFile moved = std::move(*unused);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    auto file = OutputFile::Open(path);
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE(file->Write("new").has_value());
  }
  EXPECT_EQ(Contents(path), "new\n");
}

TEST(OutputFileTest, AnUnwritablePathIsNamedAtOnce) {
  const TemporaryDirectory scratch;
  for (const std::string& path : {scratch.path().string(), scratch.path().string() + "/missing/report.html"}) {
    const auto file = OutputFile::Open(path);
    ASSERT_FALSE(file.has_value());
    EXPECT_THAT(file.error().what, AllOf(HasSubstr(path), HasSubstr("cannot be written")));
  }
}

TEST(OutputFileTest, ADeviceWithoutSpaceIsAnError) {
  auto full = OutputFile::Open("/dev/full");
  ASSERT_TRUE(full.has_value());
  const auto written = full->Write("new");
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().code, ErrorCode::kNoSpace);
}

TEST(OutputFileTest, TwoNamesOfOneFileAreNoticed) {
  const TemporaryDirectory scratch;
  const std::string directory = scratch.path().string();
  const auto one = OutputFile::Open(directory + "/a"), two = OutputFile::Open(directory + "/./a"),
             other = OutputFile::Open(directory + "/b");
  EXPECT_TRUE(one->IsSameFile(*two));
  EXPECT_FALSE(one->IsSameFile(*other));
  EXPECT_TRUE(OutputFile::Open("-")->IsSameFile(*OutputFile::Open("-")));
  EXPECT_FALSE(one->IsSameFile(*OutputFile::Open("-")));
}

}  // namespace
}  // namespace weightfs::cli

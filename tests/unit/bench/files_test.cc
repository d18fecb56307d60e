// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/files.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/temporary_directory.h"

namespace weightfs::bench {
namespace {

// Comparing takes time, and it would be measured on one of two ways only.
TEST(BenchFiles, SmallFilesAreComparedOnlyWhereThatIsAsked) {
  const TemporaryDirectory scratch;
  const std::vector<std::byte> written(8192, std::byte{1}), expected(8192, std::byte{2});
  SmallFiles files{scratch.path().string() + "/files", 4, {written.data(), written.size()}, 4096};
  ASSERT_TRUE(CreateAll(files).has_value());
  files.content.data = expected.data();
  EXPECT_TRUE(ReadAll(files).has_value());
  files.check = true;
  const auto read = ReadAll(files);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
}

TEST(BenchFiles, WrongBytesEndARead) {
  const TemporaryDirectory scratch;
  std::vector<std::byte> bytes(8192, std::byte{1}), into(4096);
  FileJob job{scratch.path().string() + "/file", bytes.size(), 4096, {bytes.data(), bytes.size()}, into.data()};
  ASSERT_TRUE(WriteFile(job).has_value());
  job.check = true;
  EXPECT_TRUE(ReadFile(job).has_value());
  EXPECT_TRUE(MapFile(job).has_value());
  bytes[5000] = std::byte{2};
  for (const auto read : {ReadFile, MapFile}) {
    const auto found = read(job);
    ASSERT_FALSE(found.has_value());
    EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace weightfs::bench

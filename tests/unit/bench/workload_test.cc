// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/workload.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_directory.h"

namespace weightfs::bench {
namespace {

// Comparing takes time, and it would be measured on one of two ways only.
TEST(WorkloadTest, SmallFilesAreComparedOnlyWhereThatIsAsked) {
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

}  // namespace
}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/files.h"

#include <gtest/gtest.h>

#include <fstream>
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

TEST(BenchFiles, RandomWritesPutEachBlockWhereItBelongs) {
  const TemporaryDirectory scratch;
  constexpr uint64_t kBlock = 4096, kBlocks = 8;
  std::vector<std::byte> old(kBlocks * kBlock), bytes(kBlocks * kBlock), found(kBlocks * kBlock);
  for (size_t index = 0; index < bytes.size(); ++index) bytes[index] = static_cast<std::byte>(1 + index / kBlock);
  FileJob job{.path = scratch.path().string() + "/file", .size = old.size(), .call = kBlock};
  job.content = {old.data(), old.size()};
  ASSERT_TRUE(WriteFile(job).has_value());
  job.content = {bytes.data(), bytes.size()};
  job.seconds = 0.01;
  for (const bool sync : {true, false}) {
    job.sync = sync;
    const auto writes = WriteRandomly(job);
    ASSERT_TRUE(writes.has_value());
    EXPECT_GT(*writes, 0U);
  }
  std::ifstream(job.path, std::ios::binary)
      .read(reinterpret_cast<char*>(found.data()), static_cast<std::streamsize>(found.size()));
  uint64_t written = 0;
  for (size_t at = 0; at < found.size(); at += kBlock) {
    const std::vector<std::byte> block(found.begin() + at, found.begin() + at + kBlock);
    if (block == std::vector<std::byte>(kBlock)) continue;
    EXPECT_EQ(block, std::vector<std::byte>(kBlock, bytes[at])) << at;
    ++written;
  }
  EXPECT_GT(written, 0U);
}

}  // namespace
}  // namespace weightfs::bench

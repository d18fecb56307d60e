// SPDX-License-Identifier: Apache-2.0
#include "store/file/checksum_table.h"

#include <gtest/gtest.h>

#include <numeric>

#include "meta/records.h"
#include "tests/support/memory_kv_store.h"

namespace weightfs {
namespace {

constexpr InodeId kFile{5};

class ChecksumTableTest : public ::testing::Test {
 protected:
  std::vector<uint32_t> Numbers(size_t count, uint32_t first) {
    std::vector<uint32_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  void Store(uint64_t segment, const std::vector<uint32_t>& checksums) {
    KvBatch batch;
    batch.Put(keys::Checksums(kFile, segment), EncodeChecksums(checksums));
    ASSERT_TRUE(kv_.Write(batch));
  }
  // Loads what is missing and repeats the query, as the callers do.
  Result<std::vector<uint32_t>> Get(uint64_t first, size_t count) {
    std::vector<uint32_t> out(count);
    while (true) {
      std::vector<uint64_t> missing;
      ASSIGN_OR_RETURN(const bool found, table_.Get(FileBlock{first}, out, loaded_, &missing));
      if (found) return out;
      EXPECT_FALSE(missing.empty());
      loaded_.Load(kv_, kFile, missing);
    }
  }
  Result<void> Commit() {
    while (true) {
      KvBatch batch;
      std::vector<uint64_t> missing;
      ASSIGN_OR_RETURN(const bool complete, table_.AppendSealed(kFile, UINT64_MAX, loaded_, &missing, &batch));
      if (!complete) {
        EXPECT_TRUE(batch.empty());
        loaded_.Load(kv_, kFile, missing);
        continue;
      }
      RETURN_IF_ERROR(kv_.Write(batch));
      table_.FinishCommit();
      return {};
    }
  }

  MemoryKvStore kv_{std::make_shared<Journal>()};
  ChecksumTable table_;
  ChecksumSegments loaded_;
};

TEST_F(ChecksumTableTest, NamesTheSegmentsThatItLacks) {
  Store(0, Numbers(256, 0));
  Store(1, Numbers(256, 1000));
  std::vector<uint32_t> out(10);
  std::vector<uint64_t> missing;
  EXPECT_EQ(table_.Get(FileBlock{250}, out, loaded_, &missing).value(), false);
  EXPECT_EQ(missing, (std::vector<uint64_t>{0, 1}));
  loaded_.Load(kv_, kFile, missing);
  missing.clear();
  EXPECT_EQ(table_.Get(FileBlock{250}, out, loaded_, &missing).value(), true);
  EXPECT_EQ(out, (std::vector<uint32_t>{250, 251, 252, 253, 254, 255, 1000, 1001, 1002, 1003}));
}

TEST_F(ChecksumTableTest, TheNewestLayerAnswers) {
  Store(0, Numbers(256, 0));
  table_.Set(FileBlock{10}, Numbers(1, 500));
  table_.Seal(256 * kBlockSize);
  table_.Set(FileBlock{11}, Numbers(1, 600));
  EXPECT_EQ(Get(9, 4).value(), (std::vector<uint32_t>{9, 500, 600, 12}));
}

TEST_F(ChecksumTableTest, ACommitMergesASegmentWithTheCatalog) {
  Store(0, Numbers(256, 0));
  table_.Set(FileBlock{10}, Numbers(2, 500));
  table_.Seal(256 * kBlockSize);
  ASSERT_TRUE(Commit());
  const auto stored = DecodeChecksums(kv_.Get(keys::Checksums(kFile, 0)).value().value()).value();
  EXPECT_EQ(stored[9], 9U);
  EXPECT_EQ(stored[10], 500U);
  EXPECT_EQ(stored[11], 501U);
  EXPECT_EQ(stored[12], 12U);
}

TEST_F(ChecksumTableTest, SegmentsThatWereLoadedBeforeACommitAreNotUsedAfterIt) {
  Store(0, Numbers(256, 0));
  ASSERT_TRUE(Get(10, 1));
  table_.Set(FileBlock{10}, Numbers(1, 500));
  table_.Seal(256 * kBlockSize);
  ASSERT_TRUE(Commit());
  EXPECT_EQ(Get(10, 1).value()[0], 500U);
}

TEST_F(ChecksumTableTest, ASealLeavesOutWhatLiesBehindTheEnd) {
  table_.Set(FileBlock{0}, Numbers(600, 0));
  table_.Seal(256 * kBlockSize);
  ASSERT_TRUE(Commit());
  EXPECT_TRUE(kv_.Get(keys::Checksums(kFile, 0)).value());
  EXPECT_FALSE(kv_.Get(keys::Checksums(kFile, 1)).value());
}

TEST_F(ChecksumTableTest, AMissingOrDamagedSegmentIsAnError) {
  EXPECT_EQ(Get(0, 1).error().code, ErrorCode::kCorrupt);
  Store(1, Numbers(4, 0));
  EXPECT_TRUE(Get(256, 4));
  EXPECT_EQ(Get(256, 5).error().code, ErrorCode::kCorrupt) << "the segment is too short";
  KvBatch batch;
  batch.Put(keys::Checksums(kFile, 2), "garbage");
  ASSERT_TRUE(kv_.Write(batch));
  EXPECT_FALSE(Get(512, 1));
}

}  // namespace
}  // namespace weightfs

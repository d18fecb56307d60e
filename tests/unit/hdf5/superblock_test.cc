// SPDX-License-Identifier: Apache-2.0
// The superblock, and which flushes sync the file: those of programs, but not those of HDF5 while it opens a file.
#include "hdf5/superblock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hdf5/file.h"
#include "tests/unit/client/files.h"
#include "tests/unit/hdf5/sync_count.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;

// A superblock with offsets of 8 bytes.
Bytes MakeSuperblock(unsigned version, bool swmr = false) {
  Bytes bytes(version == 0 ? 96 : version == 1 ? 100 : 48);
  std::memcpy(bytes.data(), "\x89HDF\r\n\x1a\n", 8);
  bytes[8] = std::byte(version);
  bytes[version < 2 ? 13 : 9] = std::byte{8};
  bytes[11] = std::byte(swmr ? 5 : 1);
  return bytes;
}

TEST(SuperblockTest, HasASizeAndFlags) {
  for (const unsigned version : {0U, 1U, 2U, 3U}) {
    const Bytes bytes = MakeSuperblock(version, true);
    for (size_t size = 0; size <= bytes.size(); ++size) {
      const auto found = ParseSuperblock(std::span(bytes).first(size));
      ASSERT_EQ(found.has_value(), size >= 24) << version << ", " << size;
      EXPECT_EQ(found.value_or(Superblock{}).size, found ? bytes.size() : 0);
      EXPECT_EQ(found.value_or(Superblock{}).swmr, found && version == 3);
    }
  }
  EXPECT_FALSE(ParseSuperblock(RandomBytes(200)));
}

class FlushTest : public testing::Test {
 protected:
  void Open(bool create, Sync sync = Sync::kFlush) {
    auto file = File::Open(folder_ / "file", {.write = true, .create = create, .truncate = create}, {.sync = sync});
    ASSERT_TRUE(file.has_value()) << file.error().what;
    file_ = *std::move(file);
  }
  void Write(uint64_t offset, const Bytes& bytes, Content content = Content::kMetadata) {
    const auto written = file_->Write(content, offset, bytes);
    ASSERT_TRUE(written.has_value()) << written.error().what;
  }
  // The number of syncs of a durable flush.
  int Flush() {
    const int before = SyncCalls();
    EXPECT_TRUE(file_->Flush(true).has_value());
    return SyncCalls() - before;
  }

  client::Folder folder_;
  std::unique_ptr<File> file_;
};

TEST_F(FlushTest, TheSuperblockAloneIsNotSynced) {
  client::WriteFile(folder_ / "file", RandomBytes(1000));
  for (const unsigned version : {0U, 1U, 2U, 3U}) {
    Open(false);
    const Bytes superblock = MakeSuperblock(version);
    Write(0, superblock);
    EXPECT_EQ(Flush(), 0);
    Bytes found = client::ReadFile(folder_ / "file");
    found.resize(superblock.size());
    EXPECT_EQ(found, superblock) << "other programs see it";
    Write(superblock.size(), RandomBytes(500));
    Write(0, superblock);
    EXPECT_EQ(Flush(), 1) << "a program's flush";
    EXPECT_EQ(Flush(), 0) << "nothing has changed";
    Write(0, superblock);
    EXPECT_EQ(Flush(), 0);
    ASSERT_TRUE(file_->Truncate(superblock.size()).has_value());
    EXPECT_EQ(Flush(), 1);
  }
}

TEST_F(FlushTest, ANewFileIsSyncedWhenItIsFlushedAsAWhole) {
  for (const bool exists : {false, true}) {
    Open(true);
    Write(0, MakeSuperblock(2));
    EXPECT_EQ(Flush(), 0);
    Write(48, RandomBytes(100));
    EXPECT_EQ(Flush(), 0) << "the extension of the superblock";
    Write(4096, RandomBytes(100), Content::kRaw);
    EXPECT_EQ(Flush(), 0) << "a dataset";
    ASSERT_TRUE(file_->Truncate(4196).has_value());
    EXPECT_EQ(Flush(), 1) << exists;
    Write(5000, RandomBytes(100), Content::kRaw);
    EXPECT_EQ(Flush(), 1) << "a dataset of a file that can be read";
  }
}

TEST_F(FlushTest, EveryOtherChangeIsSynced) {
  client::WriteFile(folder_ / "file", RandomBytes(1000));
  Bytes longer = MakeSuperblock(3);
  longer.resize(49);
  const auto vector = [this](uint64_t offset, const Bytes& bytes) {
    const std::vector<File::WriteRequest> requests{{.offset = offset, .memory = bytes},
                                                   {.offset = offset + bytes.size(), .memory = bytes}};
    EXPECT_TRUE(file_->WriteMany(requests).has_value());
  };
  const std::vector<std::function<void()>> changes{
      [&] { Write(0, longer); },
      [&] { Write(0, MakeSuperblock(3), Content::kRaw); },
      [&] { Write(4096, RandomBytes(10)); },
      [&] { Write(48, RandomBytes(10)); },
      [&] { Write(4096, RandomBytes(10), Content::kRaw); },
      [&] { Write(4096, RandomBytes(300'000), Content::kRaw); },
      [&] { Write(4096, RandomBytes(40 << 20), Content::kRaw); },
      [&] { vector(8192, RandomBytes(10)); },
      [&] { vector(8192, RandomBytes(9 << 20)); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Open(false);
    changes[i]();
    EXPECT_EQ(Flush(), 1) << i;
  }
}

TEST_F(FlushTest, SwmrIsSyncedByTheProgram) {
  Open(true);
  Write(0, MakeSuperblock(3));
  EXPECT_EQ(Flush() + Flush(), 0);
  Write(48, RandomBytes(500));
  ASSERT_TRUE(file_->Truncate(548).has_value());
  EXPECT_EQ(Flush(), 1);
  Write(0, MakeSuperblock(3, true));
  EXPECT_EQ(Flush() + Flush(), 0) << "it starts SWMR";
  Write(548, RandomBytes(10));
  EXPECT_EQ(Flush(), 1);
  Write(1000, RandomBytes(10), Content::kRaw);
  EXPECT_EQ(Flush(), 1);
}

TEST_F(FlushTest, OneSettingSyncsAtTheClose) {
  for (const Sync sync : {Sync::kFlush, Sync::kClose}) {
    Open(true, sync);
    Write(4096, RandomBytes(10));
    ASSERT_TRUE(file_->Truncate(4106).has_value());
    const int before = SyncCalls();
    ASSERT_TRUE(file_->Close().has_value());
    EXPECT_EQ(SyncCalls() - before, sync == Sync::kClose ? 1 : 0);
  }
}

TEST_F(FlushTest, ACloseSyncsTheSuperblockThatWasWrittenAfterTheLastFlush) {
  for (const Sync sync : {Sync::kFlush, Sync::kClose}) {
    Open(true, sync);
    Write(4096, RandomBytes(10));
    ASSERT_TRUE(file_->Truncate(4106).has_value());
    EXPECT_EQ(Flush(), 1);
    Write(0, MakeSuperblock(3));
    EXPECT_EQ(Flush(), 0);
    const int before = SyncCalls();
    ASSERT_TRUE(file_->Close().has_value());
    EXPECT_EQ(SyncCalls() - before, sync == Sync::kClose ? 1 : 0);
    Open(false, sync);
    const int opened = SyncCalls();
    ASSERT_TRUE(file_->Close().has_value());
    EXPECT_EQ(SyncCalls(), opened) << "nothing has changed";
  }
}

}  // namespace
}  // namespace weightfs::hdf5

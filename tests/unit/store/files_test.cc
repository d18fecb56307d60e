// SPDX-License-Identifier: Apache-2.0
// The data path: data that is written, truncated, copied and read is unchanged, even with slow devices.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "meta/keys.h"
#include "tests/support/result_asserts.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

constexpr uint64_t kBlock = kBlockSize;

// Each gap between dirty ranges would otherwise take a stripe of its own, of which there are 12.
TEST(Files, AnUnalignedWriteBetweenManyDirtyRangesFitsIntoTheLeastMemory) {
  constexpr uint64_t kStep = 128 * kKiB, kRequest = 4 * kMiB;
  TestStore store({.device_size = ByteCount{512 * kMiB}, .store = {.memory = kLeastMemory}});
  const InodePtr inode = *store.Create("f");
  for (uint64_t at = 0; at < kRequest; at += kStep) {
    ASSERT_TRUE(store.WriteAt(inode, at + 32 * kKiB, std::string(kBlockSize, 'a')).has_value());
  }
  ASSERT_TRUE(store.WriteAt(inode, 1, std::string(kRequest - kBlockSize, 'b')).has_value());
  const std::string content = store.ReadAll(inode).value();
  EXPECT_EQ(content[0], '\0');
  EXPECT_EQ(content.substr(1, kRequest - kBlockSize), std::string(kRequest - kBlockSize, 'b'));
}

TEST(Files, ReadsWhatWasWrittenBeforeAndAfterSync) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(1, 3 * kMiB + 123);
  ASSERT_OK(store.WriteAt(file, 0, data));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(Files, UnalignedWritesInSequenceMakeOneFile) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(2, 5 * kMiB);
  for (size_t at = 0; at < data.size();) {  // As Python's buffered writer sends them.
    const size_t step = at == 0 ? 1048560 : std::min<size_t>(kMiB, data.size() - at);
    ASSERT_OK(store.WriteAt(file, at, std::string_view(data).substr(at, step)));
    at += step;
  }
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const auto extents = store->files().Extents(file, FileBlock{0}, 100).value();
  EXPECT_LE(extents.size(), 3U) << "a file written in one go lies in few extents";
  EXPECT_EQ(extents[0].start.value % 512, 0U) << "a large file begins on 2 MiB";
}

// Each write needs three of the twelve stripes that the least memory has, and some small buffers.
TEST(Files, ManyWritersAndReadersShareTheLeastMemory) {
  constexpr size_t kThreads = 12, kWrite = 4 * kMiB, kWrites = 6;
  TestStore store({.device_size = ByteCount{512 * kMiB}, .store = {.memory = kLeastMemory}});
  const std::string data = Pattern(3, kWrite * kWrites);
  std::vector<InodePtr> files;
  for (size_t t = 0; t < kThreads; ++t) files.push_back(store.Create("f" + std::to_string(t)).value());
  std::vector<std::thread> threads;
  for (const InodePtr& file : files) {
    threads.emplace_back([&store, &data, &file] {
      for (size_t at = 0; at < data.size(); at += kWrite) {
        ASSERT_OK(store.WriteAt(file, 100 + at, std::string_view(data).substr(at, kWrite)));
        ASSERT_OK(store.WriteAt(file, 60 * kMiB - at, std::string_view(data).substr(at, 200'000)));
      }
      EXPECT_TRUE(Must(store.ReadAt(file, 100, data.size())) == data);
    });
  }
  for (auto& thread : threads) thread.join();
}

// Written without a commit, truncated, written again: no stale checksums may remain.
TEST(Files, BlocksTruncatedBeforeACommitLeaveNoChecksums) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 5 * kMiB)));
  ASSERT_OK(store->files().Truncate(file, 0));
  ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 1000)));
  ASSERT_OK(store->Sync(file));
  const auto checksums = [&store] {
    size_t count = 0;
    for (const auto& [key, value] : store.kv().content()) count += key[0] == keys::kChecksums ? 1 : 0;
    return count;
  };
  EXPECT_EQ(checksums(), 1U);
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  store->CloseFile(file);
  EXPECT_EQ(checksums(), 0U);
}

TEST(Files, AWriteWithinTheFileEndsWhereTheFileDoes) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, std::string(5000, 'a')));
  const std::string page(kBlock, 'm');
  for (const uint64_t block : {0, 1, 2}) {
    store->files().Write(file, ByteOffset{block * kBlock}, AsBytes(page), {}, WriteReach::kWithinFile,
                 [](const Result<void>& accepted) { ASSERT_OK(accepted); });
  }
  EXPECT_TRUE(Must(store.ReadAll(file)) == std::string(5000, 'm'));
}

TEST(Files, LargeAndSmallWritesInSequenceLieTogether) {
  TestStore store;
  const auto buffers = std::move(BufferPool::Create({.buffer_size = ByteCount{kMiB}, .count = 16}).value());
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(4, 12 * kMiB + 777);
  // As torch.save sends them: a header, then a tensor in pieces of the maximum request size.
  constexpr size_t kSizes[] = {100, kMiB - kBlock, kMiB - kBlock, 250000, 64};
  for (size_t at = 0, turn = 0; at < data.size(); ++turn) {
    const size_t step = std::min(kSizes[turn % std::size(kSizes)], data.size() - at);
    Buffer holder;
    auto bytes = AsBytes(std::string_view(data).substr(at, step));
    if (step >= kMiB / 2) {
      holder = buffers->Allocate();
      std::byte* const place = holder.data() + at % kBlock;
      std::memcpy(place, bytes.data(), step);
      bytes = {place, step};
    }
    ASSERT_OK(store->files().Write(file, ByteOffset{at}, bytes, holder));
    at += step;
  }
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const auto extents = store->files().Extents(file, FileBlock{0}, 100).value();
  EXPECT_EQ(extents.size(), 1U);
}

TEST(Files, PartialOverwriteKeepsTheRestOfTheBlock) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(3, 64 * kKiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  for (const uint64_t at : {uint64_t{1}, kBlock - 1, 2 * kBlock + 7, 64 * kKiB - 3}) {
    const std::string patch = at == 64 * kKiB - 3 ? "xyzuvw" : "xy";
    ASSERT_OK(store.WriteAt(file, at, patch));
    data.resize(std::max(data.size(), at + patch.size()));
    data.replace(at, patch.size(), patch);
    EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  }
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(Files, OverwriteOfBlocksBeingWrittenKeepsBoth) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(4, 4 * kMiB);
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, data));  // Two stripes are submitted and do not complete.
  store.device().WaitForHeld(2);
  const std::string patch = Pattern(5, 10000);
  ASSERT_OK(store.WriteAt(file, 5000, patch));
  data.replace(5000, patch.size(), patch);
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  store.device().Release();
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

// Each change is seen although the read-ahead cache has the old bytes.
TEST(ReadAhead, AnAdoptedWriteIsSeen) {
  const auto pool = BufferPool::Create({.buffer_size = ByteCount{kMiB}, .count = 1, .name = "test"}).value();
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(1, 4 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const std::string change = Pattern(2, kMiB);
  {
    const Buffer buffer = pool->Allocate();
    std::memcpy(buffer.data(), change.data(), change.size());
    ASSERT_OK(store->files().Write(file, ByteOffset{0}, {buffer.data(), change.size()}, buffer));
  }
  data.replace(0, change.size(), change);
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->Sync(file));
}

TEST(ReadAhead, APunchedHoleIsSeen) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(1, 4 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->files().Fallocate(file, FallocateMode::kPunchHole, 64 * kKiB, 64 * kKiB));
  data.replace(64 * kKiB, 64 * kKiB, std::string(64 * kKiB, '\0'));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
}

TEST(ReadAhead, AWriteByALeaseIsSeen) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(1, 4 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const std::string change = Pattern(2, 64 * kKiB);
  ASSERT_OK(store.WriteDirect(file, 64 * kKiB, change, std::nullopt));
  data.replace(64 * kKiB, change.size(), change);
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
}

TEST(ReadAhead, AGrowthBehindTheEndIsSeen) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(1, 64 * kKiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store->files().Truncate(file, 128 * kKiB));
  data.resize(128 * kKiB, '\0');
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
}

TEST(Files, TruncationZeroesWhatALaterGrowthUncovers) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(6, 20000);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->files().Truncate(file, 5000));
  ASSERT_OK(store->files().Truncate(file, 15000));
  data.resize(5000);
  data.resize(15000, '\0');
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(Files, HolesReadAsZerosAndSeekFindsThem) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 10 * kMiB, "end"));
  EXPECT_EQ(store.SizeOf(file), 10 * kMiB + 3);
  EXPECT_TRUE(Must(store.ReadAt(file, 3 * kMiB, 100)) == std::string(100, '\0'));
  EXPECT_EQ(store->files().Seek(file, 0, SeekTarget::kData).value(), 10 * kMiB);
  EXPECT_EQ(store->files().Seek(file, 10 * kMiB, SeekTarget::kHole).value(), 10 * kMiB + 3);
  ASSERT_OK(store->Sync(file));
  EXPECT_EQ(store->files().Seek(file, 5, SeekTarget::kData).value(), 10 * kMiB);
  EXPECT_EQ(store->files().Seek(file, 5, SeekTarget::kHole).value(), 5U);
  EXPECT_EQ(store->files().Seek(file, 10 * kMiB + 3, SeekTarget::kData).error().code, ErrorCode::kNoData);
}

// Returns the next bytes of a stream, or "" if they cannot be read.
std::string ReadNext(TestStore& store, const InodePtr& file, uint64_t offset, ReadStream* stream) {
  std::promise<std::string> promise;
  auto part = promise.get_future();
  store->files().Read(file, ByteOffset{offset}, ByteCount{kMiB}, stream,
              [&](Result<ReadView> view) { promise.set_value(view ? ToText(*view) : std::string()); });
  return part.get();
}

TEST(Files, ReadersOfOneStreamShareTheDeviceReads) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(14, 16 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  const uint64_t before = store.device().counts().read.value;
  for (int reader = 0; reader < 4; ++reader) {
    ReadStream stream;
    std::string text;
    while (text.size() < data.size()) {
      const std::string piece = ReadNext(store, file, text.size(), &stream);
      ASSERT_FALSE(piece.empty());
      text += piece;
    }
    EXPECT_TRUE(text == data);
  }
  EXPECT_LE(store.device().counts().read.value - before, data.size() + 4 * kMiB);
}

TEST(Files, AWholeSmallFileIsReadWithoutAChunk) {
  TestStore store;
  const auto in_use_after_reading = [&](const char* name, uint64_t size, uint64_t asked) {
    const InodePtr file = store.Create(name).value();
    const std::string data = Pattern(size, size);
    EXPECT_TRUE(store.WriteAt(file, 0, data).has_value() && store->Sync(file).has_value());
    EXPECT_TRUE(store.ReadAt(file, 0, asked).value() == data.substr(0, asked));
    return store->statistics().buffer_in_use;
  };
  EXPECT_EQ(in_use_after_reading("whole", 128 * kKiB, 128 * kKiB), 0U);
  EXPECT_EQ(in_use_after_reading("part", 128 * kKiB, 4 * kKiB), 2 * kMiB) << "the rest is read ahead";
}

TEST(Files, ManyStreamsDoNotEvictEachOthersReadAhead) {
  constexpr size_t kStreams = 6, kSize = 24 * kMiB;  // larger than the memory for read-ahead, 24 MiB, can hold of each
  TestStore store({.device_size = ByteCount{256 * kMiB}, .store = {.memory = ByteCount{48 * kMiB}}});
  std::vector<InodePtr> files;
  for (size_t index = 0; index < kStreams; ++index) {
    files.push_back(store.Create(std::string(1, static_cast<char>('a' + index))).value());
    ASSERT_OK(store.WriteAt(files.back(), 0, Pattern(index, kSize)));
    ASSERT_OK(store->Sync(files.back()));
  }
  const uint64_t before = store.device().counts().read.value;
  std::array<ReadStream, kStreams> streams;
  for (uint64_t offset = 0; offset < kSize; offset += kMiB) {
    for (size_t index = 0; index < kStreams; ++index) {
      ASSERT_EQ(ReadNext(store, files[index], offset, &streams[index]).size(), kMiB);
    }
  }
  EXPECT_LE(store.device().counts().read.value - before, kStreams * kSize * 11 / 10);
}

TEST(Files, CopyRangeCopiesDataAndKeepsHoles) {
  TestStore store;
  const InodePtr from = store.Create("from").value(), to = store.Create("to").value();
  ASSERT_OK(store.WriteAt(from, 0, Pattern(15, 65536)));
  ASSERT_OK(store.WriteAt(from, 20 * kMiB, "tail"));
  const uint64_t size = store.SizeOf(from);
  EXPECT_EQ(store->files().CopyRange(from, 0, to, 0, UINT64_MAX >> 1).value(), size);
  EXPECT_TRUE(Must(store.ReadAll(to)) == Must(store.ReadAll(from)));
  EXPECT_EQ(store->files().Seek(to, 80000, SeekTarget::kData).value(), 20 * kMiB);
}

TEST(Files, ManyCopiesAtOnceOfFilesInMemoryEnd) {
  TestStore store;
  constexpr int kCopies = 24;  // more than a store of this memory has stripes
  std::vector<InodePtr> from, to;
  for (int i = 0; i < kCopies; ++i) {
    from.push_back(store.Create("from" + std::to_string(i)).value());
    to.push_back(store.Create("to" + std::to_string(i)).value());
    for (uint64_t at = 0; at < kMiB; at += 128 * kKiB)
      ASSERT_OK(store.WriteAt(from[i], at, Pattern(i, kMiB).substr(at, 128 * kKiB)));
  }
  store.device().Hold();
  std::vector<std::future<Result<uint64_t>>> copies;
  for (int i = 0; i < kCopies; ++i) {
    copies.push_back(StartUntilBlocked([&, i] { return store->files().CopyRange(from[i], 0, to[i], 0, kMiB); }));
  }
  store.device().Release();
  for (int i = 0; i < kCopies; ++i) {
    EXPECT_EQ(Must(copies[i].get()), kMiB);
    EXPECT_TRUE(Must(store.ReadAll(to[i])) == Pattern(i, kMiB));
  }
}

TEST(Files, ACopyThatFailsInAHoleReturnsTheBytesItCopied) {
  TestStore store;
  const InodePtr from = store.Create("a").value(), to = store.Create("b").value();
  ASSERT_OK(store.WriteAt(from, 0, Pattern(15, kBlock)));
  ASSERT_OK(store->files().Truncate(from, kMiB));
  const uint64_t target = kMaximumFileSize - 2 * kBlock;  // The hole does not fit.
  const auto copied = store->files().CopyRange(from, 0, to, target, kMiB);
  ASSERT_OK(copied);
  EXPECT_EQ(*copied, kBlock);
  EXPECT_EQ(store->files().CopyRange(from, kBlock, to, target + kBlock, kMiB).error().code, ErrorCode::kFileTooBig);
  EXPECT_TRUE(Must(store.ReadAt(to, target, kBlock)) == Pattern(15, kBlock));
}

TEST(Files, TwoDevicesShareALargeFile) {
  TestStoreOptions options;
  options.devices = 2;
  TestStore store(options);
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(16, 40 * kMiB);
  for (uint64_t at = 0; at < data.size(); at += kMiB) ASSERT_OK(store.WriteAt(file, at, data.substr(at, kMiB)));
  ASSERT_OK(store->Sync(file));
  EXPECT_GE(store.device(0).counts().written.value, 16 * kMiB);
  EXPECT_GE(store.device(1).counts().written.value, 16 * kMiB);
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(Files, AnUnlinkedOpenFileKeepsItsDataUntilClosed) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(17, 3 * kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->names().Unlink(kRootInode, "a"));
  EXPECT_TRUE(Must(store.ReadAll(file)) == Pattern(17, 3 * kMiB));
  ASSERT_OK(store.WriteAt(file, 100, "still here"));
  store->CloseFile(file);
  EXPECT_EQ(store->Space().free.value, fresh);
  ASSERT_OK(store.Remount());
  EXPECT_EQ(store->Space().free.value, fresh);
}

TEST(Files, ManySmallFilesShareCommits) {
  TestStore store({.store = {.commit_interval = std::chrono::hours(1), .close_delay = std::chrono::hours(1)}});
  for (int index = 0; index < 500; ++index) {
    ASSERT_OK(store.WriteFile("f" + std::to_string(index), Pattern(index, 3000)));
  }
  ASSERT_OK(store->SyncAll());
  EXPECT_LE(store->statistics().flushes, 50U);
  ASSERT_OK(store.Remount());
  for (int index = 0; index < 500; ++index) {
    EXPECT_TRUE(Must(store.ReadPath("f" + std::to_string(index))) == Pattern(index, 3000));
  }
}

TEST(Files, ARenameWaitsForACommitThatHasBegun) {
  TestStoreOptions options;
  options.store.commit_interval = std::chrono::milliseconds(1);
  TestStore store(options);
  const InodePtr file = store.Create("temporary").value();
  ASSERT_OK(store->SyncAll());
  store.device().Hold();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.device().WaitForHeld(1);  // The periodic commit has sealed the file and waits for the device.
  auto renamed = StartUntilBlocked(
      [&] { return store->names().Rename(kRootInode, "temporary", kRootInode, "final", RenameMode::kReplace); });
  EXPECT_FALSE(HasEnded(renamed)) << "the new name is in the catalog before the data";
  store.device().Release();
  ASSERT_OK(renamed.get());
  EXPECT_TRUE(Must(store.ReadPath("final")) == "data");
}

// A kill of the process keeps every catalog write, synced or not.
// After the log has written what was appended.
TestStore Killed(TestStore& store, const TestStoreOptions& options) {
  EXPECT_TRUE(store->Sync(store->inodes().Get(kRootInode).value()));
  CrashOptions crash;
  crash.kind = CrashOptions::Kind::kProcessKill;
  return TestStore(store.journal().ImageAt(store.journal().size(), crash), options);
}

class Naming : public ::testing::Test {
 protected:
  static TestStoreOptions Options() {
    TestStoreOptions options;
    options.store.commit_interval = options.store.close_delay = std::chrono::hours(1);
    return options;
  }
  Naming() : store_(Options()) {}
  void MakeDirectory(InodeId parent, std::string_view name) {
    CreateRequest request;
    request.mode = S_IFDIR | 0755;
    ASSERT_OK(store_->names().Create(parent, name, request));
  }
  Result<void> Rename(std::string_view from, std::string_view to, RenameMode mode = RenameMode::kReplace) {
    return store_->names().Rename(kRootInode, from, kRootInode, to, mode);
  }

  TestStore store_;
};

TEST_F(Naming, ADirectoryIsRenamedAfterTheDataBelowIt) {
  MakeDirectory(kRootInode, "step.tmp");
  MakeDirectory(store_.Resolve("step.tmp").value(), "rank");
  ASSERT_OK(store_.WriteFile("step.tmp/model", Pattern(1, 300'000)));
  ASSERT_OK(store_.WriteFile("step.tmp/rank/optimizer", Pattern(2, 70'000)));
  ASSERT_OK(store_.WriteFile("elsewhere", "not published"));
  ASSERT_OK(Rename("step.tmp", "step"));
  TestStore after = Killed(store_, Options());
  ASSERT_OK(after.opened());
  EXPECT_TRUE(Must(after.ReadPath("step/model")) == Pattern(1, 300'000));
  EXPECT_TRUE(Must(after.ReadPath("step/rank/optimizer")) == Pattern(2, 70'000));
  EXPECT_EQ(Must(after.ReadPath("elsewhere")), "") << "files elsewhere wait for their own commit";
}

TEST_F(Naming, ExchangedDirectoriesBothHaveTheirData) {
  MakeDirectory(kRootInode, "a");
  MakeDirectory(kRootInode, "b");
  ASSERT_OK(store_.WriteFile("a/f", Pattern(1, 5000)));
  ASSERT_OK(store_.WriteFile("b/f", Pattern(2, 5000)));
  ASSERT_OK(Rename("a", "b", RenameMode::kExchange));
  TestStore after = Killed(store_, Options());
  EXPECT_TRUE(Must(after.ReadPath("b/f")) == Pattern(1, 5000));
  EXPECT_TRUE(Must(after.ReadPath("a/f")) == Pattern(2, 5000));
}

TEST_F(Naming, ADirectoryRenameCommitsNoReplacementThatIsStillOpen) {
  MakeDirectory(kRootInode, "d");
  for (const char* path : {"d/open", "d/closed", "other"}) ASSERT_OK(store_.WriteFile(path, "old"));
  ASSERT_OK(store_->SyncAll());
  const InodePtr below = Must(store_.OpenPath("d/open", true)), other = Must(store_.OpenPath("other", true));
  for (const InodePtr& file : {below, other}) ASSERT_OK(store_.WriteAt(file, 0, "new"));
  ASSERT_OK(store_.WriteFile("d/closed", "new"));
  ASSERT_OK(Rename("d", "e"));
  TestStore after = Killed(store_, Options());
  EXPECT_EQ(Must(after.ReadPath("e/closed")), "new");
  EXPECT_EQ(Must(after.ReadPath("e/open")), "old") << "half of a replacement is not committed without need";
  EXPECT_EQ(Must(after.ReadPath("other")), "old");
}

TEST_F(Naming, AFileThatIsRenamedOrLinkedItselfIsCommittedAsItIs) {
  for (const char* path : {"renamed", "linked"}) ASSERT_OK(store_.WriteFile(path, "old"));
  ASSERT_OK(store_->SyncAll());
  for (const char* path : {"renamed", "linked"})
    ASSERT_OK(store_.WriteAt(Must(store_.OpenPath(path, true)), 0, "new"));
  ASSERT_OK(Rename("renamed", "r"));
  ASSERT_OK(store_->names().Link(store_.Resolve("linked").value(), kRootInode, "l"));
  TestStore after = Killed(store_, Options());
  for (const char* path : {"r", "l"}) EXPECT_EQ(Must(after.ReadPath(path)), "new") << path;
}

TEST_F(Naming, AHardLinkIsMadeAfterTheDataOfItsFile) {
  ASSERT_OK(store_.WriteFile("temporary", Pattern(3, 9000)));
  ASSERT_OK(store_->names().Link(store_.Resolve("temporary").value(), kRootInode, "final"));
  TestStore after = Killed(store_, Options());
  EXPECT_TRUE(Must(after.ReadPath("final")) == Pattern(3, 9000));
}

TEST_F(Naming, ASymbolicLinkIsRenamedAfterAllSettledData) {
  MakeDirectory(kRootInode, "step");
  ASSERT_OK(store_.WriteFile("step/model", Pattern(4, 9000)));
  CreateRequest request;
  request.mode = S_IFLNK | 0777;
  request.symlink = "step";
  ASSERT_OK(store_->names().Create(kRootInode, "latest.tmp", request));
  ASSERT_OK(Rename("latest.tmp", "latest"));
  TestStore after = Killed(store_, Options());
  EXPECT_TRUE(Must(after.ReadPath("step/model")) == Pattern(4, 9000));
}

TEST_F(Naming, ADirectoryRenameReportsAFailedWriteBelowItOnce) {
  MakeDirectory(kRootInode, "d");
  const InodePtr file = Must(store_.Create("d/f")), other = Must(store_.Create("other"));
  for (const InodePtr& inode : {file, other}) ASSERT_OK(store_.WriteAt(inode, 0, Pattern(5, 9000)));
  store_.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  const auto renamed = Rename("d", "e");
  ASSERT_FALSE(renamed.has_value());
  EXPECT_EQ(renamed.error().code, ErrorCode::kIo);
  EXPECT_TRUE(store_.Resolve("d").has_value()) << "nothing has moved";
  ASSERT_OK(Rename("d", "e"));
  ASSERT_OK(store_->Sync(other));
}

}  // namespace
}  // namespace weightfs

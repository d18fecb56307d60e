// The data path over a device that fails, holds and loses: what callers see, and what survives.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <future>

#include "meta/keys.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

constexpr uint64_t kBlock = kBlockSize;

std::string Must(Result<std::string> text) {
  EXPECT_TRUE(text.has_value()) << ToString(text.error());
  return text.value_or("");
}

#define ASSERT_OK(expression)                                        \
  do {                                                               \
    const auto asserted = (expression);                              \
    ASSERT_TRUE(asserted.has_value()) << ToString(asserted.error()); \
  } while (false)

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
  for (size_t at = 0; at < data.size();) {   // As Python's buffered writer sends them.
    const size_t step = at == 0 ? 1048560 : std::min<size_t>(kMiB, data.size() - at);
    ASSERT_OK(store.WriteAt(file, at, std::string_view(data).substr(at, step)));
    at += step;
  }
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const auto extents = store->Extents(file, FileBlock{0}, 100).value();
  EXPECT_LE(extents.size(), 3U) << "a file written in one go lies in few extents";
  EXPECT_EQ(extents[0].start.value % 512, 0U) << "a large file begins on 2 MiB";
}

// Written and not committed, cut off, written again: no checksum of what was never there may stay.
TEST(Files, WhatWasCutOffBeforeItWasCommittedLeavesNothing) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(1, 5 * kMiB)));
  ASSERT_OK(store->Truncate(file, 0));
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
    store->Write(file, ByteOffset{block * kBlock}, AsBytes(page), {}, WriteReach::kWithinFile,
                 [](const Result<void>& accepted) { ASSERT_OK(accepted); });
  }
  EXPECT_TRUE(Must(store.ReadAll(file)) == std::string(5000, 'm'));
}

TEST(Files, LargeAndSmallWritesInSequenceLieTogether) {
  TestStore store;
  const auto buffers = std::move(BufferPool::Create({.buffer_size = ByteCount{kMiB}, .count = 16}).value());
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(4, 12 * kMiB + 777);
  // As torch.save sends them: a header, then a tensor in pieces of the largest request.
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
    ASSERT_OK(store->Write(file, ByteOffset{at}, bytes, holder));
    at += step;
  }
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
  const auto extents = store->Extents(file, FileBlock{0}, 100).value();
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
  ASSERT_OK(store.WriteAt(file, 0, data));   // Two stripes go out and hang.
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

TEST(Files, TruncationZeroesWhatALaterGrowthUncovers) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  std::string data = Pattern(6, 20000);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->Truncate(file, 5000));
  ASSERT_OK(store->Truncate(file, 15000));
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
  EXPECT_EQ(store->Seek(file, 0, SeekTarget::kData).value(), 10 * kMiB);
  EXPECT_EQ(store->Seek(file, 10 * kMiB, SeekTarget::kHole).value(), 10 * kMiB + 3);
  ASSERT_OK(store->Sync(file));
  EXPECT_EQ(store->Seek(file, 5, SeekTarget::kData).value(), 10 * kMiB);
  EXPECT_EQ(store->Seek(file, 5, SeekTarget::kHole).value(), 5U);
  EXPECT_EQ(store->Seek(file, 10 * kMiB + 3, SeekTarget::kData).error().code, ErrorCode::kNoData);
}

TEST(Files, FallocatedSpaceIsWrittenInPlaceEvenWhenThePoolIsFull) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store->Fallocate(file, FallocateMode::kAllocate, 0, 8 * kMiB));
  EXPECT_EQ(store.SizeOf(file), 8 * kMiB);
  EXPECT_TRUE(Must(store.ReadAt(file, 4 * kMiB, 10)) == std::string(10, '\0'));
  const InodePtr filler = store.Create("filler").value();
  uint64_t filled = 0;
  while (store.WriteAt(filler, filled, Pattern(7, kMiB))) filled += kMiB;
  ASSERT_EQ(store.WriteAt(filler, filled, Pattern(7, kMiB)).error().code, ErrorCode::kNoSpace);
  const std::string data = Pattern(8, 8 * kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == data);
}

TEST(Files, AFullPoolSaysSoAtTheWriteAndDeletingGivesTheSpaceBack) {
  TestStore store;
  const uint64_t fresh = store->Space().free.value;
  const InodePtr file = store.Create("big").value();
  uint64_t size = 0;
  while (store.WriteAt(file, size, Pattern(size, kMiB))) size += kMiB;
  EXPECT_GE(size, 60 * kMiB);
  ASSERT_OK(store->Sync(file));
  EXPECT_TRUE(Must(store.ReadAt(file, size - kMiB, kMiB)) == Pattern(size - kMiB, kMiB));
  store->CloseFile(file);
  ASSERT_OK(store->names().Unlink(kRootInode, "big"));
  EXPECT_EQ(store->Space().free.value, fresh);
  const InodePtr again = store.Create("again").value();
  ASSERT_OK(store.WriteAt(again, 0, Pattern(9, 30 * kMiB)));
  ASSERT_OK(store->Sync(again));
  EXPECT_TRUE(Must(store.ReadAll(again)) == Pattern(9, 30 * kMiB));
}

TEST(Files, WhoeverFindsNoSpaceWaitsForClosesUnderWay) {
  enum Call { kWrite, kAllocate, kCopy, kReserve };
  for (const Call call : {kWrite, kAllocate, kCopy, kReserve}) {
    TestStore store;
    const InodePtr source = store.Create("source").value(), target = store.Create("target").value();
    ASSERT_OK(store.WriteAt(source, 0, Pattern(1, 8 * kMiB)));
    InodePtr going = store.Create("going").value();
    for (uint64_t size = 0; store.WriteAt(going, size, Pattern(size, kMiB));) size += kMiB;
    ASSERT_OK(store->names().Unlink(kRootInode, "going"));
    int waits = 0;
    store->WaitForCloses([&] {
      ++waits;
      if (going) store->CloseFile(std::exchange(going, nullptr));
    });
    const auto ask = [&]() -> Result<void> {
      switch (call) {
        case kWrite: return store.WriteAt(target, 0, Pattern(2, 2 * kMiB));
        case kAllocate: return store->Fallocate(target, FallocateMode::kAllocate, 0, 8 * kMiB);
        case kCopy: {
          const auto copied = store->CopyRange(source, 0, target, 0, 8 * kMiB);
          if (!copied) return copied.error();
          EXPECT_EQ(*copied, 8 * kMiB);
          return {};
        }
        case kReserve: {
          const auto grant = store->Reserve(target, FileBlock{0}, BlockCount{8 * kMiB / kBlock});
          if (!grant) return grant.error();
          return {};
        }
      }
      return {};
    };
    ASSERT_OK(ask());
    EXPECT_EQ(waits, 1);
    store->WaitForCloses(nullptr);
  }
}

TEST(Files, ZeroingARangeReusesWhatItReplaces) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(3, 40 * kMiB)));
  ASSERT_OK(store->Sync(file));
  ASSERT_OK(store->Fallocate(file, FallocateMode::kZeroRange, 0, 40 * kMiB));
  EXPECT_TRUE(Must(store.ReadAt(file, 7 * kMiB, kMiB)) == std::string(kMiB, '\0'));
}

TEST(Files, AZeroRangeThatFindsNoSpaceIsCommittedAsItIsShown) {
  TestStore store;
  const std::string old = Pattern(3, 8 * kMiB);
  ASSERT_OK(store.WriteFile("a", old));
  ASSERT_OK(store->SyncAll());
  const uint64_t before = store->Space().free.value;
  const InodePtr file = store.OpenPath("a").value();
  EXPECT_EQ(store->Fallocate(file, FallocateMode::kZeroRange, kMiB, 100 * kMiB).error().code, ErrorCode::kNoSpace);
  const std::string shown = Must(store.ReadAll(file));
  EXPECT_EQ(shown.size(), old.size());
  EXPECT_TRUE(shown.substr(0, kMiB) == old.substr(0, kMiB));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == shown);
  EXPECT_GE(store->Space().free.value, before);
}

TEST(Files, OverwritingAFullPoolReusesWhatCommitsGiveBack) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const uint64_t size = 24 * kMiB;
  for (int round = 0; round < 8; ++round) {
    for (uint64_t at = 0; at < size; at += kMiB) ASSERT_OK(store.WriteAt(file, at, Pattern(round * 100 + at, kMiB)));
  }
  ASSERT_OK(store->Sync(file));
  for (uint64_t at = 0; at < size; at += kMiB) EXPECT_TRUE(Must(store.ReadAt(file, at, kMiB)) == Pattern(700 + at, kMiB));
}

TEST(Files, AFlippedByteIsAnErrorNeverData) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string data = Pattern(10, kMiB);
  ASSERT_OK(store.WriteAt(file, 0, data));
  ASSERT_OK(store->Sync(file));
  const auto extents = store->Extents(file, FileBlock{0}, 10).value();
  store.device().Corrupt(ToBytes(extents[0].start) + ByteCount{5 * kBlock + 17});
  ASSERT_OK(store.Remount());
  const InodePtr again = store.OpenPath("a").value();
  EXPECT_EQ(store.ReadAt(again, 5 * kBlock, 10).error().code, ErrorCode::kCorrupt);
  EXPECT_FALSE(store.ReadAt(again, 0, kMiB).has_value());
  EXPECT_TRUE(Must(store.ReadAt(again, 600 * kKiB, 4096)) == data.substr(600 * kKiB, 4096));
  EXPECT_EQ(store.WriteAt(again, 5 * kBlock + 1, "x").error().code, ErrorCode::kCorrupt)
      << "a partial overwrite must not bless the block";
  EXPECT_GE(store->statistics().checksum_errors, 1U);
}

TEST(Files, AFailedWriteIsReportedOnceAndTheLastCommitStays) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  const std::string old = Pattern(11, 100000);
  ASSERT_OK(store.WriteAt(file, 0, old));
  ASSERT_OK(store->Sync(file));
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 100000)));
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Must(store.ReadAll(file)) == old);
  EXPECT_FALSE(store->read_only());
  ASSERT_OK(store.WriteAt(file, 10, "new"));
  ASSERT_OK(store->Sync(file));
  std::string expected = old;
  expected.replace(10, 3, "new");
  ASSERT_OK(store.Remount());
  EXPECT_TRUE(Must(store.ReadPath("a")) == expected);
}

Result<void> CloseOf(TestStore& store, const InodePtr& file) {
  Result<void> result;
  store->Flush(file, [&](Result<void> done) { result = std::move(done); });   // Waits for nothing.
  return result;
}

TEST(Files, AFailedWriteIsTakenBackWhoeverWasToldFirst) {
  for (const bool by_close : {false, true}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    const std::string old = Pattern(11, 8 * kMiB);
    ASSERT_OK(store.WriteAt(file, 0, old));
    ASSERT_OK(store->Sync(file));
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    store.device().Hold();
    ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 4 * kMiB)));   // Stripes go out at once.
    store.device().WaitForHeld(2);
    store.device().CompleteOne();
    for (int call = 0; call < 2; ++call) {
      const auto told = by_close ? CloseOf(store, file) : store.WriteAt(file, 6 * kMiB, "new");
      ASSERT_FALSE(told.has_value()) << "nothing is taken before the file is whole again";
      EXPECT_EQ(told.error().code, ErrorCode::kIo);
    }
    store.device().Release();
    static_cast<void>(store->Sync(file).has_value());   // an error where it is in the cycle that puts the file back
    EXPECT_TRUE(Must(store.ReadAll(file)) == old);
    ASSERT_OK(store.WriteAt(file, 6 * kMiB, "new"));
    ASSERT_OK(CloseOf(store, file));
    ASSERT_OK(store->Sync(file));
    ASSERT_OK(store.Remount());
    EXPECT_TRUE(Must(store.ReadPath("a")) == std::string(old).replace(6 * kMiB, 3, "new"));
  }
}

TEST(Files, AFailedWriteThatNobodyWasToldOfIsReportedByTheNextCall) {
  enum Call { kWrite, kClose, kSync, kRename };
  for (const Call call : {kWrite, kClose, kSync, kRename}) {
    TestStore store;
    const InodePtr file = store.Create("a").value();
    std::promise<void> back;
    store->OnReverted([&](InodeId) { back.set_value(); });
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1, .code = ErrorCode::kNoSpace});
    ASSERT_OK(store.WriteAt(file, 0, Pattern(12, 4 * kMiB)));
    back.get_future().wait();   // Nobody asked for a commit.
    const auto ask = [&]() -> Result<void> {
      switch (call) {
        case kWrite: return store.WriteAt(file, 0, "x");
        case kClose: return CloseOf(store, file);
        case kSync: return store->Sync(file);
        case kRename: return store->names().Rename(kRootInode, "a", kRootInode, "b", RenameMode::kReplace);
      }
      return {};
    };
    const auto told = ask();
    ASSERT_FALSE(told.has_value()) << call;
    EXPECT_EQ(told.error().code, ErrorCode::kIo) << "a device without room is not a full pool";
    ASSERT_OK(ask());
    store->OnReverted(nullptr);
  }
}

TEST(Files, AFileThatAFailedWriteHasPutBackIsTold) {
  TestStore store;
  const InodePtr file = store.Create("a").value(), other = store.Create("b").value();
  std::vector<InodeId> told;
  store->OnReverted([&](InodeId ino) { told.push_back(ino); });
  ASSERT_OK(store.WriteAt(other, 0, Pattern(1, 5000)));
  ASSERT_OK(store->Sync(other));
  EXPECT_TRUE(told.empty());
  store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
  ASSERT_OK(store.WriteAt(file, 0, Pattern(2, 5000)));
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_EQ(told, std::vector{file->id});
  store->OnReverted(nullptr);
}

TEST(Files, WhoLoadsAFileThatAFailedWriteDropsMeanwhileFindsItsLastCommit) {
  TestStore store;
  ASSERT_OK(store.WriteFile("a", Pattern(1, kMiB)));
  ASSERT_OK(store->SyncAll());
  ASSERT_OK(store.Remount());
  const InodePtr file = store.OpenPath("a").value();
  const std::string data = Pattern(2, kMiB);
  store.kv().AfterGet([&] {   // of the old extent
    ASSERT_OK(store.WriteAt(file, 0, data));
    ASSERT_OK(store->Sync(file));
    store.device().Fail(FaultDevice::Target::kWrite, {.nth = 1});
    ASSERT_OK(store.WriteAt(file, 0, Pattern(3, kMiB)));
    ASSERT_FALSE(store->Sync(file).has_value());
  });
  EXPECT_TRUE(Must(store.ReadAll(file)) == data);
}

TEST(Files, AFailedFlushMakesTheStoreReadOnly) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.device().Fail(FaultDevice::Target::kFlush, {.nth = 1});
  EXPECT_EQ(store->Sync(file).error().code, ErrorCode::kIo);
  EXPECT_TRUE(store->read_only());
  EXPECT_EQ(store.WriteAt(file, 0, "more").error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(store->Sync(file).has_value()) << "a failed fsync is never tried again as if nothing were lost";
}

TEST(Files, AFailedCatalogSyncMakesTheStoreReadOnly) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.kv().FailSync(1);
  EXPECT_FALSE(store->Sync(file).has_value());
  EXPECT_TRUE(store->read_only());
}

TEST(Files, AFailedChangeOfNamesMakesTheStoreReadOnly) {
  TestStore store({.store = {.commit_interval = std::chrono::hours(1), .memory = ByteCount{48 * kMiB}}});
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, "data"));
  store.kv().FailWrite(1);
  EXPECT_FALSE(store.Create("b").has_value());
  EXPECT_TRUE(store->read_only());
  EXPECT_EQ(store.WriteAt(file, 0, "more").error().code, ErrorCode::kReadOnly);
  EXPECT_FALSE(store->Sync(file).has_value());
  EXPECT_EQ(store.device().counts().writes, 0U);
}

TEST(Files, AReadFailureIsAnErrorOfThatReadAlone) {
  TestStore store;
  const InodePtr file = store.Create("a").value();
  ASSERT_OK(store.WriteAt(file, 0, Pattern(13, kMiB)));
  ASSERT_OK(store->Sync(file));
  store.device().Fail(FaultDevice::Target::kRead, {.nth = 1});
  EXPECT_EQ(store.ReadAt(file, 300 * kKiB, 200 * kKiB).error().code, ErrorCode::kIo);
  EXPECT_TRUE(Must(store.ReadAt(file, 300 * kKiB, 200 * kKiB)) == Pattern(13, kMiB).substr(300 * kKiB, 200 * kKiB));
}

// The next bytes of a stream; "" when they cannot be read.
std::string ReadNext(TestStore& store, const InodePtr& file, uint64_t offset, ReadStream* stream) {
  std::promise<std::string> promise;
  auto part = promise.get_future();
  store->Read(file, ByteOffset{offset}, ByteCount{kMiB}, stream, [&](Result<ReadView> view) {
    promise.set_value(view ? ToText(*view) : std::string());
  });
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

TEST(Files, ManyStreamsLeaveEachOtherWhatTheyReadAhead) {
  constexpr size_t kStreams = 6, kSize = 24 * kMiB;   // more than the memory for read-ahead, 24 MiB, holds of each
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
  EXPECT_EQ(store->CopyRange(from, 0, to, 0, UINT64_MAX >> 1).value(), size);
  EXPECT_TRUE(Must(store.ReadAll(to)) == Must(store.ReadAll(from)));
  EXPECT_EQ(store->Seek(to, 80000, SeekTarget::kData).value(), 20 * kMiB);
}

TEST(Files, ACopyThatFailsInAHoleTellsWhatItCopied) {
  TestStore store;
  const InodePtr from = store.Create("a").value(), to = store.Create("b").value();
  ASSERT_OK(store.WriteAt(from, 0, Pattern(15, kBlock)));
  ASSERT_OK(store->Truncate(from, kMiB));
  const uint64_t target = kMaximumFileSize - 2 * kBlock;   // The hole does not fit.
  const auto copied = store->CopyRange(from, 0, to, target, kMiB);
  ASSERT_OK(copied);
  EXPECT_EQ(*copied, kBlock);
  EXPECT_EQ(store->CopyRange(from, kBlock, to, target + kBlock, kMiB).error().code, ErrorCode::kFileTooBig);
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

TEST(Files, AnUnlinkThatFailsLeavesTheFileAsItWas) {
  for (const bool loaded : {false, true}) {
    TestStore store;
    std::string data = Pattern(1, 2 * kMiB);
    ASSERT_OK(store.WriteFile("a", data));
    ASSERT_OK(store->SyncAll());
    ASSERT_OK(store.Remount());
    if (loaded) {
      const InodePtr file = store.OpenPath("a").value();
      ASSERT_OK(store.WriteAt(file, 100, "new"));
      data.replace(100, 3, "new");
      store->CloseFile(file);
    }
    const uint64_t free = store->Space().free.value;
    store.kv().FailWrite(1);
    EXPECT_FALSE(store->names().Unlink(kRootInode, "a").has_value());
    EXPECT_TRUE(Must(store.ReadPath("a")) == data);
    EXPECT_EQ(store->Space().free.value, free);
  }
}

TEST(Files, ManySmallFilesShareCommits) {
  TestStore store;
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
  store.device().WaitForHeld(1);   // The commit of the interval has sealed the file and waits for the device.
  auto renamed = std::async(std::launch::async, [&] {
    return store->names().Rename(kRootInode, "temporary", kRootInode, "final", RenameMode::kReplace);
  });
  EXPECT_EQ(renamed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
      << "the new name is in the catalog before the data";
  store.device().Release();
  ASSERT_OK(renamed.get());
  EXPECT_TRUE(Must(store.ReadPath("final")) == "data");
}

}  // namespace
}  // namespace weightfs

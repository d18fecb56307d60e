// SPDX-License-Identifier: Apache-2.0
#include "client/handle.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <latch>
#include <mutex>
#include <thread>

#include "client/handle_impl.h"
#include "client/random_reader.h"
#include "common/units.h"
#include "tests/support/aligned_memory.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using std::chrono_literals::operator""ms;

std::unique_ptr<Handle> Make(const HandleOptions& options = {}) { return std::move(Handle::Create(options).value()); }

class HandleTest : public testing::TestWithParam<HandleOptions> {};

std::string NameOf(const testing::TestParamInfo<HandleOptions>& info) {
  const HandleOptions& o = info.param;
  return fmt::format("Block{}Depth{}{}{}Threads{}", o.block_size, o.queue_depth, o.single_submit ? "Single" : "",
                     o.overlap_events ? "Overlap" : "", o.intra_op_parallelism);
}

INSTANTIATE_TEST_SUITE_P(
    Knobs, HandleTest,
    testing::Values(HandleOptions{}, HandleOptions{1024, 2, true, true, 2}, HandleOptions{1024, 2, false, false, 2},
                    HandleOptions{65536, 8, true, false, 1}, HandleOptions{65536, 8, false, true, 3},
                    HandleOptions{1000, 128, false, true, 5}, HandleOptions{8 << 20, 32, false, true, 1}),
    NameOf);

// Sizes around blocks, slices and the limit of small transfers; memory of every alignment.
TEST_P(HandleTest, EverySizeOffsetAndAlignmentArrivesToTheLastByteAndNoFurther) {
  const Folder folder;
  const auto handle = Make(GetParam());
  AlignedMemory memory(4 << 20);
  unsigned seed = 0;
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{4096}, size_t{4097}, size_t{65536}, size_t{65537},
                            size_t{300'001}, size_t{1 << 20}, size_t{1048676}, size_t{2'500'000}}) {
    for (const size_t misalignment : {size_t{0}, size_t{1}, size_t{64}, size_t{512}}) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{70'000}}) {
        SCOPED_TRACE(fmt::format("size {} memory +{} offset {}", size, misalignment, offset));
        const Bytes before = RandomBytes(offset + size + 5000, 7);
        WriteFile(folder / "file", before);
        const Bytes bytes = RandomBytes(size, ++seed);
        std::memcpy(memory.data() + misalignment, bytes.data(), size);
        const MemoryView view(std::span(memory.data() + misalignment, size));
        ASSERT_TRUE(handle->Write(folder / "file", view, {.offset = offset}).has_value());
        Bytes expected = before;
        std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<long>(offset));
        ASSERT_EQ(ReadFile(folder / "file"), expected);

        std::memset(memory.data(), 0x5a, memory.size());
        ASSERT_TRUE(handle->Read(folder / "file", view, {.offset = offset}).has_value());
        ASSERT_EQ(std::memcmp(memory.data() + misalignment, bytes.data(), size), 0);
        ASSERT_EQ(memory.data()[misalignment + size], std::byte{0x5a});
        if (misalignment > 0) {
          ASSERT_EQ(memory.data()[misalignment - 1], std::byte{0x5a});
        }
      }
    }
  }
}

TEST_P(HandleTest, AsynchronousOperationsAllArriveAndAreCounted) {
  const Folder folder;
  const auto handle = Make(GetParam());
  std::vector<Bytes> sources;
  for (unsigned i = 0; i < 40; ++i) sources.push_back(RandomBytes(1 + i * 7919 % 200'000, i));
  for (unsigned i = 0; i < 40; ++i) {
    ASSERT_TRUE(handle->StartWrite(folder / std::to_string(i), View(sources[i])).has_value());
  }
  EXPECT_EQ(handle->Wait().count, 40U);
  EXPECT_EQ(handle->Wait().count, 0U);
  std::vector<Bytes> targets;
  for (const auto& source : sources) targets.emplace_back(source.size());
  for (unsigned i = 0; i < 40; ++i) {
    ASSERT_TRUE(handle->StartRead(folder / std::to_string(i), View(targets[i])).has_value());
  }
  EXPECT_EQ(handle->Wait().count, 40U);
  EXPECT_EQ(targets, sources);
}

TEST_P(HandleTest, TransposedTensorsAreWrittenAndReadAsTheirIndicesSay) {
  const Folder folder;
  const auto handle = Make(GetParam());
  constexpr int64_t kRows = 700;
  constexpr int64_t kColumns = 900;
  Bytes matrix = RandomBytes(kRows * kColumns * 4, 11);
  const std::vector<int64_t> shape{kColumns, kRows};
  const std::vector<int64_t> strides{4, kColumns * 4};
  const auto transposed = MemoryView::Strided(matrix.data(), 4, shape, strides).value();
  Bytes expected(matrix.size());
  transposed.Gather(0, expected);
  ASSERT_TRUE(handle->Write(folder / "matrix", transposed).has_value());
  EXPECT_EQ(ReadFile(folder / "matrix"), expected);
  const Bytes original = std::exchange(matrix, Bytes(matrix.size()));
  const auto empty = MemoryView::Strided(matrix.data(), 4, shape, strides).value();
  ASSERT_TRUE(handle->Read(folder / "matrix", empty).has_value());
  EXPECT_EQ(matrix, original);
}

TEST(HandleBasicTest, AShorterWholeWriteLeavesNoStaleTailAndAWriteAtAnOffsetKeepsTheRest) {
  const Folder folder;
  const auto handle = Make();
  Bytes large = RandomBytes(3'000'000, 1);
  Bytes small = RandomBytes(1'000, 2);
  ASSERT_TRUE(handle->Write(folder / "file", View(large)).has_value());
  ASSERT_TRUE(handle->Write(folder / "file", View(small)).has_value());
  EXPECT_EQ(ReadFile(folder / "file"), small);

  ASSERT_TRUE(handle->Write(folder / "file", View(large)).has_value());
  ASSERT_TRUE(handle->Write(folder / "file", View(small), {.offset = 0}).has_value());
  EXPECT_EQ(std::filesystem::file_size(folder / "file"), large.size());
  const int descriptor = open((folder / "file").c_str(), O_WRONLY);
  ASSERT_TRUE(handle->Write(descriptor, View(small)).has_value());
  close(descriptor);
  std::copy(small.begin(), small.end(), large.begin());
  EXPECT_EQ(ReadFile(folder / "file"), large);
}

TEST(HandleBasicTest, PartsWrittenInAnyOrderBySeveralHandlesMakeOneFile) {
  const Folder folder;
  const auto first = Make({.intra_op_parallelism = 2});
  const auto second = Make();
  Bytes whole = RandomBytes(10'000'000, 5);
  for (const size_t begin : {size_t{5'000'000}, size_t{0}, size_t{7'500'000}, size_t{2'500'000}}) {
    Handle& handle = begin % 5'000'000 == 0 ? *first : *second;
    const MemoryView part(std::span<std::byte>(whole).subspan(begin, 2'500'000));
    ASSERT_TRUE(handle.StartWrite(folder / "file", part, {.offset = begin}).has_value());
  }
  EXPECT_EQ(first->Wait().count, 2U);
  EXPECT_EQ(second->Wait().count, 2U);
  EXPECT_EQ(ReadFile(folder / "file"), whole);
}

TEST(HandleBasicTest, DescriptorsOfEveryKindTakeAnySizeAndMayBeClosedAtOnce) {
  const Folder folder;
  const auto handle = Make();
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_DIRECT, O_WRONLY | O_APPEND, O_WRONLY | O_DIRECT | O_APPEND}) {
    Bytes whole = RandomBytes(300'001, static_cast<unsigned>(flags));
    WriteFile(folder / "file", std::span(whole).first(100));
    const int descriptor = open((folder / "file").c_str(), flags);
    ASSERT_GE(descriptor, 0);
    const MemoryView rest(std::span<std::byte>(whole).subspan(100));
    const auto started = handle->StartWrite(descriptor, rest, {.offset = 100});
    close(descriptor);
    ASSERT_TRUE(started.has_value()) << started.error().what;
    EXPECT_EQ(handle->Wait().count, 1U);
    EXPECT_EQ(ReadFile(folder / "file"), whole) << flags;
  }
}

TEST(HandleBasicTest, AWriteWithoutAnOffsetAppendsToADescriptorWithOAppend) {
  const Folder folder;
  const auto handle = Make();
  Bytes whole = RandomBytes(500'000, 1);
  WriteFile(folder / "file", std::span(whole).first(1234));
  const int descriptor = open((folder / "file").c_str(), O_WRONLY | O_APPEND);
  ASSERT_TRUE(handle->Write(descriptor, MemoryView(std::span<std::byte>(whole).subspan(1234))).has_value());
  close(descriptor);
  EXPECT_EQ(ReadFile(folder / "file"), whole);
}

TEST(HandleBasicTest, AReadPastTheEndReportsTheAvailableBytes) {
  const Folder folder;
  const auto handle = Make();
  WriteFile(folder / "file", RandomBytes(5000));
  Bytes target(4096);
  const auto result = handle->Read(folder / "file", View(target), {.offset = 1000});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().error_number(), ENODATA);
  EXPECT_EQ(result.error().what,
            fmt::format("read of 4096 bytes at offset 1000 of {}: only 4000 bytes there", folder / "file"));
  const auto started = handle->StartRead(folder / "file", View(target), {.offset = 9000});
  ASSERT_FALSE(started.has_value());
  EXPECT_EQ(handle->pending(), 0U);
}

TEST(HandleBasicTest, EmptyTensorsMakeEmptyFiles) {
  const Folder folder;
  const auto handle = Make();
  Bytes nothing;
  WriteFile(folder / "old", RandomBytes(100));
  ASSERT_TRUE(handle->Write(folder / "old", View(nothing)).has_value());
  EXPECT_EQ(std::filesystem::file_size(folder / "old"), 0U);
  ASSERT_TRUE(handle->StartWrite(folder / "new", View(nothing)).has_value());
  EXPECT_EQ(handle->Wait().count, 1U);
  EXPECT_EQ(std::filesystem::file_size(folder / "new"), 0U);
  EXPECT_TRUE(handle->Read(folder / "new", View(nothing)).has_value());
}

TEST(HandleBasicTest, FailuresAreReportedOnceByWaitOrByTheirOperation) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(1 << 20);
  // Fails only after its start: the disk is full.
  ASSERT_TRUE(handle->StartWrite("/dev/full", View(bytes), {.offset = 0}).has_value());
  const auto own = handle->StartWrite("/dev/full", View(bytes), {.offset = 0, .own_errors = true}).value();
  ASSERT_TRUE(handle->StartWrite(folder / "good", View(bytes)).has_value());
  const auto completed = handle->Wait();
  EXPECT_EQ(completed.count, 1U);
  EXPECT_EQ(completed.failed, 1U);
  ASSERT_EQ(completed.errors.size(), 1U);
  EXPECT_EQ(completed.errors[0].error_number(), ENOSPC);
  EXPECT_EQ(completed.errors[0].path, "/dev/full");
  ASSERT_TRUE(own->error().has_value());
  EXPECT_EQ(own->error()->error_number(), ENOSPC);
  EXPECT_EQ(handle->Wait().failed, 0U);
}

TEST(HandleBasicTest, WaitCountsExactlyTheOperationsThatAreDone) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(100);
  for (int i = 0; i < 2000; ++i) {
    const auto first = handle->StartWrite(folder / "file", View(bytes)).value();
    EXPECT_EQ(handle->Wait().count, 1U);
    ASSERT_TRUE(first->done());
    const auto second = handle->StartWrite(folder / "file", View(bytes)).value();
    second->Wait();
    ASSERT_EQ(handle->pending(), 0U);
    EXPECT_EQ(handle->Wait().count, 1U);
  }
}

TEST(HandleBasicTest, AnInterruptedWaitLosesNoCounts) {
  const Folder folder;
  const auto handle = Make({.block_size = 4096, .queue_depth = 1, .single_submit = true});
  Bytes bytes = RandomBytes(8 << 20);
  std::latch ended(1);
  const auto first = handle
                         ->StartWrite(folder / "first", View(bytes),
                                      {.progress =
                                           [&](uint64_t done, uint64_t) {
                                             if (done == bytes.size()) ended.wait();
                                           }})
                         .value();
  ASSERT_TRUE(handle->StartWrite(folder / "second", View(bytes), {.own_errors = true}).value()->Wait());
  EXPECT_EQ(handle->Wait([] { return true; }).count, 0U);
  EXPECT_EQ(handle->pending(), 1U);
  ended.count_down();
  EXPECT_EQ(handle->Wait([] { return false; }).count, 1U);
}

TEST(HandleBasicTest, AnInterruptedWriteIsCanceled) {
  const Folder folder;
  const auto handle = Make({.block_size = 4096, .queue_depth = 1, .single_submit = true});
  Bytes bytes = RandomBytes(8 << 20);
  const pid_t caller = gettid();
  std::latch asked(1);
  const WriteOptions options{.progress =
                                 [&](uint64_t, uint64_t) {
                                   asked.wait();
                                   WaitUntilBlocked({caller});  // It has canceled the write and waits for its end.
                                 },
                             .interrupted =
                                 [&] {
                                   if (!asked.try_wait()) asked.count_down();
                                   return true;
                                 }};
  const auto result = handle->Write(folder / "file", View(bytes), options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().error_number(), ECANCELED);
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(HandleBasicTest, WaitingForAnOperationEndsWithTheTimeout) {
  const Folder folder;
  const auto handle = Make({.block_size = 4096, .queue_depth = 1, .single_submit = true});
  Bytes bytes = RandomBytes(1 << 20);
  StandingWrite standing(*handle, folder / "file", bytes);
  EXPECT_FALSE(standing->Wait(0ms));
  EXPECT_FALSE(standing->Wait(10ms));
  std::thread later([&] { standing.LetGo(); });
  EXPECT_TRUE(standing->Wait(std::chrono::nanoseconds::max()));
  later.join();
  EXPECT_TRUE(standing->Wait());
  EXPECT_TRUE(standing->Wait(0ms));
}

TEST(HandleBasicTest, CallbacksComeOnceWithTheOutcomeAndMayStartMore) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(3 << 20);
  std::atomic<int> calls = 0;
  std::atomic<uint64_t> reported = 0;
  std::latch second_started(1);
  std::latch asked_for(1);  // otherwise the operation may have ended, and the callback would run here
  const auto first = handle
                         ->StartWrite(folder / "first", View(bytes),
                                      {.progress =
                                           [&](uint64_t done, uint64_t) {
                                             asked_for.wait();
                                             reported = done;
                                           }})
                         .value();
  first->OnDone([&] {
    ++calls;
    EXPECT_TRUE(first->done());
    // Waiting here might never end, so it returns an error.
    EXPECT_EQ(handle->Write(folder / "refused", View(bytes)).error().error_number(), EDEADLK);
    EXPECT_EQ(handle->Wait().errors.at(0).error_number(), EDEADLK);
    const auto second = handle->StartWrite(folder / "second", View(bytes));
    EXPECT_TRUE(second.has_value());
    second_started.count_down();
  });
  asked_for.count_down();
  second_started.wait();
  EXPECT_EQ(handle->Wait().count, 2U);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(reported, bytes.size());
  first->OnDone([&] { ++calls; });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(ReadFile(folder / "second"), bytes);
}

TEST(HandleBasicTest, ProgressNeverDecreasesAndEndsAtTheTotal) {
  const Folder folder;
  const auto handle = Make({.block_size = 4096, .queue_depth = 8, .overlap_events = true, .intra_op_parallelism = 4});
  Bytes bytes = RandomBytes(1 << 20);
  for (int round = 0; round < 20; ++round) {
    std::mutex mutex;
    std::vector<uint64_t> told;
    const auto tell = [&](uint64_t done, uint64_t) {
      const std::lock_guard lock(mutex);
      told.push_back(done);
    };
    ASSERT_TRUE(handle->Write(folder / "file", View(bytes), {.progress = tell}).has_value());
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    ASSERT_FALSE(told.empty());
    EXPECT_EQ(told.back(), bytes.size());
  }
}

TEST(HandleBasicTest, ACompletedOperationReleasesItsCallback) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(5000);
  const auto held = std::make_shared<int>();
  const auto kept =
      handle->StartWrite(folder / "file", View(bytes), {.progress = [held](uint64_t, uint64_t) {}}).value();
  handle->Wait();
  WaitUntilIdle();  // The handle forgets it right after the end.
  EXPECT_EQ(held.use_count(), 1);
}

TEST(HandleBasicTest, AHandleMayBeDestroyedInItsOwnCallback) {
  const Folder folder;
  Bytes bytes = RandomBytes(8 << 20);
  auto handle = Make();
  std::latch destroyed(1);
  StandingWrite first(*handle, folder / "first", bytes);
  first->OnDone([&] {
    handle.reset();
    destroyed.count_down();
  });
  std::vector<std::shared_ptr<Operation>> others;
  for (int i = 0; i < 5; ++i) others.push_back(handle->StartWrite(folder / std::to_string(i), View(bytes)).value());
  first.LetGo();
  destroyed.wait();
  for (const auto& other : others) EXPECT_TRUE(other->done());
}

TEST(HandleBasicTest, AHandleMayBeDestroyedInAProgress) {
  const Folder folder;
  Bytes bytes = RandomBytes(8 << 20);
  WriteFile(folder / "file", bytes);
  Bytes target(bytes.size());
  for (const unsigned threads : {1U, 3U}) {
    for (const bool writes : {false, true}) {
      auto handle = Make({.block_size = 65536, .queue_depth = 4, .intra_op_parallelism = threads});
      std::atomic<bool> begun{false};
      std::latch all_started(1);
      const Progress destroy = [&](uint64_t, uint64_t) {
        if (begun.exchange(true)) return;
        all_started.wait();
        handle.reset();
      };
      std::vector<std::shared_ptr<Operation>> operations;
      operations.push_back(writes ? handle->StartWrite(folder / "new", View(bytes), {.progress = destroy}).value()
                                  : handle->StartRead(folder / "file", View(target), {.progress = destroy}).value());
      // Calls and ends behind the one that destroys the handle.
      const Progress ignore = [](uint64_t, uint64_t) {};
      for (int i = 0; i < 5; ++i) {
        operations.push_back(handle->StartWrite(folder / std::to_string(i), View(bytes), {.progress = ignore}).value());
      }
      all_started.count_down();
      for (const auto& operation : operations) EXPECT_TRUE(operation->Wait());
    }
  }
}

TEST(HandleBasicTest, DestructionWithOperationsUnderWayEndsThemAllAndLeaksNothing) {
  const Folder folder;
  Bytes bytes = RandomBytes(4 << 20);
  WriteFile(folder / "source", bytes);
  const size_t before = OpenDescriptors();
  for (unsigned i = 0; i < 60; ++i) {
    std::vector<std::shared_ptr<Operation>> operations;
    Bytes target(bytes.size());
    {
      const auto handle = Make({.queue_depth = 4, .intra_op_parallelism = 1 + i % 3});
      for (int n = 0; n < 3; ++n) {
        operations.push_back(handle->StartWrite(folder / std::to_string(n), View(bytes)).value());
        operations.push_back(handle->StartRead(folder / "source", View(target)).value());
      }
    }
    for (const auto& operation : operations) ASSERT_TRUE(operation->done());
  }
  // A handle that an earlier test destroyed in a callback may have closed its descriptors since.
  EXPECT_LE(OpenDescriptors(), before);
}

TEST(HandleBasicTest, ManyThreadsShareOneHandle) {
  const Folder folder;
  const auto handle = Make({.block_size = 65536, .queue_depth = 4, .intra_op_parallelism = 2});
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Bytes bytes = RandomBytes(700'000 + t, t);
      Bytes target(bytes.size());
      const std::string path = folder / std::to_string(t);
      for (int i = 0; i < 15; ++i) {
        EXPECT_TRUE(handle->Write(path, View(bytes)).has_value());
        const auto read = handle->StartRead(path, View(target));
        EXPECT_TRUE((*read)->Wait());
        EXPECT_EQ(target, bytes);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(handle->Wait().count, 6U * 15);
}

TEST(HandleBasicTest, AForkedChildGetsAnErrorFromTheHandleOfItsParent) {
  const Folder folder;
  auto handle = Make();
  Bytes bytes = RandomBytes(32 << 20);
  ASSERT_TRUE(handle->StartWrite(folder / "pending", View(bytes)).has_value());
  const pid_t child = fork();
  if (child == 0) {
    const auto result = handle->Write(folder / "file", View(bytes));
    const auto waited = handle->Wait();
    const bool refused = !result.has_value() && result.error().error_number() == EPERM && handle->pending() == 0 &&
                         waited.errors.size() == 1 && waited.errors[0].error_number() == EPERM;
    handle.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(handle->Write(folder / "file", View(bytes)).has_value());
}

TEST(HandleBasicTest, ImpossibleOptionsAreRefused) {
  for (const HandleOptions& options :
       {HandleOptions{.block_size = 0}, HandleOptions{.queue_depth = 0}, HandleOptions{.intra_op_parallelism = 0}}) {
    EXPECT_EQ(Handle::Create(options).error().error_number(), EINVAL);
  }
}

TEST(HandleBasicTest, NothingIsReadIntoElementsThatShareMemory) {
  const Folder folder;
  const auto handle = Make();
  WriteFile(folder / "file", RandomBytes(64));
  Bytes row(16);
  const auto view = MemoryView::Strided(row.data(), 4, std::vector<int64_t>{4, 4}, std::vector<int64_t>{0, 4}).value();
  EXPECT_EQ(handle->Read(folder / "file", view).error().error_number(), EINVAL);
  EXPECT_TRUE(handle->Write(folder / "copy", view).has_value());
}

TEST(HandleBasicTest, ADurableAtomicWriteReplacesTheFile) {
  const Folder folder;
  const auto handle = Make({.intra_op_parallelism = 2});
  Bytes old = RandomBytes(3 << 20, 1);
  Bytes bytes = RandomBytes((2 << 20) + 17, 2);
  ASSERT_TRUE(handle->Write(folder / "file", View(old), {.durable = true}).has_value());
  ASSERT_TRUE(handle->Write(folder / "file", View(bytes), {.durable = true, .atomic = true}).has_value());
  EXPECT_EQ(ReadFile(folder / "file"), bytes);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(HandleBasicTest, FilesOnTmpfsAreWrittenAndRead) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const Folder folder("/dev/shm");
  const auto handle = Make({.intra_op_parallelism = 2});
  Bytes bytes = RandomBytes(5'000'003, 3);
  Bytes target(bytes.size());
  ASSERT_TRUE(handle->Write(folder / "file", View(bytes)).has_value());
  ASSERT_TRUE(handle->Read(folder / "file", View(target)).has_value());
  EXPECT_EQ(target, bytes);
  EXPECT_EQ(std::filesystem::file_size(folder / "file"), bytes.size());
}

TEST(HandleBasicTest, NothingIsReadIntoConstantMemory) {
  const Folder folder;
  const auto handle = Make();
  const Bytes constant = RandomBytes(20'000);
  const MemoryView view{std::span<const std::byte>(constant)};
  const MemoryView joined = MemoryView::Joined({{.at = 0, .view = view}}, view.size());
  for (const MemoryView& memory : {view, joined}) {
    ASSERT_TRUE(handle->Write(folder / "file", memory).has_value());
    EXPECT_EQ(handle->Read(folder / "file", memory).error().error_number(), EINVAL);
    EXPECT_EQ(handle->StartRead(folder / "file", memory).error().error_number(), EINVAL);
    const ByteRange range{.size = memory.size()};
    EXPECT_EQ(handle->ReadRanges(folder / "file", {&range, 1}, memory).error().error_number(), EINVAL);
    const NamedMemory named{.name = "file", .memory = memory};
    EXPECT_EQ(handle->LoadMany(folder / ".", {&named, 1}).error().error_number(), EINVAL);
    const auto reader = RandomReader::Open(folder / "file").value();
    EXPECT_EQ(reader->Read(0, memory).error().error_number(), EINVAL);
    EXPECT_EQ(reader->StartRows({}, 0, MemoryView(std::span(constant).first(0))).error().error_number(), EINVAL);
  }
}

}  // namespace
}  // namespace weightfs::client

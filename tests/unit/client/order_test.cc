// Operations that overlap, of which one writes: as if each had ended before the next began.
#include <gtest/gtest.h>

#include <latch>
#include <random>
#include <thread>

#include "client/handle.h"
#include "common/units.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {
namespace {

using std::chrono_literals::operator""ms;

constexpr auto kShort = 50ms;  // in which what is not held up would have ended

std::unique_ptr<Handle> Make(unsigned threads = 2) {
  return std::move(
      Handle::Create({.block_size = 4096, .queue_depth = 4, .overlap_events = true, .intra_op_parallelism = threads})
          .value());
}

MemoryView View(Bytes& bytes) {
  return MemoryView(std::span<std::byte>(bytes));
}

// A write that stands still, and its ring with it, after its first transfer until it is let go.
class StandingWrite {
 public:
  StandingWrite(Handle& handle, const std::string& path, Bytes& bytes, std::optional<uint64_t> offset = 0)
      : operation_(handle
                       .StartWrite(path, View(bytes),
                                   {.offset = offset,
                                    .progress =
                                        [this](uint64_t, uint64_t) {
                                          if (begun_.exchange(true)) return;
                                          stands_.count_down();
                                          go_.wait();
                                        }})
                       .value()) {
    stands_.wait();
  }
  ~StandingWrite() { LetGo(); }
  void LetGo() {
    if (!gone_.exchange(true)) go_.count_down();
  }
  Operation& operator*() const { return *operation_; }
  Operation* operator->() const { return operation_.get(); }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> gone_{false};
  std::latch stands_{1};
  std::latch go_{1};
  std::shared_ptr<Operation> operation_;
};

TEST(OrderTest, AnOverlappingWriteBeginsWhenTheEarlierOneIsDoneAndOthersAreNotHeldUp) {
  const Folder folder;
  const auto handle = Make(3);
  WriteFile(folder / "file", Bytes(16'384));
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  const auto held = handle->StartWrite(folder / "file", View(second), {.offset = 2048}).value();
  const auto beside = handle->StartWrite(folder / "file", View(second), {.offset = 8192}).value();
  const auto elsewhere = handle->StartWrite(folder / "other", View(second)).value();
  beside->Wait();
  elsewhere->Wait();
  EXPECT_FALSE(held->Wait(kShort));
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  Bytes expected = AfterWrite(AfterWrite(AfterWrite(Bytes(16'384), 0, first), 2048, second), 8192, second);
  EXPECT_EQ(ReadFile(folder / "file"), expected);
  EXPECT_EQ(handle->Wait().count, 4U);
}

TEST(OrderTest, AReadWaitsForAWriteOfItsRangeAndReadsDoNotWaitForEachOther) {
  const Folder folder;
  const auto handle = Make();
  WriteFile(folder / "file", Bytes(8192));
  Bytes bytes = RandomBytes(4096, 1);
  Bytes target(4096);
  Bytes others(4096);
  StandingWrite standing(*handle, folder / "file", bytes);
  const auto held = handle->StartRead(folder / "file", View(target)).value();
  EXPECT_TRUE(handle->StartRead(folder / "file", View(others), {.offset = 4096}).value()->Wait());
  EXPECT_FALSE(held->Wait(kShort));
  standing.LetGo();
  handle->Wait();
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, ASynchronousOperationWaitsToo) {
  const Folder folder;
  const auto handle = Make();
  Bytes bytes = RandomBytes(4096, 1);
  WriteFile(folder / "file", Bytes(4096));
  StandingWrite standing(*handle, folder / "file", bytes);
  Bytes target(4096);
  std::atomic<bool> ended = false;
  std::thread reader([&] {
    EXPECT_TRUE(handle->Read(folder / "file", View(target)).has_value());
    ended = true;
  });
  EXPECT_FALSE(standing->Wait(kShort));
  EXPECT_FALSE(ended);
  standing.LetGo();
  reader.join();
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, TheLastOfSeveralWholeFilesIsWhatStays) {
  const Folder folder;
  const auto handle = Make();
  Bytes large = RandomBytes(300'000, 1);
  Bytes small = RandomBytes(1000, 2);
  Bytes none;
  for (Bytes* last : {&small, &large, &none}) {
    StandingWrite standing(*handle, folder / "file", large, std::nullopt);
    ASSERT_TRUE(handle->StartWrite(folder / "file", View(small)).has_value());
    ASSERT_TRUE(handle->StartWrite(folder / "file", View(*last)).has_value());
    standing.LetGo();
    EXPECT_EQ(handle->Wait().count, 3U);
    EXPECT_EQ(ReadFile(folder / "file"), *last);
  }
}

TEST(OrderTest, AWriteThatIsCancelledTakesNothingOfTheOneBefore) {
  const Folder folder;
  const auto handle = Make();
  Bytes before = RandomBytes(300'000, 1);
  Bytes small = RandomBytes(1000, 2);
  StandingWrite standing(*handle, folder / "file", before, std::nullopt);
  const auto held = handle->StartWrite(folder / "file", View(small)).value();
  EXPECT_TRUE(held->Cancel());
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  EXPECT_TRUE(held->cancelled());
  EXPECT_EQ(ReadFile(folder / "file"), before);
}

// It made the file, and takes it back; the one behind makes it again.
TEST(OrderTest, AWriteThatIsCancelledTakesNothingOfTheOneBehind) {
  const Folder folder;
  const auto handle = Make();
  Bytes large = RandomBytes(300'000, 1);
  Bytes behind = RandomBytes(1000, 2);
  StandingWrite standing(*handle, folder / "new", large, std::nullopt);
  const auto held = handle->StartWrite(folder / "new", View(behind)).value();
  EXPECT_TRUE(standing->Cancel());
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  EXPECT_FALSE(held->error());
  EXPECT_TRUE(standing->cancelled());
  EXPECT_EQ(ReadFile(folder / "new"), behind);
}

TEST(OrderTest, ADescriptorMayBeClosedWhileItsOperationIsHeldUp) {
  const Folder folder;
  const auto handle = Make();
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  const int descriptor = open((folder / "file").c_str(), O_WRONLY);
  const auto held = handle->StartWrite(descriptor, View(second)).value();
  close(descriptor);
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  EXPECT_FALSE(held->error());
  EXPECT_EQ(ReadFile(folder / "file"), second);
}

TEST(OrderTest, TheEndOfTheHandleCancelsWhatIsHeldUp) {
  const Folder folder;
  auto handle = Make();
  Bytes first = RandomBytes(300'000, 1);
  Bytes second = RandomBytes(1000, 2);
  auto standing = std::make_unique<StandingWrite>(*handle, folder / "file", first, std::nullopt);
  std::vector<std::shared_ptr<Operation>> held;
  for (int i = 0; i < 20; ++i) {
    held.push_back(handle->StartWrite(folder / "file", View(second), {.own_errors = true}).value());
  }
  std::atomic<int> called = 0;
  for (const auto& operation : held) operation->OnDone([&] { ++called; });
  std::thread ending([&] { handle.reset(); });
  while (!held.back()->stopped()) std::this_thread::yield();
  standing->LetGo();
  ending.join();
  for (const auto& operation : held) EXPECT_TRUE(operation->cancelled());
  EXPECT_EQ(called, 20);
}

TEST(OrderTest, ACallbackMayStartWhatOverlaps) {
  const Folder folder;
  const auto handle = Make();
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  const auto held = handle->StartWrite(folder / "file", View(first), {.offset = 0}).value();
  standing->OnDone([&] { ASSERT_TRUE(handle->StartWrite(folder / "file", View(second), {.offset = 0}).has_value()); });
  standing.LetGo();
  held->Wait();
  EXPECT_EQ(handle->Wait().count, 3U);
  EXPECT_EQ(ReadFile(folder / "file"), second);
}

// Against a model that does one after the other.
class RandomOrderTest : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomOrderTest, testing::Range(1U, 9U));

TEST_P(RandomOrderTest, WhatIsReadAndLeftIsWhatOneAfterTheOtherGives) {
  constexpr size_t kSize = 100'000;
  constexpr size_t kOperations = 400;
  std::mt19937 random(GetParam());
  const auto below = [&](size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random); };
  const Folder folder;
  const auto handle = Make(1 + GetParam() % 4);
  Bytes model(kSize);
  WriteFile(folder / "file", model);
  std::vector<Bytes> memory(kOperations);
  std::vector<Bytes> expected(kOperations);
  for (size_t i = 0; i < kOperations; ++i) {
    const size_t begin = below(kSize);
    const size_t size = 1 + below(kSize - begin);
    if (below(2) == 0) {
      memory[i] = RandomBytes(size, static_cast<unsigned>(i));
      model = AfterWrite(std::move(model), begin, memory[i]);
      expected[i] = memory[i];
      ASSERT_TRUE(handle->StartWrite(folder / "file", View(memory[i]), {.offset = begin}).has_value());
    } else {
      memory[i] = Bytes(size);
      expected[i] = {model.begin() + static_cast<long>(begin), model.begin() + static_cast<long>(begin + size)};
      ASSERT_TRUE(handle->StartRead(folder / "file", View(memory[i]), {.offset = begin}).has_value());
    }
  }
  const auto completed = handle->Wait();
  EXPECT_EQ(completed.count, kOperations);
  EXPECT_EQ(ReadFile(folder / "file"), model);
  EXPECT_EQ(memory, expected);
}

}  // namespace
}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Overlapping operations of which one writes behave as if each had ended before the next began.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/vfs.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <latch>
#include <thread>

#include "client/handle.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

TEST(OrderTest, AnOverlappingWriteWaitsForTheEarlierOneAndOthersDoNot) {
  const Folder folder;
  const auto handle = MakeHandle(5);
  WriteFile(folder / "file", Bytes(16'384));
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  const auto held = handle->StartWrite(folder / "file", View(second), {.offset = 2048}).value();
  const auto beside = handle->StartWrite(folder / "file", View(second), {.offset = 8192}).value();
  const auto elsewhere = handle->StartWrite(folder / "other", View(second)).value();
  beside->Wait();
  elsewhere->Wait();
  WaitUntilIdle();
  EXPECT_FALSE(held->done());
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  Bytes expected = AfterWrite(AfterWrite(AfterWrite(Bytes(16'384), 0, first), 2048, second), 8192, second);
  EXPECT_EQ(ReadFile(folder / "file"), expected);
  EXPECT_EQ(handle->Wait().count, 4U);
}

TEST(OrderTest, AWriteOfAFileThatWasDeletedUnderAnotherRangeCreatesItAtOnce) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  std::filesystem::remove(folder / "file");
  const auto beside = handle->StartWrite(folder / "file", View(second), {.offset = 8192}).value();
  EXPECT_TRUE(beside->Wait());
  EXPECT_FALSE(standing->done());
  EXPECT_EQ(ReadFile(folder / "file"), AfterWrite(Bytes(8192), 8192, second));
}

TEST(OrderTest, AReadWaitsForAWriteOfItsRangeAndReadsDoNotWaitForEachOther) {
  const Folder folder;
  const auto handle = MakeHandle(3);
  WriteFile(folder / "file", Bytes(8192));
  Bytes bytes = RandomBytes(4096, 1);
  Bytes target(4096);
  Bytes others(4096);
  StandingWrite standing(*handle, folder / "file", bytes);
  const auto held = handle->StartRead(folder / "file", View(target)).value();
  EXPECT_TRUE(handle->StartRead(folder / "file", View(others), {.offset = 4096}).value()->Wait());
  WaitUntilIdle();
  EXPECT_FALSE(held->done());
  standing.LetGo();
  handle->Wait();
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, ASynchronousReadWaitsForAnEarlierWrite) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(4096, 1);
  WriteFile(folder / "file", Bytes(4096));
  StandingWrite standing(*handle, folder / "file", bytes);
  Bytes target(4096);
  auto read = StartUntilBlocked([&] { return handle->Read(folder / "file", View(target)); });
  EXPECT_FALSE(HasEnded(read));
  standing.LetGo();
  EXPECT_TRUE(read.get().has_value());
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, TheLastOfSeveralWholeWritesRemains) {
  const Folder folder;
  const auto handle = MakeHandle();
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

// Two writes of one new file. The first one is blocked and makes the second one wait.
struct TwoWrites {
  const Folder folder;
  const std::string path = folder / "new";
  Bytes first = RandomBytes(300'000, 1);
  Bytes second = RandomBytes(1000, 2);
  const std::unique_ptr<Handle> handle = MakeHandle();
  StandingWrite standing{*handle, path, first, std::nullopt};
  const std::shared_ptr<Operation> held = handle->StartWrite(path, View(second)).value();
};

TEST(OrderTest, ACanceledWriteKeepsTheFileOfTheEarlierWrite) {
  TwoWrites writes;
  EXPECT_TRUE(writes.held->Cancel());
  writes.standing.LetGo();
  EXPECT_TRUE(writes.held->Wait());
  EXPECT_TRUE(writes.held->cancelled());
  EXPECT_EQ(ReadFile(writes.path), writes.first);
}

// It created the file and rolls it back; the later write creates it again.
TEST(OrderTest, ACanceledWriteKeepsTheFileOfTheLaterWrite) {
  TwoWrites writes;
  EXPECT_TRUE(writes.standing->Cancel());
  writes.standing.LetGo();
  EXPECT_TRUE(writes.held->Wait());
  EXPECT_FALSE(writes.held->error());
  EXPECT_TRUE(writes.standing->cancelled());
  EXPECT_EQ(ReadFile(writes.path), writes.second);
}

// No later operation gets in between: the file is created again with another inode, and the others still wait for it.
TEST(OrderTest, AFileThatIsCreatedAgainKeepsTheOrder) {
  const Folder folder;
  const std::string path = folder / "new";
  const auto handle = MakeHandle(3);
  Bytes first = RandomBytes(300'000, 1);
  Bytes second = RandomBytes(300'000, 2);
  Bytes last = RandomBytes(1000, 3);
  std::atomic<bool> begun = false;
  std::latch stands{1};
  std::latch go{1};
  StandingWrite standing(*handle, path, first, std::nullopt);
  const auto held = handle->StartWrite(path, View(second), {.progress = [&](uint64_t, uint64_t) {
                                         if (begun.exchange(true)) return;
                                         stands.count_down();
                                         go.wait();
                                       }});
  ASSERT_TRUE(held.has_value());
  standing->Cancel();
  standing.LetGo();
  stands.wait();
  std::vector<std::shared_ptr<Operation>> later;
  for (int i = 0; i < 3; ++i) later.push_back(handle->StartWrite(path, View(last)).value());
  WaitUntilIdle();
  for (const auto& operation : later) EXPECT_FALSE(operation->done());
  go.count_down();
  EXPECT_EQ(handle->Wait().count, 4U);
  EXPECT_EQ(ReadFile(path), last);
}

TEST(OrderTest, APathKeepsItsOrderWhenAnotherFileIsRenamedToIt) {
  const Folder folder;
  const std::string path = folder / "file";
  const auto handle = MakeHandle(3);
  Bytes first = RandomBytes(3000, 1);
  Bytes second = RandomBytes(4096, 2);
  Bytes last = RandomBytes(1000, 3);
  StandingWrite standing(*handle, path, first, std::nullopt);
  ASSERT_TRUE(handle->StartWrite(path, View(second)).has_value());
  WriteFile(folder / "other", RandomBytes(5000, 4));
  std::filesystem::rename(folder / "other", path);
  const auto behind = handle->StartWrite(path, View(last)).value();
  WaitUntilIdle();
  EXPECT_FALSE(behind->done());
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 3U);
  EXPECT_EQ(ReadFile(path), last);
}

// It fails before its first transfer and removes the file that it created, but not from the operations that waited for
// it.
TEST(OrderTest, AWriteThatFailsToBeginKeepsTheFileOfTheLaterWrite) {
  constexpr size_t kTooLarge = size_t{17} << 40;  // too large for a file on ext4, so its blocks cannot be reserved
  const Folder folder;
  struct statfs filesystem {};
  ASSERT_EQ(statfs((folder / "").c_str(), &filesystem), 0);
  if (filesystem.f_type != EXT4_SUPER_MAGIC) GTEST_SKIP() << "needs TMPDIR on ext4";
  void* reserved = mmap(nullptr, kTooLarge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) GTEST_SKIP() << "no address space";
  const MemoryView too_large(std::span(static_cast<std::byte*>(reserved), kTooLarge));
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(1000);
  size_t lost = 0;
  for (int i = 0; i < 500; ++i) {
    const std::string path = folder / std::to_string(i);
    std::latch ready{3};
    std::vector<std::thread> others;
    for (int other = 0; other < 2; ++other) {
      others.emplace_back([&] {
        ready.arrive_and_wait();
        const auto refused = handle->StartWrite(path, too_large, {.own_errors = true});
        if (refused.has_value()) (*refused)->Cancel();
      });
    }
    ready.arrive_and_wait();
    const auto written = handle->StartWrite(path, View(bytes), {.own_errors = true});
    for (auto& other : others) other.join();
    ASSERT_TRUE(written.has_value());
    EXPECT_TRUE((*written)->Wait());
    if ((*written)->error() == std::nullopt && ReadFile(path) != bytes) ++lost;
    std::filesystem::remove(path);
  }
  munmap(reserved, kTooLarge);
  EXPECT_EQ(lost, 0U);
}

TEST(OrderTest, ADescriptorMayBeClosedWhileItsOperationIsHeld) {
  const Folder folder;
  const auto handle = MakeHandle();
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

TEST(OrderTest, DestroyingTheHandleCancelsHeldOperations) {
  const Folder folder;
  auto handle = MakeHandle();
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

TEST(OrderTest, ACallbackMayStartAnOverlappingOperation) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes first = RandomBytes(4096, 1);
  Bytes second = RandomBytes(4096, 2);
  StandingWrite standing(*handle, folder / "file", first);
  const auto held = handle->StartWrite(folder / "file", View(first), {.offset = 0}).value();
  std::latch started{1};
  standing->OnDone([&] {
    EXPECT_TRUE(handle->StartWrite(folder / "file", View(second), {.offset = 0}).has_value());
    started.count_down();
  });
  standing.LetGo();
  held->Wait();
  started.wait();
  EXPECT_EQ(handle->Wait().count, 3U);
  EXPECT_EQ(ReadFile(folder / "file"), second);
}

TEST(OrderTest, AReadOfAFileThatIsBeingWrittenGetsTheWholeFile) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes target(bytes.size());
  StandingWrite standing(*handle, folder / "new", bytes, std::nullopt);
  const auto held = handle->StartRead(folder / "new", View(target)).value();
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  EXPECT_FALSE(held->error());
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, AHeldReadVerifiesTheFileThatTheEarlierWriteLeaves) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes old = RandomBytes(8192, 1);
  Bytes bytes = RandomBytes(8192, 2);
  Bytes target(bytes.size());
  if (!handle->Write(folder / "file", View(old), {.checksum = true}).has_value())
    GTEST_SKIP() << "no user attributes here";
  StandingWrite standing(*handle, folder / "file", old);
  ASSERT_TRUE(handle->StartWrite(folder / "file", View(bytes), {.checksum = true}).has_value());
  const auto held = handle->StartRead(folder / "file", View(target), {.verify = true});
  ASSERT_TRUE(held.has_value()) << held.error().what;
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 3U);
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, AHeldWriteThatIsCanceledChangesNothing) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes larger = RandomBytes(8 << 20, 2);  // blocks would be reserved for it
  Bytes none;
  StandingWrite standing(*handle, folder / "file", bytes, std::nullopt);
  for (Bytes* other : {&larger, &none}) {
    const auto held = handle->StartWrite(folder / "file", View(*other)).value();
    EXPECT_TRUE(held->Cancel());
    if (other == &none) standing.LetGo();
  }
  const auto completed = handle->Wait();
  EXPECT_EQ(completed.count, 1U);
  EXPECT_EQ(completed.failed, 2U);
  EXPECT_EQ(ReadFile(folder / "file"), bytes);
}

TEST(OrderTest, AWriteThatWaitsCreatesItsFileWhenItBegins) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes later = RandomBytes(5000, 2);
  for (const std::optional<uint64_t> offset : {std::optional<uint64_t>{}, std::optional<uint64_t>{0}}) {
    StandingWrite standing(*handle, folder / "new", bytes, std::nullopt, true);
    const auto cancelled = handle->StartWrite(folder / "new", View(later), {.offset = offset}).value();
    EXPECT_TRUE(cancelled->Cancel());
    EXPECT_FALSE(std::filesystem::exists(folder / "new"));
    standing->Cancel();
    standing.LetGo();
    EXPECT_EQ(handle->Wait().failed, 2U);
    EXPECT_EQ(folder.entries(), 0U);
  }
  StandingWrite standing(*handle, folder / "new", bytes, std::nullopt, true);
  ASSERT_TRUE(handle->StartWrite(folder / "new", View(later), {.durable = true}).has_value());
  standing->Cancel();
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 1U);
  EXPECT_EQ(ReadFile(folder / "new"), later);
}

TEST(OrderTest, AppendsKeepTheOrderOfTheirStart) {
  const Folder folder;
  const auto handle = MakeHandle();
  WriteFile(folder / "file", RandomBytes(5000));
  Bytes expected = RandomBytes(5000);
  const int descriptor = open((folder / "file").c_str(), O_WRONLY | O_APPEND);
  std::vector<Bytes> parts;
  for (unsigned i = 0; i < 20; ++i) parts.push_back(RandomBytes(1 + 7919 * i, i));
  for (Bytes& part : parts) {
    ASSERT_TRUE(handle->StartWrite(descriptor, View(part)).has_value());
    expected.insert(expected.end(), part.begin(), part.end());
  }
  close(descriptor);
  EXPECT_EQ(handle->Wait().count, parts.size());
  EXPECT_EQ(ReadFile(folder / "file"), expected);
}

TEST(OrderTest, ARelativePathIsResolvedAtTheStart) {
  const Folder folder;
  const auto handle = MakeHandle();
  const auto second = MakeHandle();
  const auto before = std::filesystem::current_path();
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes later = RandomBytes(5000, 2);
  std::filesystem::current_path(folder / ".");
  StandingWrite standing(*handle, "file", bytes, std::nullopt);
  ASSERT_TRUE(handle->StartWrite("file", View(later)).has_value());
  StandingWrite other(*second, "atomic", bytes, std::nullopt, true);
  std::filesystem::current_path(before);
  standing.LetGo();
  other.LetGo();
  other->Wait();
  EXPECT_FALSE(other->error());
  EXPECT_EQ(handle->Wait().count, 2U);
  EXPECT_EQ(ReadFile(folder / "file"), later);
  EXPECT_EQ(ReadFile(folder / "atomic"), bytes);
  EXPECT_EQ(folder.entries(), 2U);
}

TEST(OrderTest, SaveManyAndLoadManyWaitForEarlierOperations) {
  const Folder folder;
  const auto handle = MakeHandle(3);
  Bytes first = RandomBytes(3000, 1);
  Bytes second = RandomBytes(3000, 2);
  Bytes target(3000);
  const pid_t caller = gettid();
  std::filesystem::create_directory(folder / "below");
  for (const char* directory : {".", "", "below/.."}) {
    WriteFile(folder / "a", Bytes(3000));
    std::filesystem::remove(folder / "b");
    std::filesystem::create_hard_link(folder / "a", folder / "b");  // it must wait for the others, not for itself
    for (const bool atomic : {false, true}) {
      StandingWrite standing(*handle, folder / "a", first, std::nullopt, atomic);
      std::thread go([&] {
        WaitUntilIdle({caller});
        standing.LetGo();
      });
      const std::vector<NamedMemory> files{{"a", View(second)}, {"b", View(second)}};
      EXPECT_TRUE(handle->SaveMany(folder / directory, files).has_value());
      EXPECT_TRUE(standing->done());
      go.join();
      EXPECT_EQ(ReadFile(folder / "a"), second);
    }
    StandingWrite standing(*handle, folder / "a", first, std::nullopt, true);
    std::thread go([&] {
      WaitUntilIdle({caller});
      standing.LetGo();
    });
    const std::vector<NamedMemory> files{{"a", View(target)}};
    EXPECT_TRUE(handle->LoadMany(folder / directory, files).has_value());
    go.join();
    EXPECT_EQ(target, first);
  }
}

TEST(OrderTest, AnInterruptedSaveManyKeepsTheOrderOfOtherOperations) {
  const Folder folder;
  const auto handle = MakeHandle(3);
  Bytes first = RandomBytes(3000, 1);
  Bytes second = RandomBytes(1000, 2);
  StandingWrite standing(*handle, folder / "a", first, std::nullopt);
  const std::vector<NamedMemory> files{{"a", View(second)}};
  const auto saved = handle->SaveMany(folder / ".", files, {.interrupted = [] { return true; }});
  EXPECT_EQ(saved.error().error_number(), ECANCELED);
  const auto behind = handle->StartWrite(folder / "a", View(second)).value();
  WaitUntilIdle();
  EXPECT_FALSE(behind->done());
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 2U);
  EXPECT_EQ(ReadFile(folder / "a"), second);
}

// The open at the turn of a held operation waits for another program to release its fcntl(2) lease of the file.
TEST(OrderTest, ASlowOpenDelaysNoOtherOperation) {
  const Folder folder;
  const auto handle = MakeHandle(1);
  Bytes bytes = RandomBytes(4096, 1);
  WriteFile(folder / "slow", Bytes(8192));
  WriteFile(folder / "leased", Bytes(8192));
  const UniqueFd leased(open((folder / "leased").c_str(), O_RDONLY | O_CLOEXEC));
  signal(SIGIO, SIG_IGN);  // the kernel's request to release the lease
  if (fcntl(leased.get(), F_SETLEASE, F_RDLCK) != 0) GTEST_SKIP() << "no leases of files here";
  StandingWrite standing(*handle, folder / "slow", bytes);
  const auto held = handle->StartWrite(folder / "slow", View(bytes), {.offset = 0}).value();
  std::filesystem::rename(folder / "leased", folder / "slow");
  standing.LetGo();
  EXPECT_TRUE(standing->Wait());
  for (int i = 0; i < 10; ++i) {
    const std::string path = folder / std::to_string(i);
    const auto other = handle->StartWrite(path, View(bytes)).value();
    const auto behind = handle->StartWrite(path, View(bytes)).value();  // its open is at its turn, too
    EXPECT_TRUE(other->Wait(std::chrono::seconds(20)));
    EXPECT_TRUE(behind->Wait(std::chrono::seconds(20)));
    EXPECT_FALSE(held->done());
    if (HasFailure()) break;
  }
  EXPECT_EQ(fcntl(leased.get(), F_SETLEASE, F_UNLCK), 0);
  EXPECT_TRUE(held->Wait());
  EXPECT_FALSE(held->error());
  EXPECT_EQ(ReadFile(folder / "slow"), AfterWrite(Bytes(8192), 0, bytes));
}

// The directory may be open under a path that this process may not search.
TEST(OrderTest, ARelativePathNeedsNoPermissionForTheDirectoriesAbove) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const Folder folder;
  const auto handle = MakeHandle();
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directories(folder / "closed/open");
  std::filesystem::permissions(folder / "closed/open", std::filesystem::perms::all);
  std::filesystem::permissions(folder / "closed", std::filesystem::perms::owner_all);
  std::filesystem::current_path(folder / "closed/open");
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes target(bytes.size());
  Result<void> written, replaced, read;
  std::thread([&] {
    setfsuid(65'534);  // only for this thread
    written = handle->Write("file", View(bytes));
    replaced = handle->Write("file", View(bytes), {.atomic = true});
    read = handle->Read("file", View(target));
  }).join();
  std::filesystem::current_path(before);
  EXPECT_TRUE(written.has_value()) << written.error().what;
  EXPECT_TRUE(replaced.has_value()) << replaced.error().what;
  EXPECT_TRUE(read.has_value()) << read.error().what;
  EXPECT_EQ(target, bytes);
}

TEST(OrderTest, AnInterruptedReadDoesNotWaitForTheEarlierWrite) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(4096, 1);
  WriteFile(folder / "file", Bytes(4096));
  StandingWrite standing(*handle, folder / "file", bytes);
  Bytes target(4096);
  const auto read = handle->Read(folder / "file", View(target), {.interrupted = [] { return true; }});
  EXPECT_EQ(read.error().error_number(), ECANCELED);
  EXPECT_FALSE(standing->done());
  standing.LetGo();
  standing->Wait();
  EXPECT_EQ(handle->Wait().count, 1U);
  EXPECT_EQ(target, Bytes(4096));
}

}  // namespace
}  // namespace weightfs::client

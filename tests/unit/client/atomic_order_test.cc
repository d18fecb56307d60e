// SPDX-License-Identifier: Apache-2.0
// Overlapping operations of which one is an atomic write.
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "client/handle.h"
#include "tests/unit/client/files.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

// The number of its temporary file may become that of another file.
TEST(AtomicOrderTest, APendingAtomicWriteIsListedByItsPathAlone) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(300'000, 1);
  StandingWrite standing(*handle, folder / "new", bytes, std::nullopt, /*atomic=*/true);
  const auto temporary = std::filesystem::directory_iterator(folder / "")->path();  // the only file
  std::filesystem::create_hard_link(temporary, folder / "other");
  const auto other = handle->StartWrite(folder / "other", View(bytes), {.offset = 0}).value();
  EXPECT_TRUE(other->Wait(std::chrono::minutes(1)));
  EXPECT_FALSE(other->error());
  EXPECT_FALSE(standing->done());
}

TEST(AtomicOrderTest, TheLastOfSeveralAtomicWritesRemainsAndIsReadAfterIt) {
  const Folder folder;
  const auto handle = MakeHandle(4);
  WriteFile(folder / "file", Bytes(4000));
  Bytes first = RandomBytes(3000, 1);
  Bytes second = RandomBytes(4000, 2);
  Bytes patch = RandomBytes(100, 3);
  Bytes target(4000);
  StandingWrite standing(*handle, folder / "file", first, std::nullopt, true);
  ASSERT_TRUE(handle->StartWrite(folder / "file", View(second), {.atomic = true}).has_value());
  ASSERT_TRUE(handle->StartWrite(folder / "file", View(patch), {.offset = 1000}).has_value());
  ASSERT_TRUE(handle->StartRead(folder / "file", View(target)).has_value());
  WaitUntilIdle();
  EXPECT_EQ(ReadFile(folder / "file"), Bytes(4000));
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 4U);
  EXPECT_EQ(target, AfterWrite(second, 1000, patch));
  EXPECT_EQ(ReadFile(folder / "file"), target);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(AtomicOrderTest, AReadWaitsForTheFileThatAnAtomicWriteIsGoingToCreate) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(300'000, 1);
  Bytes target(bytes.size());
  EXPECT_EQ(handle->StartRead(folder / "new", View(target)).error().error_number(), ENOENT);
  {
    StandingWrite standing(*handle, folder / "new", bytes, std::nullopt, true);
    const auto read = handle->StartRead(folder / "new", View(target));
    ASSERT_TRUE(read.has_value()) << read.error().what;
    WaitUntilIdle();
    EXPECT_FALSE((*read)->done());
    EXPECT_EQ(handle->StartRead(folder / "other", View(target)).error().error_number(), ENOENT);
    standing.LetGo();
    EXPECT_EQ(handle->Wait().count, 2U);
    EXPECT_EQ(target, bytes);
  }
  // The file does not exist either when the write fails.
  std::filesystem::remove(folder / "new");
  StandingWrite standing(*handle, folder / "new", bytes, std::nullopt, true);
  const auto read = handle->StartRead(folder / "new", View(target), {.own_errors = true}).value();
  standing->Cancel();
  standing.LetGo();
  EXPECT_TRUE(read->Wait());
  EXPECT_EQ(read->error().value_or(Error{}).error_number(), ENOENT);
}

// The write was pending before the read looked for the file, and done afterwards.
TEST(AtomicOrderTest, AReadFindsTheFileThatAnAtomicWriteHasJustCreated) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes bytes = RandomBytes(100, 1);
  Bytes target(bytes.size());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(handle->StartWrite(folder / "new", View(bytes), {.atomic = true}).has_value());
    const auto begin = std::chrono::steady_clock::now();  // vary the delay, to hit every moment of the write
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(i % 200)) {
    }
    ASSERT_TRUE(handle->StartRead(folder / "new", View(target)).has_value()) << i;
    ASSERT_EQ(handle->Wait().count, 2U);
    ASSERT_EQ(target, bytes);
    std::filesystem::remove(folder / "new");
  }
}

TEST(AtomicOrderTest, AHeldAtomicWriteThatIsCanceledLeavesNoFile) {
  const Folder folder;
  const auto handle = MakeHandle();
  Bytes first = RandomBytes(300'000, 1);
  Bytes second = RandomBytes(5000, 2);
  StandingWrite standing(*handle, folder / "file", first, std::nullopt, true);
  const auto held = handle->StartWrite(folder / "file", View(second), {.atomic = true}).value();
  EXPECT_TRUE(held->Cancel());
  standing.LetGo();
  EXPECT_TRUE(held->Wait());
  EXPECT_TRUE(held->cancelled());
  standing->Wait();
  EXPECT_EQ(ReadFile(folder / "file"), first);
  EXPECT_EQ(folder.entries(), 1U);
}

}  // namespace
}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
#include "fs/handles.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

namespace weightfs {
namespace {

TEST(OpenMode, EverythingIsDirectWhereDirectFilesCanBeMapped) {
  for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_RDONLY | O_DIRECT, O_RDWR | O_DIRECT | O_APPEND})
    EXPECT_EQ(ChooseOpenMode(flags, true), OpenMode::kDirect) << flags;
}

TEST(OpenMode, OlderKernelsMapThroughThePageCache) {
  EXPECT_EQ(ChooseOpenMode(O_RDONLY, false), OpenMode::kPageCache);
  EXPECT_EQ(ChooseOpenMode(O_RDWR | O_APPEND, false), OpenMode::kPageCache);
  EXPECT_EQ(ChooseOpenMode(O_WRONLY, false), OpenMode::kDirect);
  EXPECT_EQ(ChooseOpenMode(O_RDONLY | O_DIRECT, false), OpenMode::kDirect);
  EXPECT_EQ(ChooseOpenMode(O_RDWR | O_DIRECT, false), OpenMode::kDirect);
}

TEST(DirectoryHandle, APermissionIsForOneChangeThatBeginsWithinHalfAMinute) {
  std::atomic<uint64_t> memory = 0;
  DirectoryHandle directory(nullptr, memory);
  EXPECT_FALSE(directory.TakeChange());
  directory.PermitChange();
  EXPECT_TRUE(directory.TakeChange());
  EXPECT_FALSE(directory.TakeChange());
  const auto now = DirectoryHandle::Clock::now();
  directory.PermitChange(now);
  EXPECT_FALSE(directory.TakeChange(now + std::chrono::seconds(30)));
}

TEST(DirectoryHandle, EachOfSeveralThreadsHasItsPermission) {
  std::atomic<uint64_t> memory = 0;
  DirectoryHandle directory(nullptr, memory);
  const auto now = DirectoryHandle::Clock::now();
  for (int i = 0; i < 3; ++i) directory.PermitChange(now + std::chrono::seconds(i));
  EXPECT_TRUE(directory.TakeChange(now + std::chrono::seconds(30))) << "the first has ended";
  EXPECT_TRUE(directory.TakeChange(now + std::chrono::seconds(30)));
  EXPECT_FALSE(directory.TakeChange(now + std::chrono::seconds(30)));
  for (size_t i = 0; i < 2 * DirectoryHandle::kMostPermits; ++i) directory.PermitChange();
  size_t taken = 0;
  while (directory.TakeChange()) ++taken;
  EXPECT_EQ(taken, DirectoryHandle::kMostPermits);
}

TEST(HandleRegistry, OwnsAHandleUntilItsRelease) {
  HandleRegistry<FileHandle> registry;
  auto handle = std::make_shared<FileHandle>();
  const std::weak_ptr<FileHandle> watch = handle;
  const uint64_t number = registry.Add(std::move(handle));
  {
    const auto under_way = registry.Get(number);
    EXPECT_EQ(registry.Remove(number), under_way);
    EXPECT_FALSE(watch.expired()) << "a request still uses it";
  }
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(registry.Remove(number), nullptr);
}

TEST(HandleRegistry, ReturnsHandlesThatTheKernelNeverReleased) {
  HandleRegistry<FileHandle> registry;
  const uint64_t released = registry.Add(std::make_shared<FileHandle>());
  const uint64_t left = registry.Add(std::make_shared<FileHandle>());
  ASSERT_NE(registry.Remove(released), nullptr);
  const auto all = registry.RemoveAll();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(reinterpret_cast<uint64_t>(all[0].get()), left);
  EXPECT_TRUE(registry.RemoveAll().empty());
}

}  // namespace
}  // namespace weightfs

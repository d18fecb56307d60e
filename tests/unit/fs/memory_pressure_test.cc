// SPDX-License-Identifier: Apache-2.0
#include "fs/memory_pressure.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "tests/support/result_asserts.h"

namespace weightfs {
namespace {

TEST(MemoryPressure, IsWatchedWhereTheKernelCountsIt) {
  if (!UniqueFd(open("/proc/pressure/memory", O_RDWR | O_CLOEXEC))) {
    GTEST_SKIP() << "the kernel does not count pressure, or does not say so to this user";
  }
  const auto watch = MemoryPressure::Watch([] {}, [] {});
  ASSERT_OK(watch);
  EXPECT_TRUE((*watch)->is_told());  // and ends at once
}

TEST(MemoryPressure, MemoryIsTendedWithoutAnyPressure) {
  std::promise<void> tended;
  std::atomic<bool> once{false};
  const auto watch = MemoryPressure::Watch([] {}, [&] {
    if (!once.exchange(true)) tended.set_value();
  });
  ASSERT_OK(watch);
  tended.get_future().wait();
}

}  // namespace
}  // namespace weightfs

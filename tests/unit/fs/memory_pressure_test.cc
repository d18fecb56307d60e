// SPDX-License-Identifier: Apache-2.0
#include "fs/memory_pressure.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "tests/support/result_asserts.h"

namespace weightfs {
namespace {

TEST(MemoryPressure, IsWatchedWhereTheKernelCountsIt) {
  if (!UniqueFd(open("/proc/pressure/memory", O_RDWR | O_CLOEXEC))) {
    GTEST_SKIP() << "the kernel does not count pressure, or does not say so to this user";
  }
  ASSERT_OK(MemoryPressure::Watch([] {}));  // and ends at once
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "common/machine_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() { Write("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree:          100 kB\n"); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  uint64_t Limit() const { return FindMemoryLimit(root_)->size.value; }
  const TemporaryDirectory directory_;
  const std::string root_ = directory_.path().string();
};

TEST_F(MachineMemoryTest, WithoutACgroupItIsTheMachines) {
  EXPECT_EQ(Limit(), 8 * kGiB);
  EXPECT_EQ(FindMemoryLimit(root_)->source, "this machine");
}

TEST_F(MachineMemoryTest, TheSmallestLimitAboveTheProcessCounts) {
  Write("/proc/self/cgroup", "0::/outer/inner\n");
  Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(Limit(), 8 * kGiB);
  Write("/sys/fs/cgroup/outer/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), kGiB);
  EXPECT_EQ(FindMemoryLimit(root_)->source, "/sys/fs/cgroup/outer/memory.max");
}

TEST_F(MachineMemoryTest, AContainerSeesItsCgroupAsTheRoot) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(Limit(), kGiB / 2);
}

TEST_F(MachineMemoryTest, TheFirstVersionOfCgroups) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n");
  Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "268435456\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Limit(), kGiB / 4);
}

TEST_F(MachineMemoryTest, NothingIsKnownWithoutProc) { EXPECT_FALSE(FindMemoryLimit("/no/such/root").has_value()); }

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "cli/check/machine_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/fake_gpu/fake_gpu.h"

namespace weightfs::cli {
namespace {

using testing::HasSubstr;

class GpuCheckTest : public testing::Test {
 protected:
  GpuCheckTest() {
    setenv("WEIGHTFS_CUDA_LIBRARY", FAKE_CUDA, 1);
    setenv("WEIGHTFS_CUFILE_LIBRARY", FAKE_CUFILE, 1);
    setenv("WEIGHTFS_PROC_MODULES", "/dev/null", 1);
    fake_gpu_reset();
  }
};

TEST_F(GpuCheckTest, AMachineWithoutAGpuMissesNothing) {
  setenv("WEIGHTFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  const auto checks = CheckGpus();
  ASSERT_EQ(checks.size(), 1U);
  EXPECT_EQ(checks[0].state, Check::State::kNotUsed);
  EXPECT_THAT(checks[0].found, HasSubstr("no GPU to use"));
  EXPECT_EQ(checks[0].next, "");
}

TEST_F(GpuCheckTest, TheModeInUseIsNamed) {
  fake_gpu_set_devices(2);
  auto checks = CheckGpus();
  ASSERT_EQ(checks.size(), 2U);
  EXPECT_EQ(checks[0].found, "2 x Fake GPU 0, CUDA 13.0");
  EXPECT_EQ(checks[1].state, Check::State::kWouldHelp);
  EXPECT_THAT(checks[1].found, HasSubstr("bounce buffers: cuFile 1.20 would work in compatibility mode"));
  fake_gpu_set_kinds(1U << 4);
  checks = CheckGpus();
  EXPECT_EQ(checks[1].state, Check::State::kUsed);
  EXPECT_THAT(checks[1].found, HasSubstr("cuFile 1.20: it reaches the GPU directly: nvidia-fs"));
}

}  // namespace
}  // namespace weightfs::cli

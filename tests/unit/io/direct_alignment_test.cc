// SPDX-License-Identifier: Apache-2.0
#include "io/direct_alignment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <bit>

#include "common/unique_fd.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/scratch_file.h"

namespace weightfs {
namespace {

TEST(DirectAlignmentTest, FilesInMemoryNeedNone) {
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  ASSERT_TRUE(file);
  const auto alignment = QueryDirectAlignment(file.get());
  ASSERT_TRUE(alignment.has_value());
  EXPECT_EQ(alignment->offset, 1U);
  EXPECT_EQ(alignment->memory, 1U);
}

TEST(DirectAlignmentTest, ATransferOfThisAlignmentSucceeds) {
  const ScratchFile scratch(4 * kBlockSize);
  const UniqueFd file(open(scratch.path().c_str(), O_RDWR | O_CLOEXEC | O_DIRECT));
  if (!file) GTEST_SKIP() << "no O_DIRECT on the filesystem of " << scratch.path();
  const auto alignment = QueryDirectAlignment(file.get());
  if (!alignment) GTEST_SKIP() << "O_DIRECT does not work on the filesystem of " << scratch.path();
  EXPECT_TRUE(std::has_single_bit(alignment->offset));
  EXPECT_TRUE(std::has_single_bit(alignment->memory));
  const AlignedMemory memory(4 * kBlockSize);
  EXPECT_EQ(pread(file.get(), memory.data() + alignment->memory % kBlockSize, alignment->offset,
                  static_cast<off_t>(alignment->offset)),
            static_cast<ssize_t>(alignment->offset));
}

TEST(DirectAlignmentTest, APageIsUsedIfTheKernelReportsNoAlignment) {
  const UniqueFd not_a_file(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(not_a_file);
  const auto alignment = QueryDirectAlignment(not_a_file.get());
  ASSERT_TRUE(alignment.has_value());
  EXPECT_EQ(alignment->offset, 4096U);
  EXPECT_EQ(alignment->memory, 4096U);
}

}  // namespace
}  // namespace weightfs

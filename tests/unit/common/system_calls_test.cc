// SPDX-License-Identifier: Apache-2.0
#include "common/system_calls.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <string>

#include "common/unique_fd.h"

namespace weightfs {
namespace {

// Fails with these errors in turn, and then succeeds.
struct Failing {
  std::array<int, 2> errors;
  size_t calls = 0;

  int operator()() {
    if (calls == errors.size()) return 7;
    errno = errors[calls++];
    return -1;
  }
};

TEST(SystemCallsTest, AnInterruptedCallIsRepeatedUntilItSucceeds) {
  Failing call{{EINTR, EINTR}};
  EXPECT_EQ(RepeatInterrupted(std::ref(call)), 7);
}

TEST(SystemCallsTest, AnotherErrorIsReturned) {
  Failing call{{EINTR, EIO}};
  EXPECT_EQ(RepeatInterrupted(std::ref(call)), -1);
  EXPECT_EQ(errno, EIO);
}

TEST(SystemCallsTest, WhatIsWrittenIsReadUpToTheEndOfTheFile) {
  const UniqueFd file(memfd_create("file", MFD_CLOEXEC));
  const std::string text = "written";
  ASSERT_TRUE(WriteFully(file.get(), std::as_bytes(std::span(text)), 3));
  std::string got(20, 'x');
  ASSERT_EQ(ReadFully(file.get(), std::as_writable_bytes(std::span(got)), 1), 9);
  EXPECT_EQ(got.substr(0, 10), std::string("\0\0writtenx", 10));
}

TEST(SystemCallsTest, AFileThatIsNotOpenForItFails) {
  std::byte byte{};
  EXPECT_EQ(ReadFully(-1, std::span(&byte, 1), 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(WriteFully(-1, std::span(&byte, 1), 0));
}

}  // namespace
}  // namespace weightfs

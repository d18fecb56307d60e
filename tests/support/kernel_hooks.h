// SPDX-License-Identifier: Apache-2.0
// What the kernel may answer to io_setup, io_submit, io_getevents and pwrite but seldom does. An executable that has
// kernel_hooks.cc among its sources puts these functions in front of libaio's and libc's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>

namespace weightfs {

// The kernel's structures, for tests do not include libaio.h (linux/aio_abi.h has the same).
struct KernelControl {
  void* data;
  uint32_t key;
  uint32_t flags;
  uint16_t opcode;
  uint16_t priority;
  uint32_t descriptor;
  uint64_t buffer;
  uint64_t size;
  int64_t offset;
};
struct KernelEvent {
  void* data;
  KernelControl* control;
  int64_t result;
  int64_t result2;
};

// A test that hooks the calls; they go to the kernel as they are where nothing is set, and again after the test. Hooks
// run on the thread that calls, one at a time.
class KernelHooksTest : public testing::Test {
 protected:
  using Controls = std::span<KernelControl* const>;

  ~KernelHooksTest() override;

  // A negative errno answers instead of the kernel.
  static void OnSetup(std::function<int(int depth)> hook);
  // May change the iocbs; returns how many to pass on, or a negative errno to answer instead. Not called for polls, by
  // which a ring wakes itself.
  static void OnSubmit(std::function<long(Controls)> hook);
  // False answers EINTR before waiting.
  static void OnWait(std::function<bool()> hook);
  // May change the events, those of polls excepted.
  static void OnEvent(std::function<void(KernelEvent&)> hook);
  // Before a pwrite; an errno that is not 0 answers instead.
  static void OnWrite(std::function<int(uint64_t size, uint64_t offset)> hook);
};

}  // namespace weightfs

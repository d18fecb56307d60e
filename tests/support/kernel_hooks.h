// SPDX-License-Identifier: Apache-2.0
// Injects results of io_setup, io_submit, io_getevents and pwrite that the kernel may return but seldom does. In an
// executable with kernel_hooks.cc among its sources, these functions replace those of libaio and libc.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>

namespace weightfs {

// The kernel's structures, because tests do not include libaio.h (linux/aio_abi.h has the same).
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

// A test that hooks these calls. Calls without a hook go to the kernel unchanged, and so do all calls after the test.
// Hooks run on the calling thread, one at a time.
class KernelHooksTest : public testing::Test {
 protected:
  using Controls = std::span<KernelControl* const>;

  ~KernelHooksTest() override;

  // A negative result is returned instead of calling the kernel.
  static void OnSetup(std::function<int(int depth)> hook);
  // May change the iocbs. Returns how many to pass on, or a negative errno to return instead. Not called for polls,
  // which a ring uses to wake itself.
  static void OnSubmit(std::function<long(Controls)> hook);
  // Returning false makes the wait fail with EINTR before it begins.
  static void OnWait(std::function<bool()> hook);
  // May change the events, except those of polls.
  static void OnEvent(std::function<void(KernelEvent&)> hook);
  // Called before a pwrite. A result other than 0 is returned as the errno instead.
  static void OnWrite(std::function<int(uint64_t size, uint64_t offset)> hook);
};

}  // namespace weightfs

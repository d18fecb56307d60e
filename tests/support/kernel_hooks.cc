// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kernel_hooks.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/mutex.h"

namespace weightfs {
namespace {

constexpr uint16_t kPollOpcode = 5;

struct Hooks {
  Mutex mutex;
  std::function<int(int)> setup GUARDED_BY(mutex);
  std::function<long(std::span<KernelControl* const>)> submit GUARDED_BY(mutex);
  std::function<bool()> wait GUARDED_BY(mutex);
  std::function<void(KernelEvent&)> event GUARDED_BY(mutex);
  std::function<int(uint64_t, uint64_t)> write GUARDED_BY(mutex);
};

Hooks& TheHooks() {
  static Hooks hooks;
  return hooks;
}

}  // namespace

KernelHooksTest::~KernelHooksTest() {
  OnSetup(nullptr);
  OnSubmit(nullptr);
  OnWait(nullptr);
  OnEvent(nullptr);
  OnWrite(nullptr);
}

void KernelHooksTest::OnSetup(std::function<int(int)> hook) {
  MutexLock lock(TheHooks().mutex);
  TheHooks().setup = std::move(hook);
}
void KernelHooksTest::OnSubmit(std::function<long(Controls)> hook) {
  MutexLock lock(TheHooks().mutex);
  TheHooks().submit = std::move(hook);
}
void KernelHooksTest::OnWait(std::function<bool()> hook) {
  MutexLock lock(TheHooks().mutex);
  TheHooks().wait = std::move(hook);
}
void KernelHooksTest::OnEvent(std::function<void(KernelEvent&)> hook) {
  MutexLock lock(TheHooks().mutex);
  TheHooks().event = std::move(hook);
}
void KernelHooksTest::OnWrite(std::function<int(uint64_t, uint64_t)> hook) {
  MutexLock lock(TheHooks().mutex);
  TheHooks().write = std::move(hook);
}

}  // namespace weightfs

extern "C" int io_setup(int depth, void** context);
extern "C" int io_submit(void* context, long count, weightfs::KernelControl** controls);
extern "C" int io_getevents(void* context, long minimum, long count, weightfs::KernelEvent* events, timespec* timeout);

extern "C" int io_setup(int depth, void** context) {
  using namespace weightfs;
  {
    MutexLock lock(TheHooks().mutex);
    if (const int rc = TheHooks().setup ? TheHooks().setup(depth) : 0; rc < 0) return rc;
  }
  const long rc = syscall(SYS_io_setup, depth, context);
  return static_cast<int>(rc < 0 ? -errno : rc);
}

extern "C" int io_submit(void* context, long count, weightfs::KernelControl** controls) {
  using namespace weightfs;
  if (controls[0]->opcode != kPollOpcode) {
    MutexLock lock(TheHooks().mutex);
    if (TheHooks().submit) count = TheHooks().submit(std::span(controls, static_cast<size_t>(count)));
    if (count < 0) return static_cast<int>(count);
  }
  const long rc = syscall(SYS_io_submit, context, count, controls);
  return static_cast<int>(rc < 0 ? -errno : rc);
}

extern "C" int io_getevents(void* context, long minimum, long count, weightfs::KernelEvent* events, timespec* timeout) {
  using namespace weightfs;
  {
    MutexLock lock(TheHooks().mutex);
    if (TheHooks().wait && !TheHooks().wait()) return -EINTR;
  }
  const long rc = syscall(SYS_io_getevents, context, minimum, count, events, timeout);
  if (rc < 0) return -errno;
  MutexLock lock(TheHooks().mutex);
  for (long i = 0; i < rc; ++i) {
    if (TheHooks().event && events[i].control->opcode != kPollOpcode) TheHooks().event(events[i]);
  }
  return static_cast<int>(rc);
}

extern "C" ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  using namespace weightfs;
  {
    MutexLock lock(TheHooks().mutex);
    const int error_number = TheHooks().write ? TheHooks().write(size, static_cast<uint64_t>(offset)) : 0;
    if (error_number != 0) {
      errno = error_number;
      return -1;
    }
  }
  return syscall(SYS_pwrite64, descriptor, data, size, offset);
}

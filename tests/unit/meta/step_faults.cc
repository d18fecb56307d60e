// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/meta/step_faults.h"

// Not fcntl.h, because it may define open(2) inline.
#include <asm/fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string_view>

namespace weightfs {
namespace {

constexpr int kCurrentDirectory = -100;  // AT_FDCWD

std::mutex mutex;
std::string below;        // guarded by mutex; empty: no faults
uint64_t steps_left = 0;  // likewise
uint64_t failures = 0;    // likewise
int fault = 0;            // likewise

int FaultOf(std::string_view path) {
  const std::lock_guard lock(mutex);
  if (below.empty() || !path.starts_with(below)) return 0;
  if (steps_left > 0) {
    --steps_left;
    return 0;
  }
  ++failures;
  return fault;
}

}  // namespace

ScopedStepFaults::ScopedStepFaults(const std::string& directory, uint64_t steps, int error) {
  const std::lock_guard lock(mutex);
  below = directory;
  steps_left = steps;
  failures = 0;
  fault = error;
}

ScopedStepFaults::~ScopedStepFaults() {
  const std::lock_guard lock(mutex);
  below.clear();
}

uint64_t ScopedStepFaults::failed() const {
  const std::lock_guard lock(mutex);
  return failures;
}

int StepFaultOf(int descriptor) {
  {
    const std::lock_guard lock(mutex);
    if (below.empty()) return 0;
  }
  char path[PATH_MAX];
  const ssize_t size = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), path, sizeof(path));
  return size < 0 ? 0 : FaultOf({path, static_cast<size_t>(size)});
}

}  // namespace weightfs

extern "C" int open(const char* path, int flags, ...) {
  unsigned mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, unsigned);
    va_end(arguments);
  }
  if ((flags & (O_CREAT | O_TRUNC)) != 0) {
    if (const int error = weightfs::FaultOf(path); error != 0) {
      errno = error;
      return -1;
    }
  }
  return static_cast<int>(syscall(SYS_openat, weightfs::kCurrentDirectory, path, flags, mode));
}

extern "C" ssize_t write(int descriptor, const void* data, size_t size) {
  if (const int error = weightfs::StepFaultOf(descriptor); error != 0) {
    errno = error;
    return -1;
  }
  return syscall(SYS_write, descriptor, data, size);
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (const int error = weightfs::FaultOf(to); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(
      syscall(SYS_renameat2, weightfs::kCurrentDirectory, from, weightfs::kCurrentDirectory, to, 0));
}

extern "C" int fsync(int descriptor) {
  if (const int error = weightfs::StepFaultOf(descriptor); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}

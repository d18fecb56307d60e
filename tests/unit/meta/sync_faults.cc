// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/meta/sync_faults.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <mutex>
#include <string_view>

#include "tests/unit/meta/step_faults.h"

namespace weightfs {
namespace {

std::atomic<uint64_t> sync_calls{0};
std::mutex fault_mutex;
std::string fault_suffix;  // guarded by fault_mutex
int fault_error = 0;       // guarded by fault_mutex; 0: none

int FaultOf(int descriptor) {
  const std::lock_guard lock(fault_mutex);
  if (fault_error == 0) return 0;
  char path[PATH_MAX];
  const ssize_t size = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), path, sizeof(path));
  if (size < 0 || !std::string_view(path, static_cast<size_t>(size)).ends_with(fault_suffix)) return 0;
  return fault_error;
}

}  // namespace

ScopedSyncFault::ScopedSyncFault(const std::string& suffix, int error) {
  const std::lock_guard lock(fault_mutex);
  fault_suffix = suffix;
  fault_error = error;
}

ScopedSyncFault::~ScopedSyncFault() {
  const std::lock_guard lock(fault_mutex);
  fault_error = 0;
}

uint64_t SyncCalls() { return sync_calls.load(); }

}  // namespace weightfs

extern "C" int fdatasync(int descriptor) {
  ++weightfs::sync_calls;
  int error = weightfs::FaultOf(descriptor);
  if (error == 0) error = weightfs::StepFaultOf(descriptor);
  if (error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fdatasync, descriptor));
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/hdf5/sync_count.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace weightfs::hdf5 {
namespace {

std::atomic<int> calls{0};

}  // namespace

int SyncCalls() { return calls; }

}  // namespace weightfs::hdf5

extern "C" int fdatasync(int descriptor) {
  ++weightfs::hdf5::calls;
  return static_cast<int>(syscall(SYS_fdatasync, descriptor));
}

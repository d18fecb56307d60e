// SPDX-License-Identifier: Apache-2.0
// A filesystem that fails from some step on: the test executable's definitions of open, write, rename, fsync and
// fdatasync come before the C library's, for RocksDB too.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs {

// While one lives, every call but the first `steps` that makes, writes, renames or syncs a file below `directory` fails
// with `error`. One at a time.
class ScopedStepFaults {
 public:
  ScopedStepFaults(const std::string& directory, uint64_t steps, int error);
  ~ScopedStepFaults();
  ScopedStepFaults(const ScopedStepFaults&) = delete;
  ScopedStepFaults& operator=(const ScopedStepFaults&) = delete;

  uint64_t failed() const;  // calls so far
};

// For definitions of system calls elsewhere in the executable: the errno that a call on this descriptor fails with now,
// 0 for none.
int StepFaultOf(int descriptor);

}  // namespace weightfs

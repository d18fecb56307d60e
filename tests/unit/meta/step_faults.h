// SPDX-License-Identifier: Apache-2.0
// A filesystem that fails from some step on. The test executable's definitions of open, write, rename, fsync and
// fdatasync take precedence over the C library's, also for RocksDB.
#pragma once

#include <cstdint>
#include <string>

namespace weightfs {

// While an object exists, the calls that create, write, rename or sync a file below `directory` fail with `error`,
// except the first `steps` of them. Only one object may exist at a time.
class ScopedStepFaults {
 public:
  ScopedStepFaults(const std::string& directory, uint64_t steps, int error);
  ~ScopedStepFaults();
  ScopedStepFaults(const ScopedStepFaults&) = delete;
  ScopedStepFaults& operator=(const ScopedStepFaults&) = delete;

  uint64_t failed() const;  // number of failed calls so far
};

// For definitions of system calls elsewhere in the executable: the errno with which a call on this descriptor must fail
// now, or 0.
int StepFaultOf(int descriptor);

}  // namespace weightfs

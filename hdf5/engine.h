// SPDX-License-Identifier: Apache-2.0
// The handles that open files share. A process has one for each combination of settings.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <map>

#include "client/handle.h"
#include "common/mutex.h"
#include "hdf5/settings.h"

namespace weightfs::hdf5 {

// Thread-safe. A handle has threads and libaio contexts, so it is created when a file first needs it, and kept for
// later files. A forked child creates its own handles.
class Engine {
 public:
  // The errors of Handle::Create.
  Result<std::shared_ptr<client::Handle>> Get(const Settings& settings) EXCLUDES(mutex_);
  // Releases all handles. A file that is still open gets a new one when it needs one.
  void Clear() EXCLUDES(mutex_);
  // Returns the number of operations of this process that used a lease.
  uint64_t direct_operations() const EXCLUDES(mutex_);

  // Returns the engine of this process.
  static Engine& Shared();

 private:
  void DropParentHandlesLocked() REQUIRES(mutex_);

  mutable Mutex mutex_;
  pid_t owner_ GUARDED_BY(mutex_) = getpid();
  std::map<Settings, std::shared_ptr<client::Handle>> handles_ GUARDED_BY(mutex_);
  uint64_t ended_operations_ GUARDED_BY(mutex_) = 0;  // of released handles
};

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// The handles that open files share: one for each set of settings and process.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <memory>

#include "client/handle.h"
#include "common/mutex.h"
#include "hdf5/settings.h"

namespace weightfs::hdf5 {

// Thread-safe. A handle costs threads and contexts of libaio, so it is made when a file first needs one, and kept for
// the files to come. A forked child gets handles of its own.
class Engine {
 public:
  // The errors of Handle::Create.
  Result<std::shared_ptr<client::Handle>> Get(const Settings& settings) EXCLUDES(mutex_);
  // Ends the handles that no open file uses.
  void Clear() EXCLUDES(mutex_);
  // Operations that went by a lease, of all handles of this process so far.
  uint64_t direct_operations() const EXCLUDES(mutex_);

  // The one of this process.
  static Engine& Shared();

 private:
  void LeaveParentsBehindLocked() REQUIRES(mutex_);

  mutable Mutex mutex_;
  pid_t owner_ GUARDED_BY(mutex_) = getpid();
  std::map<Settings, std::shared_ptr<client::Handle>> handles_ GUARDED_BY(mutex_);
  uint64_t ended_operations_ GUARDED_BY(mutex_) = 0;  // of handles that have ended
};

}  // namespace weightfs::hdf5

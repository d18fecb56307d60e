// SPDX-License-Identifier: Apache-2.0
// An opened store with its lock, superblocks, devices and catalog. A mount serves one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/mounts.h"
#include "common/result.h"
#include "store/store.h"
#include "store/volume/store_directory.h"

namespace weightfs {

// Owns all parts. Thread-safe only where Store is; the owner alone calls Open and Close.
class StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> Open(const StoreLocation& location, const OpenOptions& open,
                                                    const StoreOptions& options);
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  Store& store() { return *store_; }
  const StoreDescription& description() const { return parts_.description; }
  // True when the last mount closed the store.
  bool was_clean() const { return parts_.was_clean; }

  // Publish the state to other processes (StoreHolder): what is served where, and the end of the mount.
  void NoteServing(const MountedFilesystem& filesystem, const std::string& directory) {
    parts_.lock.NoteServing(filesystem, directory);
  }
  void NoteClosing();

  // Makes everything durable, marks the superblocks clean and empties the lock file, in this order. The first error is
  // left in the lock file for `weightfs umount`. The lock is released with the session. Later calls do nothing.
  Result<void> Close();

 private:
  StoreSession() = default;
  Result<void> CloseStore();

  // True when another machine has, or may have, taken over the store.
  bool IsLost() { return parts_.guard != nullptr && !parts_.guard->Verify(); }

  StoreParts parts_;                   // without the devices and the catalog, which store_ has
  std::vector<BlockDevice*> devices_;  // of store_
  bool read_only_ = false;
  bool closed_ = false;
  std::unique_ptr<Store> store_;
};

// Writes a log to the devices of a store that has none, or one without the repairs of its index.
// An error is a full line that names the directory of the index.
Result<void> WriteLog(const StoreLocation& location);

}  // namespace weightfs

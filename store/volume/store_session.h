// SPDX-License-Identifier: Apache-2.0
// An opened store with all that belongs to it: lock, superblocks, devices, catalog. What a mount serves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "store/store.h"
#include "store/volume/store_directory.h"

namespace weightfs {

// Owns everything; thread-safe only where Store is. Open and Close are the owner's.
class StoreSession {
 public:
  static Result<std::unique_ptr<StoreSession>> Open(const std::string& directory, const OpenOptions& open,
                                                    const StoreOptions& options);
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  Store& store() { return *store_; }
  const StoreDescription& description() const { return description_; }
  // Whether the mount before ended by closing the store.
  bool was_clean() const { return was_clean_; }

  // For those who look at the store meanwhile (StoreHolder): what is served where, and that the mount has ended.
  void NoteServing(const std::string& device, const std::string& directory) { lock_.NoteServing(device, directory); }
  void NoteClosing() { lock_.NoteClosing(); }

  // Makes everything durable, marks the superblocks clean and empties the lock file, in this order; the error of the
  // first of them that fails is left in the lock file for `weightfs umount`. The lock itself goes with the session.
  // Calls after the first do nothing.
  Result<void> Close();

 private:
  StoreSession() = default;
  Result<void> CloseStore();

  StoreLock lock_;
  StoreDescription description_;
  std::vector<Superblock> superblocks_;
  std::vector<BlockDevice*> devices_;  // of store_
  bool read_only_ = false;
  bool was_clean_ = true;
  bool closed_ = false;
  std::unique_ptr<Store> store_;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// A store on disk: a directory with store.json, lock, meta/ and usually `pool`. See docs/FORMAT.md section 1.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/mounts.h"
#include "common/progress.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "engine/file_device.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"
#include "store/volume/pool_fill.h"
#include "store/volume/store_description.h"
#include "store/volume/store_guard.h"
#include "store/volume/store_location.h"
#include "store/wal/log_writer.h"

namespace weightfs {

// Opens the log for appending; creates it if it is missing. Errors are those of GuardedDirectory::OpenFile.
Result<UniqueFd> OpenLog(const std::string& directory);

struct FormatOptions {
  ByteCount size;                    // of the pool file, or of each device that is made; 0: there are none
  std::vector<std::string> devices;  // raw block devices or files; empty: the store's own `pool` file
  bool force = false;                // overwrite existing content
  bool discard_damaged = false;      // also what is left of a damaged store
  bool partition = false;            // `devices` are whole disks; each gets one partition, which holds the data
  std::string index;                 // without a store directory: of the index; empty: that of FindIndex
  PoolFill fill = PoolFill::kAuto;
  uint32_t root_uid = 0, root_gid = 0;
  ProgressFunction progress;                  // of the filling; may be empty
  const std::atomic<bool>* cancel = nullptr;  // when true, format removes what it created and fails; may be null
};

struct NewStore {
  StoreLocation location;
  StoreDescription description;
  FillReport fill;  // of its devices, in the order of the description
};

// Creates a store. Errors have full messages. Returns kExists when the directory, a pool file or a device has content
// and `force` is not set (libblkid names a signature that it knows), or if they are parts of a damaged store and
// `discard_damaged` is not set, kBusy when the store or a device is in use, even with `force`. With `partition`, a disk
// with partitions is refused even then, unless its only one is empty and was made by an interrupted format. All checks
// and the space reservation come before any change of existing content. On an error everything that this call created
// is removed, except new partitions.
//
// Without `directory` the store is its `devices`: they get the whole log, and the directory of the index is only the
// first one. With `size`, devices that do not exist are made, as files.
Result<NewStore> FormatStore(const std::string& directory, const FormatOptions& options);

// The holder of a store's lock. `held` and `process` come from the kernel. The other members come from the note that
// the last holder left in the lock file; they may be out of date when the lock is free.
struct StoreHolder {
  enum class State : unsigned char { kWorking, kServing, kClosing };
  bool held = false;
  pid_t process = 0;  // the holder in this PID namespace; 0: none, or in another PID namespace
  pid_t noted = 0;    // the holder in its own PID namespace; 0: none noted, or the last holder closed the store
  State state = State::kWorking;  // kWorking: checking, formatting, or not mounted yet
  MountedFilesystem filesystem;   // kServing: without a source if an older version serves
  std::string directory;          // kServing: the mount point
  std::string error;              // of a holder that failed to write everything; empty otherwise

  // True when the holder has stopped using the store or was killed, so that the lock will soon be free.
  bool IsEnding() const;
};

// Reads the holder of the store whose lock is in `directory`, or of its lock file (StoreLock::OpenToWatch). Returns a
// default StoreHolder when the file cannot be read. Never blocks; holds the lock in shared mode for a moment.
StoreHolder ReadStoreHolder(const std::string& directory);
StoreHolder ReadStoreHolder(const UniqueFd& lock);

// An exclusive flock on the store's lock file. The file names the holder (StoreHolder) from Claim until Clear or the
// destructor. A name left in a free lock file belongs to a holder that was killed.
class StoreLock {
 public:
  // Locks the store. kBusy names the holder's process. Creates the file if it is missing and changes nothing else.
  static Result<StoreLock> Acquire(const StoreLocation& store);
  StoreLock() = default;
  StoreLock(StoreLock&&) = default;
  StoreLock& operator=(StoreLock&&) = default;
  // Clears the name, unless the previous holder was killed: the next holder must learn about that too.
  ~StoreLock();

  // Opens the lock file for reading, to wait for the holder. Errors are those of GuardedDirectory.
  static Result<UniqueFd> OpenToWatch(const std::string& directory);

  // Writes this process's id. From then on the process may have the devices open and change the store.
  void Claim();
  // Adds the mount to the note: its filesystem and directory.
  void NoteServing(const MountedFilesystem& filesystem, const std::string& directory);
  // Notes that the mount has ended and the last data is being written.
  void NoteClosing();
  // Empties the file when the holder has written everything. `note` is one line for processes that wait, empty on
  // success.
  void Clear(const std::string& note = {});
  // Leaves the file to another holder.
  void Disown() { claimed_ = false; }
  bool held() const { return static_cast<bool>(file_); }
  // Returns another descriptor with this lock.
  Result<UniqueFd> Duplicate() const;
  // True when the previous holder ended without Clear. The kernel may release its other file locks after the store's
  // lock.
  bool holder_was_killed() const { return holder_was_killed_; }

 private:
  explicit StoreLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
  bool holder_was_killed_ = false;
  bool claimed_ = false;
};

// The time to wait for devices after their user was killed: the kernel releases the files of a process in no defined
// order, and a device only after its last transfer.
inline constexpr std::chrono::seconds kAfterKill{10};
// The time to wait for the devices of a store whose lock is held: zero unless their last user was killed.
std::chrono::milliseconds DeviceLockWait(const StoreLock& lock);

inline constexpr const char* kDeviceLinks = "/dev/disk";

struct OpenOptions {
  bool read_only = false;
  unsigned queue_depth = 256;
  ByteCount catalog_cache{32 * kMiB};
  bool lock = true;     // false: open without the lock (info next to a mount); implies read_only
  // With read_only: open a catalog that can be read only in part (a read-only mount). Reads of the rest fail.
  bool damaged_too = false;
  bool repair = false;  // accept damage, and make what is found the only catalog (open_catalog.h)
  ProgressFunction progress = nullptr;  // of rebuilding the index
  bool guard = false;   // guard the store even if it is on local filesystems; for tests
  std::string device_links = kDeviceLinks;  // where moved devices are looked for (FindMovedDevices)
};

// The parts of an opened store, locked and verified to match, for Store::Open or fsck. The lock is released last.
struct StoreParts {
  StoreLock lock;
  std::unique_ptr<StoreGuard> guard;  // null unless opened for writing on a filesystem that may lose its locks
  StoreDescription description;
  std::vector<Superblock> superblocks;
  std::vector<std::unique_ptr<BlockDevice>> devices;  // in index order
  std::unique_ptr<KvStore> catalog;
  wal::WriterOptions log;  // for StoreOptions
  std::string note;        // a line about what was rebuilt or is lost; empty: nothing
  bool rebuilt = false;    // the index of the catalog was
  bool lost = false;       // something is
  bool was_clean = true;  // every superblock was marked clean before this open
};

// Opens and verifies a store: takes the lock (kBusy names the holder's process), finds devices that have moved (and
// corrects their paths in store.json, unless read_only), matches each device's superblock with store.json (a device of
// another store, swapped devices, a truncated pool or a newer version fails with one full line and changes nothing),
// and rejects links and files of other users in the directory (GuardedDirectory; kPermission). Unless read_only, marks
// the superblocks as in use (MarkClean marks them clean again) and removes the permissions of other users from the
// lock, the log file, the pool file and the catalog.
//
// If the store was named by its devices, makes the directory for its index, but not for a read-only open: without it,
// that has no locks but those of the devices, and an index in memory.
Result<StoreParts> OpenStoreParts(const StoreLocation& store, const OpenOptions& options);

// Removes a file or a directory with everything in it, if it exists.
Result<void> RemoveTree(const std::string& path);

// The bytes of each device that belong to the store, for StoreOptions and FsckOptions.
std::vector<ByteCount> DeviceSizes(const std::vector<Superblock>& superblocks);

// Marks the superblocks: from now on the log on the devices has every change, and the index may lack some.
Result<void> MarkLogged(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks);

// Marks the superblocks clean again after OpenStoreParts marked them in use but a clean store could not be opened. Its
// devices must be closed and its lock still held.
Result<void> MarkCleanAgain(const std::string& directory, const StoreDescription& description);

// The last write to the devices. The store that used them must be closed, and its devices still open.
Result<void> MarkClean(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks);
Result<void> MarkClean(std::vector<std::unique_ptr<BlockDevice>>& devices, std::vector<Superblock>& superblocks);

// The same devices as pointers; for MarkClean when a Store owns `devices`.
std::vector<BlockDevice*> Borrow(const std::vector<std::unique_ptr<BlockDevice>>& devices);

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// A store on disk: a directory with store.json, lock, meta/ and usually `pool`. docs/FORMAT.md section 1.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "engine/file_device.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"

namespace weightfs {

// Names inside the directory of a store.
inline constexpr const char* kDescriptionName = "store.json";

// Whether the directory holds a store, readable or not.
bool HoldsStore(const std::string& directory);
inline constexpr const char* kLockName = "lock";
inline constexpr const char* kCatalogName = "meta";
inline constexpr const char* kPoolName = "pool";
inline constexpr const char* kLogName = "weightfs.log";

// The log for appending, made where it is missing. Errors as of GuardedDirectory::OpenFile.
Result<UniqueFd> OpenLog(const std::string& directory);

// Of one store, at most: more than any machine has.
inline constexpr size_t kMaximumDevices = 1024;

// The fact under keys::Store that binds the catalog to its store: the id as text.
inline constexpr const char* kStoreIdFact = "store_id";

// store.json, for people and programs: {"format": 1, "id": UUID, "devices": [{"index": 0, "id": UUID, "path": "pool",
// "size": BYTES}], "created": ISO 8601}. Relative paths are relative to the store's directory.
struct StoreDescription {
  struct Device {
    DeviceId index;
    Uuid id{};
    std::string path;
    ByteCount size;
  };
  Uuid id{};
  uint32_t format = kFormatVersion;
  std::string created;
  std::vector<Device> devices;
};

struct FormatOptions {
  ByteCount size;                    // of the pool file; 0 with devices
  std::vector<std::string> devices;  // raw block devices or files; empty: the store's own `pool` file
  bool force = false;                // overwrite what is there
  bool preallocate = true;           // write pool files once with zeros; sparse otherwise
  uint32_t root_uid = 0, root_gid = 0;
  std::function<void(ByteCount done, ByteCount total)> progress;  // of the zeroing; may be empty
  const std::atomic<bool>* cancel = nullptr;  // once true, format gives up and removes what it began; may be null
};

// Makes a store. Full-line errors; kExists when the directory, a pool file or a device holds something and `force` is
// not set (libblkid names a signature it knows), kBusy when the store or a device is in use, force or not. Whatever can
// be refused is refused, and the space is reserved, before anything that was there changes; on an error what was begun
// is removed.
Result<StoreDescription> FormatStore(const std::string& directory, const FormatOptions& options);

// kNotFound when `directory` is no store, kCorrupt when store.json is damaged, kVersion when it is newer than this
// program.
Result<StoreDescription> ReadStoreDescription(const std::string& directory);

// The text of store.json.
std::string ToJson(const StoreDescription& description);

// The path of a device of the store in `directory`.
std::string DevicePath(const std::string& directory, const StoreDescription::Device& device);

// Who holds the lock of a store: `held` and `process` come from the kernel, the rest is the note that the last holder
// left in the lock file, which may be out of date where the lock is free.
struct StoreHolder {
  enum class State : unsigned char { kWorking, kServing, kClosing };
  bool held = false;
  pid_t process = 0;  // of the holder, in this PID namespace; 0: nobody, or a process of another PID namespace
  pid_t noted = 0;  // the holder's number in its own PID namespace; 0: none noted, or the last holder closed the store
  State state = State::kWorking;  // kWorking: it checks, formats, or has not mounted yet
  std::string device;             // kServing: "MAJOR:MINOR" of the mounted filesystem
  std::string directory;          // kServing: where it was mounted
  std::string error;              // of a holder that could not write everything; empty otherwise

  // It has stopped using the store, or was killed: the lock will soon be free.
  bool IsEnding() const;
};

// Of the store in `directory`, or of its lock file (StoreLock::OpenToWatch); a default StoreHolder where the file
// cannot be read. Never blocks, and takes the lock for a moment, shared.
StoreHolder ReadStoreHolder(const std::string& directory);
StoreHolder ReadStoreHolder(const UniqueFd& lock);

// "process 4711 (weightfs)", "another process" for 0.
std::string DescribeProcess(pid_t process);

// An exclusive flock on the store's lock file for as long as it lives. The file names the holder (StoreHolder) from
// Claim to Clear or to its end; a name that is left in a free lock file is that of a holder that was killed.
class StoreLock {
 public:
  // kBusy names the holder's process. Makes the file where it is missing; changes nothing else.
  static Result<StoreLock> Acquire(const std::string& directory);
  StoreLock() = default;
  StoreLock(StoreLock&&) = default;
  StoreLock& operator=(StoreLock&&) = default;
  // Clears a name that was not cleared, unless the holder before was killed: the next holder must know of that, too.
  ~StoreLock();

  // The lock file for reading, for whoever waits for the holder. Errors as of GuardedDirectory.
  static Result<UniqueFd> OpenToWatch(const std::string& directory);

  // Writes this process's id: from here on it may have the devices open, and change the store.
  void Claim();
  // Adds what the process serves: the device number and directory of its mount.
  void NoteServing(const std::string& device, const std::string& directory);
  // The mount has ended; what is left is writing the last data.
  void NoteClosing();
  // Empties the file: the holder has written everything. `note` is one line for whoever waits, empty on success.
  void Clear(const std::string& note = {});
  bool held() const { return static_cast<bool>(file_); }
  // The holder before did not get to Clear. Other files that it had locked may be released after the store's lock.
  bool holder_was_killed() const { return holder_was_killed_; }

 private:
  explicit StoreLock(UniqueFd file) : file_(std::move(file)) {}
  UniqueFd file_;
  bool holder_was_killed_ = false;
  bool claimed_ = false;
};

// How long to wait for the devices of a store whose lock is held: not at all, unless their last user was killed.
std::chrono::milliseconds DeviceLockWait(const StoreLock& lock);

struct OpenOptions {
  bool read_only = false;
  unsigned queue_depth = 256;
  ByteCount catalog_cache{32 * kMiB};
  bool lock = true;  // false: look without the lock (info beside a mount); implies read_only
};

// The parts of an opened store: locked, matched to one another, ready for Store::Open or fsck. The lock goes last.
struct StoreParts {
  StoreLock lock;
  StoreDescription description;
  std::vector<Superblock> superblocks;
  std::vector<std::unique_ptr<BlockDevice>> devices;  // in index order
  std::unique_ptr<KvStore> catalog;
  bool was_clean = true;  // every superblock was marked clean before it was opened
};

// Opens and checks: the lock (kBusy names the holder's process), each device's superblock against store.json and the
// catalog's id (a device of another store, a swapped index, a truncated pool, a newer version: one full line each,
// nothing changed), and that no file of the directory is a link or somebody else's (GuardedDirectory; kPermission).
// Unless read_only, superblocks are marked in use (MarkClean marks them clean again), and the permissions of other
// users are taken from the lock, the log, the pool file and the catalog.
Result<StoreParts> OpenStoreParts(const std::string& directory, const OpenOptions& options);

// How much of each device belongs to the store, for StoreOptions and FsckOptions.
std::vector<ByteCount> DeviceSizes(const std::vector<Superblock>& superblocks);

// Marks the superblocks clean again that OpenStoreParts marked in use, of a store that was clean and could not be
// opened: its devices are closed, and its lock is still held.
Result<void> MarkCleanAgain(const std::string& directory, const StoreDescription& description);

// The last write to the devices: the store that used them is closed, its devices are still open.
Result<void> MarkClean(std::span<BlockDevice* const> devices, std::vector<Superblock>& superblocks);
Result<void> MarkClean(std::vector<std::unique_ptr<BlockDevice>>& devices, std::vector<Superblock>& superblocks);

// The same devices, borrowed; for MarkClean once `devices` belong to a Store.
std::vector<BlockDevice*> Borrow(const std::vector<std::unique_ptr<BlockDevice>>& devices);

}  // namespace weightfs

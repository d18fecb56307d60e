// A store on disk: a directory with store.json, lock, meta/ and usually `pool`. docs/FORMAT.md section 1.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "engine/file_device.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"
#include "store/store.h"

namespace weightfs {

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
  ByteCount size;                        // of the pool file; 0 with devices
  std::vector<std::string> devices;      // raw block devices or files; empty: the store's own `pool` file
  bool force = false;                    // overwrite what is there
  bool preallocate = true;               // write the pool file once with zeros; sparse otherwise
  uint32_t root_uid = 0, root_gid = 0;
  std::function<void(ByteCount done, ByteCount total)> progress;   // of the zeroing; may be empty
};

// Makes a store. Full-line errors; kExists when the directory, a pool file or a device holds something and `force` is
// not set (libblkid names a signature it knows); on an error nothing of what was there is changed, and what was begun
// is removed.
Result<StoreDescription> FormatStore(const std::string& directory, const FormatOptions& options);

Result<StoreDescription> ReadStoreDescription(const std::string& directory);

struct OpenOptions {
  bool read_only = false;
  unsigned queue_depth = 256;
  ByteCount catalog_cache{32 * kMiB};
  bool lock = true;                      // false: look without the lock (info beside a mount); implies read_only
};

// The parts of an opened store: locked, matched to one another, ready for Store::Open or fsck.
struct StoreParts {
  StoreDescription description;
  std::unique_ptr<KvStore> catalog;
  std::vector<std::unique_ptr<BlockDevice>> devices;     // in index order
  std::vector<Superblock> superblocks;
  int lock = -1;                                         // the locked descriptor; closed last
  StoreParts() = default;
  StoreParts(StoreParts&& other) noexcept;
  StoreParts& operator=(StoreParts&& other) noexcept;
  ~StoreParts();
};

// Opens and checks: the lock (kBusy names the holder's process), each device's superblock against store.json and the
// catalog's id (a device of another store, a swapped index, a truncated pool, a newer version: one full line each,
// nothing changed). Unless read_only, superblocks are marked in use; MarkClean marks them clean again after
// Store::Close.
Result<StoreParts> OpenStoreParts(const std::string& directory, const OpenOptions& options);
Result<void> MarkClean(std::vector<std::unique_ptr<BlockDevice>>& devices, std::vector<Superblock>& superblocks);

}  // namespace weightfs

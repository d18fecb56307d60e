// SPDX-License-Identifier: Apache-2.0
// What a command takes as STORE: a store directory, or the devices of a store, which have everything. The index of a
// store that is named by its devices is in a directory of the machine, where it can always be rebuilt.
#pragma once

#include <optional>
#include <string>

#include "common/result.h"
#include "store/volume/store_description.h"

namespace weightfs {

// The directories of the indexes of root.
inline constexpr const char* kRootIndexes = "/var/cache/weightfs";

struct StoreLocation {
  StoreLocation() = default;
  // A store directory. Implicit, because that is what most callers have.
  StoreLocation(std::string store_directory)  // NOLINT(google-explicit-constructor)
      : directory(std::move(store_directory)), name(directory) {}

  // Has store.json, lock, log file and index. With devices it is missing on a machine that has not mounted the store.
  std::string directory;
  // As in mount tables and messages, and again a STORE: `directory`, or "DEVICE[,DEVICE...][,index=DIRECTORY]".
  std::string name;
  std::optional<StoreDescription> described;  // by the superblocks, with absolute paths; nullopt: a store directory
};

// kInvalid if the path cannot be a part of a name of a store.
Result<void> CheckNoComma(const std::string& path);

struct FindOptions {
  std::string index;  // the directory of the index; empty: the argument names it, or that of FindIndex
  bool damaged_too = false;  // devices without an intact superblock are taken for what the log says
  std::string device_links = "/dev/disk";  // where devices that the argument does not name are looked for
};

// The directory of the index of a store, if none is named: kRootIndexes/ID for root, and weightfs/ID in
// $XDG_CACHE_HOME or ~/.cache for others.
Result<std::string> FindIndex(const Uuid& id);

// Finds out what `argument` names: a store directory, a device, or several with commas between them, of which one may
// be index=DIRECTORY. A path that does not exist is taken for a directory. Devices of the store that are not named are
// looked for where they were last, and by their superblocks, unless a named one is known to have a copy. Changes
// nothing. Errors are full lines: kNotFound (a device is missing, or has no store), kInvalid (given twice, a copy, of
// several stores, neither a directory nor a device), kPermission (the directory of the index is not trusted), kCorrupt
// (the superblock is damaged), kVersion, kIo.
Result<StoreLocation> FindStore(const std::string& argument, const FindOptions& options = {});

// Where a mount with this source has the store, if it serves it under another name: by its devices, or a store that is
// named by its devices by its directory. Reads from no device, because those of other mounts may hang.
std::optional<StoreLocation> FindServedAs(const std::string& source, const StoreLocation& store);

// The content that store.json has, or should have: paths in it that still lead to the devices stay.
Result<StoreDescription> Describe(const StoreLocation& location);

// Makes the directory of the index of a store that is named by its devices. kInvalid if it is of another store that is
// none of `replaced`, kExists if something else is in it.
Result<void> PrepareIndex(const StoreLocation& location, const std::vector<Uuid>& replaced = {});

// Removes the index of a store that is gone from the usual directory, unless it is in use. A failure is logged.
void RemoveIndex(const Uuid& id);

}  // namespace weightfs

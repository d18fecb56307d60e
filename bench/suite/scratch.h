// SPDX-License-Identifier: Apache-2.0
// What the benchmark makes on the disk, and takes away again: directories, stores and their mounts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/suite/keeper.h"
#include "bench/suite/place.h"
#include "common/result.h"

namespace weightfs::bench {

// Not thread-safe. The destructor unmounts and deletes everything, whatever happened before; where it is never reached,
// a Keeper does.
class Scratch {
 public:
  struct Options {
    std::string program;  // the weightfs to run
    bool drop_caches = false;
    const std::atomic<bool>* cancel = nullptr;
  };
  explicit Scratch(Options options);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // A new directory NAME with our process number, below `parent`; removed at the end with all in it. The full path.
  Result<std::string> MakeDirectory(const std::string& parent, const std::string& name = "weightfs-bench");

  struct Store {
    std::string directory;  // where to put it: DIRECTORY/store, mounted at DIRECTORY/mount
    uint64_t size = 0;      // of its pool, without devices
    std::vector<std::string> devices;
    std::string mount_options;
    std::string cgroup;  // that its daemon runs in; empty: ours
  };
  // Makes a store and mounts it.
  Result<Place> Mount(const Store& store);
  // Unmounts the store in `directory`, and mounts it again. The seconds until the new mount answers. No Place of it may
  // be open.
  Result<double> Remount(const std::string& directory, const std::string& mount_options, Place* place);
  // Unmounts what Mount returned, and deletes its store.
  Result<void> Unmount(const std::string& mount);

  const Keeper& keeper() const { return keeper_; }

  // Takes everything away. The first failure, when there was one.
  Result<void> Close();

 private:
  Result<void> UnmountAll();
  Result<void> Delete(const std::string& directory);
  // Only the mount itself; nothing when there is none.
  Result<void> Detach(const std::string& mount, const std::string& directory);

  const Options options_;
  Keeper keeper_;
  std::vector<std::string> directories_;
  std::map<std::string, std::string> mounts_;  // mount to the directory of its store
};

// The process that serves a store, from its lock file; an error when nobody does.
Result<pid_t> DaemonOf(const std::string& store);

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// Devices of a known speed: loop devices, and a cgroup whose processes get so many bytes a second from each. As root.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/suite/keeper.h"
#include "common/result.h"

namespace weightfs::bench {

class ThrottledDevices {
 public:
  struct Options {
    std::string directory;  // for the files behind the devices
    unsigned count = 1;
    uint64_t size = 0;   // bytes of each
    uint64_t rate = 0;   // bytes a second, reading and writing, of each
    bool direct = true;  // past the page cache of the filesystem below
  };
  // kNotSupported with the reason where the machine or the user cannot.
  // The keeper outlives it.
  static Result<std::unique_ptr<ThrottledDevices>> Create(const Options& options, const Keeper& keeper);
  // Detaches the devices and removes the cgroup, when its last process has ended. The files stay.
  ~ThrottledDevices();
  ThrottledDevices(const ThrottledDevices&) = delete;
  ThrottledDevices& operator=(const ThrottledDevices&) = delete;

  const std::vector<std::string>& paths() const { return paths_; }
  const std::string& cgroup() const { return cgroup_; }  // its directory

 private:
  explicit ThrottledDevices(const Keeper& keeper) : keeper_(keeper) {}
  Result<void> MakeCgroup();
  Result<void> Attach(const Options& options);
  Result<void> Limit(const std::string& path, uint64_t rate);

  const Keeper& keeper_;
  std::vector<std::string> paths_;
  std::string cgroup_;
  bool unified_ = false;  // cgroup v2
};

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// The checks that `weightfs doctor` makes on this machine.
#pragma once

#include <string>
#include <vector>

namespace weightfs::cli {

struct Check {
  enum class State : unsigned char {
    kUsed,       // there, and weightfs makes use of it
    kNotUsed,    // there or not: it makes no difference today
    kWouldHelp,  // missing or set so that weightfs is slower or can do less
    kMissing,    // without it no store can be mounted
  };
  std::string name, found;
  State state = State::kUsed;
  std::string next;  // the next step; empty when there is none
};

std::string StateName(Check::State state);

// Kernel, FUSE, libraries, limits, memory.
std::vector<Check> CheckMachine();

// The features of FUSE, one each, by a mount on a temporary directory for a moment.
std::vector<Check> CheckFuseFeatures();

// The device or the filesystem that holds `path`: direct I/O, its alignment, the queue of the disk.
std::vector<Check> CheckDevice(const std::string& name, const std::string& path);

}  // namespace weightfs::cli

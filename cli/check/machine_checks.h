// SPDX-License-Identifier: Apache-2.0
// The checks of `weightfs doctor`.
#pragma once

#include "store/volume/store_location.h"

namespace weightfs::cli {

inline constexpr const char* kStoreCheck = "store";  // the name of CheckStore

struct Check {
  enum class State : unsigned char {
    kUsed,       // present and used by weightfs
    kNotUsed,    // makes no difference at present
    kWouldHelp,  // missing, or configured so that weightfs is slower or can do less
    kMissing,    // no store can be mounted without it
  };
  std::string name, found;
  State state = State::kUsed;
  std::string next;  // the recommended next step, or empty
};

std::string StateName(Check::State state);

// Kernel, FUSE, libraries, limits, memory.
std::vector<Check> CheckMachine();

// The features of FUSE, one check each or one for all. Mounts a temporary directory briefly to find them.
std::vector<Check> CheckFuseFeatures(bool each);

// Whether handles can use GPUs here, and how their transfers are carried out. A machine without a GPU lacks nothing.
std::vector<Check> CheckGpus();

// Fill, mount, scrubs, and the space of the catalog. kMissing: the store cannot be opened.
Check CheckStore(const StoreLocation& store);

// The device or filesystem of `path`: direct I/O, its alignment, the disk's queue.
std::vector<Check> CheckDevice(const std::string& name, const std::string& path);

}  // namespace weightfs::cli

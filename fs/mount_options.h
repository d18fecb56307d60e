// SPDX-License-Identifier: Apache-2.0
// What a mount is asked to be: the options of `weightfs mount`, and the text form of them ("-o a,b=c").
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "store/store.h"

namespace weightfs {

// Who may get descriptors of the devices (lease/protocol.h): root, and with kOwner the user the mount runs as.
enum class DirectAccess : unsigned char { kOwner, kRoot, kOff };

// "owner", "root" or "off".
std::string_view DirectAccessName(DirectAccess direct);

struct MountOptions {
  std::string mountpoint;
  std::string store_directory;         // what /proc/mounts shows as the source
  std::array<uint8_t, 16> store_id{};  // for WEIGHTFS_IOC_INFO
  uint32_t store_format = 0;           // the same

  unsigned threads = 2;                // that receive requests
  std::chrono::microseconds spin{50};  // a busy receiver looks for the next request this long before it sleeps
  DirectAccess direct = DirectAccess::kOwner;
  bool page_cache = true;  // for files that are read again and again
  bool allow_other = false;
  bool read_only = false;
  ByteCount write_buffers{64 * kMiB};  // memory that large writes arrive in; the store keeps some of it until written
  ByteCount read_ahead{32 * kMiB};     // of the kernel, for mappings; 0 leaves what the kernel has
  uint32_t cache_seconds = 86400;      // how long the kernel may believe names and attributes
  std::vector<std::string> without;    // features (fs/kernel_features.h) treated as if the kernel lacked them
  std::vector<std::string> kernel_options;  // noatime, noexec, dev, suid, …: handed to the kernel
  bool remount = false;                     // change a mount in use
  std::vector<std::string> own_options;     // names of those that the mount itself has and a remount cannot change

  // Called once, from Run, when the mount answers requests.
  std::function<void()> ready;
  // Called once, from Run, when the mount ends; the last data is written after it.
  std::function<void()> ended;
};

// kNoMemory, with a full line, where the options that were given ask for more memory than this machine, or the cgroup
// of this process, has.
Result<void> CheckMemory(const MountOptions& mount, const StoreOptions& store);

// Applies a comma-separated list to `mount` and `store`; a later option wins, and a backslash keeps a comma in a value.
// kInvalid with a full line that names the option when one is unknown or its value is not possible; options before
// it are applied. What mount(8) and fstab add (defaults, auto, _netdev, nofail, x-…) is accepted and means nothing.
Result<void> ApplyMountOptions(std::string_view text, MountOptions& mount, StoreOptions& store);

// One "name: meaning" line for each option, for --help.
std::string MountOptionsHelp();

}  // namespace weightfs

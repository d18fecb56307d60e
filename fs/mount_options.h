// SPDX-License-Identifier: Apache-2.0
// The options of `weightfs mount`, and their text form ("-o a,b=c").
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/result.h"
#include "common/units.h"
#include "store/store.h"

namespace weightfs {

// The users that may get device descriptors (lease/protocol.h): root, and with kOwner also the user of the mount
// process.
enum class DirectAccess : unsigned char { kOwner, kRoot, kOff };

// "owner", "root" or "off".
std::string_view DirectAccessName(DirectAccess direct);

struct MountOptions {
  std::string mountpoint;
  std::string source;                  // the store, as shown in /proc/mounts
  std::string index;                   // the directory of the index of a store that is named by its devices
  std::array<uint8_t, 16> store_id{};  // for WEIGHTFS_IOC_INFO
  uint32_t store_format = 0;           // for WEIGHTFS_IOC_INFO

  unsigned threads = 2;                // threads that receive requests
  std::chrono::microseconds spin{50};  // busy-poll time before a receiver sleeps
  DirectAccess direct = DirectAccess::kOwner;
  bool page_cache = true;  // for files that are read repeatedly
  bool allow_other = false;
  bool read_only = false;
  ByteCount write_buffers{64 * kMiB};       // buffers for large writes; the store may keep some until they are written
  ByteCount read_ahead{32 * kMiB};          // the kernel's read-ahead for mappings; 0: the kernel's default
  uint32_t cache_seconds = 86400;           // validity of names and attributes in the kernel's cache
  std::vector<std::string> without;         // features (fs/kernel_features.h) to disable
  std::vector<std::string> kernel_options;  // noatime, noexec, dev, suid, …: passed to the kernel
  std::string metrics;                      // where metrics are served (fs/metrics_server.h); empty: nowhere
  bool remount = false;                     // change a mount in use
  std::vector<std::string> own_options;     // names of options that the mount has and a remount cannot change

  // The kernel queues the release of a file before close(2) returns, and a mount serves it at once unless the machine
  // is very busy. So if no release has followed a close for longer, that was the close of a copy of the descriptor.
  std::chrono::milliseconds release_delay{1000};
  // Maximum time that a rename waits for such releases.
  std::chrono::milliseconds release_wait{250};

  // Less important messages are dropped.
  spdlog::level::level_enum log_level = spdlog::level::info;

  // Called once from Run when the mount starts to serve requests.
  std::function<void()> ready;
  // Called once from Run when the mount ends, before the last data is written.
  std::function<void()> ended;
};

// StoreOptions::hot_memory where no option sets it: a quarter of the machine's memory, or of this process's cgroup; less
// where the other options leave less.
ByteCount DefaultHotMemory(const MountOptions& mount, const StoreOptions& store);

// Returns kNoMemory with a full line when the options need more memory than this machine, or this process's cgroup,
// has.
Result<void> CheckMemory(const MountOptions& mount, const StoreOptions& store);

// Applies a comma-separated list to `mount` and `store`. A later option wins; a backslash escapes a comma in a value.
// Returns kInvalid with a full line that names an unknown option or one with an invalid value; the options before it
// are applied. Options that mount(8) and fstab add (defaults, auto, _netdev, nofail, x-…) are ignored.
Result<void> ApplyMountOptions(std::string_view text, MountOptions& mount, StoreOptions& store);

// The table behind the help, the man pages and the completions.
struct MountOptionHelp {
  std::string_view name;
  std::string_view value;  // "SIZE", or "auto|never"; empty if the option takes no value
  std::string_view meaning;
  bool expert = false;  // listed apart: the default is right for nearly everybody
};
std::vector<MountOptionHelp> DescribeMountOptions();

// The names of the options that are passed to the kernel; those that take a value end with '='.
std::vector<std::string_view> KernelMountOptions();

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "fs/mount_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "common/machine_memory.h"
#include "common/nearest_name.h"
#include "common/parse_number.h"
#include "common/size_text.h"
#include "fs/kernel_features.h"
#include "fs/mount_flags.h"
#include "store/file/extent_map.h"
#include "store/names/inode_table.h"

namespace weightfs {
namespace {

// The memory of one resident inode: its record, its entries in the tables of the daemon and the kernel, its extents.
constexpr uint64_t kInodeBytes = 1024 + InodeTable::kExtentsPerInode * ExtentMemory::kExtentBytes;
constexpr uint64_t kOtherMemory = 192 * kMiB;  // RocksDB's, and that of the program itself

struct Target {
  MountOptions& mount;
  StoreOptions& store;
};

bool OneOf(std::string_view text, std::span<const std::string_view> known) {
  return std::ranges::find(known, text) != known.end();
}

bool HasPrefix(std::string_view text, std::span<const std::string_view> prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return text.starts_with(prefix); });
}

Error Impossible(std::string_view name, std::string_view value, std::string_view wanted) {
  return Error{ErrorCode::kInvalid, fmt::format("option {}={}: {}", name, value, wanted)};
}

Result<uint64_t> ParseCount(std::string_view name, std::string_view value, uint64_t least, uint64_t most) {
  const auto number = ParseNumber<uint64_t>(value);
  if (number && *number >= least && *number <= most) return *number;
  return Impossible(name, value, fmt::format("must be a number from {} to {}", least, most));
}

Result<ByteCount> ParseBytes(std::string_view name, std::string_view value, ByteCount least) {
  auto bytes = ParseSize(value);
  if (!bytes.has_value()) return Impossible(name, value, bytes.error().what);
  if (*bytes < least) return Impossible(name, value, fmt::format("must be at least {}", FormatSize(least)));
  return bytes;
}

// Parses seconds with an optional fraction; returns milliseconds.
Result<std::chrono::milliseconds> ParseSeconds(std::string_view name, std::string_view value) {
  const auto seconds = ParseNumber<double>(value);
  if (!seconds || !(*seconds >= 0.001) || *seconds > 3600)
    return Impossible(name, value, "must be seconds from 0.001 to 3600");
  return std::chrono::milliseconds(static_cast<int64_t>(*seconds * 1000));
}

// Parses days with an optional fraction, or "off"; returns milliseconds.
Result<std::chrono::milliseconds> ParseDays(std::string_view name, std::string_view value) {
  if (value == "off") return std::chrono::milliseconds(0);
  constexpr double kMillisecondsPerDay = 86'400'000, kMostDays = 3650;
  const auto days = ParseNumber<double>(value);
  const double milliseconds = days.value_or(0) * kMillisecondsPerDay;
  if (!(milliseconds >= 1) || *days > kMostDays)
    return Impossible(name, value, "must be off, or days up to 3650, fractions allowed");
  return std::chrono::milliseconds(static_cast<int64_t>(milliseconds));
}

Result<void> SetWithout(Target target, std::string_view, std::string_view value) {
  std::vector<std::string> names;
  while (!value.empty()) {
    const size_t end = value.find_first_of(":,");
    names.emplace_back(value.substr(0, end));
    value = end == std::string_view::npos ? std::string_view() : value.substr(end + 1);
  }
  RETURN_IF_ERROR(ParseFeatureMask(names));
  for (std::string& name : names) target.mount.without.push_back(std::move(name));
  return {};
}

using Setter = Result<void> (*)(Target, std::string_view name, std::string_view value);

template <typename T>
MountOptions& PartOf(Target target, T MountOptions::*) {
  return target.mount;
}
template <typename T>
StoreOptions& PartOf(Target target, T StoreOptions::*) {
  return target.store;
}

// Setters of a member of MountOptions or StoreOptions.
template <auto kMember, bool kValue = true>
Result<void> SetFlag(Target target, std::string_view, std::string_view) {
  PartOf(target, kMember).*kMember = kValue;
  return {};
}
template <auto kMember, uint64_t kLeast, uint64_t kMost>
Result<void> SetNumber(Target target, std::string_view name, std::string_view value) {
  auto& member = PartOf(target, kMember).*kMember;
  ASSIGN_OR_RETURN(const uint64_t number, ParseCount(name, value, kLeast, kMost));
  member = static_cast<std::remove_reference_t<decltype(member)>>(number);
  return {};
}
template <auto kMember, uint64_t kLeast>
Result<void> SetSize(Target target, std::string_view name, std::string_view value) {
  ASSIGN_OR_RETURN(PartOf(target, kMember).*kMember, ParseBytes(name, value, ByteCount{kLeast}));
  return {};
}

template <bool kReadOnly>
Result<void> SetReadOnly(Target target, std::string_view, std::string_view) {
  target.mount.read_only = target.store.read_only = kReadOnly;
  return {};
}

Result<void> SetCache(Target target, std::string_view name, std::string_view value) {
  if (value != "auto" && value != "never") return Impossible(name, value, "must be auto or never");
  target.mount.page_cache = value == "auto";
  return {};
}

Result<void> SetDirect(Target target, std::string_view name, std::string_view value) {
  for (const DirectAccess direct : {DirectAccess::kOwner, DirectAccess::kRoot, DirectAccess::kOff}) {
    if (value != DirectAccessName(direct)) continue;
    target.mount.direct = direct;
    return {};
  }
  return Impossible(name, value, "must be owner, root or off");
}

Result<void> SetCommit(Target target, std::string_view name, std::string_view value) {
  ASSIGN_OR_RETURN(target.store.commit_interval, ParseSeconds(name, value));
  return {};
}

Result<void> SetScrub(Target target, std::string_view name, std::string_view value) {
  ASSIGN_OR_RETURN(target.store.scrub.period, ParseDays(name, value));
  return {};
}

Result<void> SetScrubRate(Target target, std::string_view name, std::string_view value) {
  ASSIGN_OR_RETURN(target.store.scrub.rate, ParseBytes(name, value, ByteCount{kMiB}));
  return {};
}

Result<void> SetMetrics(Target target, std::string_view name, std::string_view value) {
  if (value.find(':') == std::string_view::npos && !value.starts_with('/')) {
    return Impossible(name, value, "must be HOST:PORT, such as 127.0.0.1:9464, or an absolute path");
  }
  target.mount.metrics = value;
  return {};
}

Result<void> SetIndex(Target target, std::string_view, std::string_view value) {
  target.mount.index = value;
  return {};
}

Result<void> SetLog(Target target, std::string_view name, std::string_view value) {
  constexpr std::string_view kLevels[] = {"error", "warn", "info", "debug"};
  if (!OneOf(value, kLevels)) return Impossible(name, value, "must be error, warn, info or debug");
  target.mount.log_level = spdlog::level::from_str(std::string(value));
  return {};
}

struct Option {
  std::string_view name;
  std::string_view value;  // shown in --help; empty: the option takes no value
  std::string_view meaning;
  Setter set;
};

constexpr Option kOptions[] = {
    {"ro", "", "mount read-only", SetReadOnly<true>},
    {"rw", "", "mount for reading and writing (the default)", SetReadOnly<false>},
    {"allow_other", "", "allow access by other users, with the permissions of the files",
     SetFlag<&MountOptions::allow_other>},
    {"threads", "N", "threads that receive requests (2)", SetNumber<&MountOptions::threads, 1, 64>},
    {"spin", "MICROSECONDS", "busy-poll time of a receiver before it sleeps (50)",
     SetNumber<&MountOptions::spin, 0, 1000>},
    {"cache", "auto|never", "the kernel's page cache for files that are read repeatedly (auto)", SetCache},
    {"direct", "owner|root|off",
     "users with direct access to the devices: its user and root, only root, or nobody (owner)", SetDirect},
    {"memory", "SIZE", "memory for read-ahead and unwritten data (384M; at least 112M)",
     SetSize<&StoreOptions::memory, kLeastMemory.value>},
    {"cache_memory", "SIZE",
     "memory for files that programs load, shared with them (at most a quarter of the machine's; 0: none)",
     SetSize<&StoreOptions::hot_memory, 0>},
    {"write_buffers", "SIZE", "memory that receives large writes (64M)",
     SetSize<&MountOptions::write_buffers, 4 * kMiB>},
    {"read_ahead", "SIZE", "the kernel's read-ahead for mappings (32M); 0 leaves it unchanged",
     SetSize<&MountOptions::read_ahead, 0>},
    {"inodes", "N", "size of the inode cache (16384)",
     SetNumber<&StoreOptions::resident_inodes, 16, uint64_t{1} << 32>},
    {"commit", "SECONDS", "maximum data loss after a crash, in seconds (5)", SetCommit},
    {"sync_on_close", "", "close waits until the file is durable", SetFlag<&StoreOptions::sync_on_close>},
    {"scrub", "DAYS|off", "read and verify everything every DAYS days, fractions allowed (off)", SetScrub},
    {"scrub_rate", "SIZE", "maximum rate of scrub=, per second (256M; at least 1M)", SetScrubRate},
    {"metrics", "ADDRESS", "serve metrics for Prometheus over HTTP at HOST:PORT, or at a Unix socket /PATH (off)",
     SetMetrics},
    {"index", "DIR", "directory of the index of a store that is named by its devices (/var/cache/weightfs/ID)",
     SetIndex},
    {"log", "error|warn|info|debug", "the least important messages of the log (info)", SetLog},
    {"noverify", "", "do not verify checksums on reads; for measurements only",
     SetFlag<&StoreOptions::verify, false>},
    {"without", "FEATURE,...", "do not use these kernel features", SetWithout},
};

// Those whose defaults are right for nearly everybody.
constexpr std::string_view kExperts[] = {"threads", "spin",       "write_buffers", "read_ahead",
                                         "inodes",  "scrub_rate", "noverify",      "without"};

// Options passed to the kernel unchanged, besides its flags (fs/mount_flags.h). context= and similar options belong to
// SELinux.
constexpr std::string_view kKernelOptions[] = {"auto_unmount"};
constexpr std::string_view kKernelPrefixes[] = {"context=", "fscontext=", "defcontext=", "rootcontext="};

// Options between fstab and mount(8).
constexpr std::string_view kIgnored[] = {"defaults", "auto",  "noauto", "user",    "nouser", "users",   "owner",
                                         "noowner",  "group", "nogroup", "nofail", "_netdev", "default_permissions"};
constexpr std::string_view kIgnoredPrefixes[] = {"x-", "X-", "comment=", "user="};

// Options that mount(8) reads from the mount table and passes on a remount.
constexpr std::string_view kTablePrefixes[] = {
    "user_id=", "group_id=", "rootmode=", "max_read=", "blksize=", "subtype=", "fsname=", "uhelper="};
constexpr std::string_view kTableWords[] = {"seclabel"};

// The names that a user may have meant, without their values.
std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const MountOptionHelp& option : DescribeMountOptions()) names.emplace_back(option.name);
  for (const std::string_view option : KernelMountOptions()) names.emplace_back(option.substr(0, option.find('=')));
  names.insert(names.end(), std::begin(kIgnored), std::end(kIgnored));
  return names;
}

Result<void> ApplyOne(const std::string& option, Target target) {
  const size_t equals = option.find('=');
  const bool has_value = equals != std::string::npos;
  const std::string_view name = std::string_view(option).substr(0, equals);
  const std::string_view value = has_value ? std::string_view(option).substr(equals + 1) : std::string_view();
  for (const Option& known : kOptions) {
    if (known.name != name) continue;
    if (has_value && known.value.empty()) return Impossible(name, value, "the option takes no value");
    if (!known.value.empty() && value.empty())
      return Error{ErrorCode::kInvalid, fmt::format("option {} needs a value: {}={}", name, name, known.value)};
    if (name != "ro" && name != "rw") target.mount.own_options.emplace_back(name);
    return known.set(target, name, value);
  }
  if (option == "remount") {
    target.mount.remount = true;
    return {};
  }
  if (IsMountFlag(option) || OneOf(option, kKernelOptions) || HasPrefix(option, kKernelPrefixes)) {
    target.mount.kernel_options.push_back(option);
    return {};
  }
  if (OneOf(option, kIgnored) || HasPrefix(option, kIgnoredPrefixes)) return {};
  if (target.mount.remount && (OneOf(option, kTableWords) || HasPrefix(option, kTablePrefixes))) return {};
  const std::vector<std::string> names = AllNames();
  const std::string_view meant = NearestName(name, names);
  const std::string hint = meant.empty() ? std::string() : fmt::format(" (did you mean '{}'?)", meant);
  return Error{ErrorCode::kInvalid,
               fmt::format("unknown mount option '{}'{}; `weightfs mount --help` lists them", option, hint)};
}

}  // namespace

std::string_view DirectAccessName(DirectAccess direct) {
  switch (direct) {
    case DirectAccess::kOwner: return "owner";
    case DirectAccess::kRoot: return "root";
    case DirectAccess::kOff: return "off";
  }
  return "";
}

Result<void> ApplyMountOptions(std::string_view text, MountOptions& mount, StoreOptions& store) {
  std::string option;
  bool in_without = false;  // "without=a,b": the next feature name continues the list
  const auto apply = [&](const std::string& whole) -> Result<void> {
    if (in_without && ParseFeatureMask({whole}).has_value()) {
      mount.without.push_back(whole);
      return {};
    }
    in_without = whole.compare(0, 8, "without=") == 0;
    return ApplyOne(whole, Target{mount, store});
  };
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '\\' && i + 1 < text.size()) {
      option.push_back(text[++i]);
      continue;
    }
    if (i < text.size() && text[i] != ',') {
      option.push_back(text[i]);
      continue;
    }
    if (!option.empty()) RETURN_IF_ERROR(apply(std::exchange(option, {})));
  }
  return {};
}

ByteCount DefaultHotMemory(const MountOptions& mount, const StoreOptions& store) {
  const auto limit = FindMemoryLimit();
  if (!limit.has_value()) return {};
  const uint64_t others =
      store.memory.value + mount.write_buffers.value + store.resident_inodes * kInodeBytes + kOtherMemory;
  return ByteCount{std::min(limit->size.value / 4, limit->size.value - std::min(limit->size.value, others))};
}

Result<void> CheckMemory(const MountOptions& mount, const StoreOptions& store) {
  const auto limit = FindMemoryLimit();
  if (!limit.has_value()) return {};
  struct Part {
    std::string_view option;
    ByteCount size;
    bool kernel = false;  // pages that are reclaimed under memory pressure
  };
  const Part parts[] = {{"memory", store.memory},
                        {"cache_memory", store.hot_memory},
                        {"write_buffers", mount.write_buffers},
                        {"inodes", ByteCount{store.resident_inodes * kInodeBytes}},
                        {"read_ahead", mount.read_ahead, true}};
  ByteCount sum;
  std::string names;
  const auto refuse = [&](std::string_view options, ByteCount size) {
    return Error{ErrorCode::kNoMemory, fmt::format("option {}: needs {} of memory, but {} has {}; reduce it", options,
                                                   FormatSize(size), limit->source, FormatSize(limit->size))};
  };
  for (const Part& part : parts) {
    // Defaults may exceed a small machine: their memory is reserved, but used only as needed.
    if (std::find(mount.own_options.begin(), mount.own_options.end(), part.option) == mount.own_options.end()) continue;
    if (part.kernel && part.size > limit->size) return refuse(fmt::format("{}=", part.option), part.size);
    if (part.kernel) continue;
    sum += part.size;
    names += fmt::format("{}{}=", names.empty() ? "" : " + ", part.option);
    if (sum > limit->size) return refuse(names, sum);
  }
  return {};
}

std::vector<MountOptionHelp> DescribeMountOptions() {
  std::vector<MountOptionHelp> options;
  for (const Option& option : kOptions) {
    options.push_back({option.name, option.value, option.meaning, OneOf(option.name, kExperts)});
  }
  options.push_back({"remount", "", "change ro, rw and the kernel's options of an active mount"});
  return options;
}

std::vector<std::string_view> KernelMountOptions() {
  std::vector<std::string_view> names = MountFlagNames();
  names.insert(names.end(), std::begin(kKernelOptions), std::end(kKernelOptions));
  names.insert(names.end(), std::begin(kKernelPrefixes), std::end(kKernelPrefixes));
  return names;
}

}  // namespace weightfs

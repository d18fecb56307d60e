// SPDX-License-Identifier: Apache-2.0
#include "cli/store_look.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include "cli/mount_table.h"
#include "cli/scrub_report.h"
#include "common/processes.h"
#include "store/store.h"

namespace weightfs::cli {
namespace {

// A store nobody serves: the same figures that a mount would give.
Result<StoreLook> LookAtStore(const StoreLocation& location) {
  OpenOptions look;
  look.lock = false;
  look.queue_depth = 32;
  ASSIGN_OR_RETURN(StoreParts parts, OpenStoreParts(location, look));
  const bool was_clean = parts.was_clean;
  const std::string lost = parts.lost ? parts.note : std::string();
  StoreOptions options;
  options.read_only = true;
  options.device_sizes = DeviceSizes(parts.superblocks);
  options.log = std::move(parts.log);
  ASSIGN_OR_RETURN(auto store, Store::Open(std::move(parts.catalog), std::move(parts.devices), options));
  const SpaceStatistics space = store->Space();
  const ScrubReport scrubs = store->Scrub();
  RETURN_IF_ERROR(store->Close());
  return StoreLook{Space{ToBytes(space.total).value, ToBytes(space.free).value, ToBytes(space.available).value},
                   was_clean, lost, scrubs};
}

Result<StoreLook> LookAtMount(const std::string& directory) {
  ASSIGN_OR_RETURN(const Space space, SpaceOfMount(directory));
  const UniqueFd file(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return StoreLook{.space = space, .scrubs = file ? AskForScrubs(file.get()) : std::nullopt};
}

// Only the holder has the figures of a store that it changes; as root a daemon can be reached through another
// namespace.
Result<StoreLook> LookAtHidden(const Keepers& keepers) {
  for (const NamespaceMounts& elsewhere : keepers.elsewhere) {
    const std::string root = fmt::format("/proc/{}/root", elsewhere.processes.front());
    const auto look = LookAtMount(root + elsewhere.mounts.front().directory);
    if (look.has_value()) return look;
  }
  return StoreLook{};
}

// A mount that a killed daemon has left.
bool IsDead(const MountEntry& mount) {
  struct statvfs status = {};
  return statvfs(mount.directory.c_str(), &status) != 0 && errno == ENOTCONN;
}

}  // namespace

Result<Space> SpaceOfMount(const std::string& directory) {
  struct statvfs status = {};
  if (statvfs(directory.c_str(), &status) != 0) return SystemError(directory, "cannot be examined");
  return Space{uint64_t{status.f_blocks} * status.f_frsize, uint64_t{status.f_bfree} * status.f_frsize,
               uint64_t{status.f_bavail} * status.f_frsize};
}

StoreView ViewStore(const StoreLocation& store) {
  StoreView view{
      .holder = ReadStoreHolder(store.directory), .mount = {}, .stale = {}, .keepers = {}, .look = StoreLook{}};
  // A daemon that was killed may still be ending; the callers report every other holder of the store.
  if (view.holder.process > 0 && IsEnding(view.holder.process)) {
    static_cast<void>(WaitUntilReleased(store));
    view.holder = ReadStoreHolder(store.directory);
  }
  view.mount = FindMountOfStore(store, view.holder);
  if (view.mount.has_value() && IsDead(*view.mount)) {
    view.stale = view.mount->directory;
    view.mount.reset();
  }
  if (!view.mount.has_value() && view.served()) view.keepers = FindKeepers(view.holder.filesystem);
  view.look = view.mount.has_value() ? LookAtMount(view.mount->directory)
              : view.holder.held     ? LookAtHidden(view.keepers)
                                     : LookAtStore(store);
  return view;
}

}  // namespace weightfs::cli

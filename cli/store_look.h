// SPDX-License-Identifier: Apache-2.0
// The state of a store, mounted or not, for info and doctor.
#pragma once

#include "cli/keepers.h"
#include "store/scrub/scrub_state.h"

namespace weightfs::cli {

struct Space {
  uint64_t total = 0, free = 0, available = 0;  // bytes
};

// `clean_unmount` has a value for a store that is not mounted.
struct StoreLook {
  std::optional<Space> space;
  std::optional<bool> clean_unmount;
  std::string lost;  // what a mount for writing is refused for; empty: nothing
  std::optional<ScrubReport> scrubs;
};

struct StoreView {
  StoreHolder holder;
  std::optional<MountEntry> mount;  // in this mount namespace, with a daemon
  std::string stale;                // the directory of a mount that a killed daemon has left; empty: none
  Keepers keepers;                  // of a store that is served, but not here
  Result<StoreLook> look;

  bool served() const { return holder.held && holder.state == StoreHolder::State::kServing; }
};

Result<Space> SpaceOfMount(const std::string& directory);

// Waits for a daemon that is ending. Changes nothing.
StoreView ViewStore(const StoreLocation& store);

}  // namespace weightfs::cli

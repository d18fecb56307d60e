// SPDX-License-Identifier: Apache-2.0
#include "cli/store_wait.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "common/shell_quote.h"
#include "store/volume/store_directory.h"
#include "store/volume/store_guard.h"

namespace weightfs::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLimit = std::chrono::minutes(1);
constexpr auto kPoll = std::chrono::milliseconds(20);
// A command that is just starting or ending changes its note within this time. Also the interval between scans of all
// processes.
constexpr auto kSettled = std::chrono::seconds(1);

Error InUse(const std::string& directory, const StoreHolder& holder, std::string_view advice) {
  return {ErrorCode::kBusy,
          fmt::format("{}: the store is in use by {}; {}", directory, DescribeProcess(holder.process), advice)};
}

// kBusy if waiting for the holder cannot help, as far as this process can see.
Result<void> CheckHolder(const std::string& directory, const StoreHolder& holder, bool settled) {
  const auto mount = FindServedMount(holder);
  // A process in another PID namespace may have been killed.
  if (mount.has_value() && (holder.process > 0 || settled)) {
    return InUse(directory, holder, "unmount it first: weightfs umount " + ShellQuote(mount->directory));
  }
  if (!settled) return {};
  if (holder.state == StoreHolder::State::kWorking) {
    return InUse(directory, holder, "wait until that command has ended");
  }
  // A holder on another machine cannot be seen from here.
  if (holder.state == StoreHolder::State::kServing && holder.process == 0 && MayLoseLocks(directory)) {
    return InUse(directory, holder, "unmount it on the machine that serves it; if that machine has failed, the "
                                    "filesystem drops its locks after a while");
  }
  const Keepers keepers = FindKeepers(holder.device);
  return keepers.empty() ? Result<void>() : StillServed(directory, holder, keepers);
}

}  // namespace

Result<void> WaitUntilReleased(const std::string& directory) {
  const auto start = Clock::now();
  auto next_look = start + kSettled;
  StoreHolder before;
  for (auto now = start; now < start + kLimit; now = Clock::now()) {
    const StoreHolder holder = ReadStoreHolder(directory);
    if (!holder.held) return {};
    if (holder.noted != before.noted || holder.state != before.state) next_look = now + kSettled;
    before = holder;
    if (!holder.IsEnding()) RETURN_IF_ERROR(CheckHolder(directory, holder, now >= next_look));
    if (now >= next_look) next_look = now + kSettled;
    std::this_thread::sleep_for(kPoll);
  }
  if (before.state != StoreHolder::State::kServing || before.IsEnding()) return {};
  return StillServed(directory, before, FindKeepers(before.device));
}

}  // namespace weightfs::cli

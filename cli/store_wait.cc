// SPDX-License-Identifier: Apache-2.0
#include "cli/store_wait.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "common/shell_quote.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

constexpr auto kLimit = std::chrono::minutes(1);
constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr auto kLookInterval = std::chrono::seconds(1);  // between looks through all processes

// PF_EXITING of the kernel, as field 9 of /proc/PID/stat shows it.
constexpr unsigned long kExiting = 0x4;

bool HasPendingKill(pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigPnd:") && !line.starts_with("ShdPnd:")) continue;
    const unsigned long long pending = std::strtoull(line.c_str() + 7, nullptr, 16);
    if ((pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

}  // namespace

bool IsEnding(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  if (!std::getline(file, line)) return true;
  // The name in parentheses may hold anything; what follows it has fixed places: state, five numbers, flags.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  char state = 0;
  long skipped = 0;
  unsigned long flags = 0;
  fields >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> flags;
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0 || HasPendingKill(process);
}

Result<void> WaitUntilReleased(const std::string& directory) {
  // Acquire would make the file, also in a directory that is no store.
  if (access((directory + "/" + kLockName).c_str(), F_OK) != 0) return {};
  const auto start = std::chrono::steady_clock::now();
  // Somebody may just have ended the daemon, or the processes that keep it.
  auto next_look = start + kLookInterval;
  StoreHolder holder;
  for (auto now = start; now < start + kLimit; now = std::chrono::steady_clock::now()) {
    const auto lock = StoreLock::Acquire(directory);
    if (lock.has_value() || lock.error().code != ErrorCode::kBusy) return {};
    holder = ReadStoreHolder(directory);
    const bool works = holder.process > 0 && !IsEnding(holder.process) && holder.state != StoreHolder::State::kClosing;
    if (!works) {
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    if (const auto mount = FindMountOfStore(directory)) {
      return Error{ErrorCode::kBusy,
                   fmt::format("{}: the store is in use by {}; unmount it first: weightfs umount {}", directory,
                               DescribeProcess(holder.process), ShellQuote(mount->directory))};
    }
    if (now >= next_look && !holder.device.empty()) {
      const Keepers keepers = FindKeepers(holder.device);
      if (!keepers.empty()) return StillServed(directory, holder, keepers);
      next_look = now + kLookInterval;
    }
    std::this_thread::sleep_for(kPoll);
  }
  if (holder.state != StoreHolder::State::kServing || IsEnding(holder.process)) return {};
  return StillServed(directory, holder, FindKeepers(holder.device));
}

}  // namespace weightfs::cli

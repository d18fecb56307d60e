#include "cli/store_wait.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/mount_table.h"
#include "store/store_directory.h"

namespace weightfs::cli {
namespace {

constexpr auto kLimit = std::chrono::minutes(1);
constexpr auto kPoll = std::chrono::milliseconds(20);

// PF_EXITING of the kernel, as field 9 of /proc/PID/stat shows it.
constexpr unsigned long kExiting = 0x4;

pid_t Holder(const std::string& directory) {
  std::ifstream file(directory + "/" + kLockName);
  pid_t process = 0;
  return file >> process ? process : 0;
}

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

void WaitUntilReleased(const std::string& directory) {
  // Acquire would make the file, also in a directory that is no store.
  if (access((directory + "/" + kLockName).c_str(), F_OK) != 0) return;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (std::chrono::steady_clock::now() < end) {
    const auto lock = StoreLock::Acquire(directory);
    if (lock.has_value() || lock.error().code != ErrorCode::kBusy) return;
    const pid_t holder = Holder(directory);
    const bool ending = holder > 0 && IsEnding(holder);
    if (!ending && FindMountOfStore(directory).has_value()) return;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace weightfs::cli

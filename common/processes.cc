// SPDX-License-Identifier: Apache-2.0
#include "common/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "common/parse_number.h"
#include "common/printable.h"
#include "common/system_calls.h"
#include "common/unique_fd.h"

namespace weightfs {
namespace {

// The kernel's PF_EXITING, in field 9 of /proc/PID/stat.
constexpr unsigned long kExiting = 0x4;

UniqueFd OpenInProc(const std::string& path, int flags) {
  const int proc = ProcDirectory();
  return proc < 0 ? UniqueFd() : UniqueFd(openat(proc, path.c_str(), flags));
}

bool HasPendingKill(pid_t process) {
  std::istringstream status(ReadProcFile(fmt::format("{}/status", process)).value_or(""));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("SigPnd:") && !line.starts_with("ShdPnd:")) continue;
    const unsigned long long pending = std::strtoull(line.c_str() + 7, nullptr, 16);
    if ((pending >> (SIGKILL - 1) & 1) != 0) return true;
  }
  return false;
}

bool HasOpen(pid_t process, const struct stat& file) {
  const std::string folder = fmt::format("{}/fd", process);
  for (const std::string& name : ListProc(folder).value_or(std::vector<std::string>())) {
    struct stat status = {};
    if (fstatat(ProcDirectory(), fmt::format("{}/{}", folder, name).c_str(), &status, 0) != 0) continue;
    if (status.st_dev == file.st_dev && status.st_ino == file.st_ino) return true;
  }
  return false;
}

// Example: "1: FLOCK  ADVISORY  WRITE 4711 fe:00:2153518 0 EOF". Locks of processes outside the PID namespace are not
// listed.
pid_t ListedHolder(const struct stat& file) {
  const std::string wanted = fmt::format("{:02x}:{:02x}:{}", major(file.st_dev), minor(file.st_dev), file.st_ino);
  std::istringstream lines(ReadProcFile("locks").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, place;
    pid_t process = 0;
    fields >> number >> kind >> mode >> access >> process >> place;
    if (kind == "FLOCK" && access == "WRITE" && place == wanted) return process;
  }
  return 0;
}

}  // namespace

int ProcDirectory() {
  static std::atomic<int> opened{-1};
  if (opened.load() >= 0) return opened.load();
  UniqueFd directory(open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return -1;
  int none = -1;
  if (opened.compare_exchange_strong(none, directory.get())) directory.Release();  // stays open
  return opened.load();
}

std::optional<std::string> ReadProcFile(const std::string& path) {
  const UniqueFd file = OpenInProc(path, O_RDONLY | O_CLOEXEC);
  if (!file) return std::nullopt;
  std::string text;
  char piece[16384];
  ssize_t got = 0;
  const auto read_piece = [&] { return read(file.get(), piece, sizeof(piece)); };
  while ((got = RepeatInterrupted(read_piece)) > 0) text.append(piece, static_cast<size_t>(got));
  return got < 0 ? std::nullopt : std::optional(std::move(text));
}

std::string ReadProcLink(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t size = readlinkat(ProcDirectory(), path.c_str(), target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : std::string();
}

std::optional<std::vector<std::string>> ListProc(const std::string& path) {
  UniqueFd directory = OpenInProc(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (!directory) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(fdopendir(directory.get()), closedir);
  if (entries == nullptr) return std::nullopt;
  directory.Release();  // the stream closes it
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(entries.get());
    if (entry == nullptr) return errno == 0 ? std::optional(std::move(names)) : std::nullopt;
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> processes;
  for (const std::string& name : ListProc(".").value_or(std::vector<std::string>())) {
    if (const auto pid = ParseNumber<pid_t>(name)) processes.push_back(*pid);
  }
  return processes;
}

std::string CommandOf(pid_t process) {
  const std::string text = ReadProcFile(fmt::format("{}/comm", process)).value_or("");
  return Printable(text.substr(0, text.rfind('\n')));
}

std::string DescribeProcess(pid_t process) {
  if (process <= 0) return "another process";
  const std::string command = CommandOf(process);
  return command.empty() ? fmt::format("process {}", process) : fmt::format("process {} ({})", process, command);
}

bool IsEnding(pid_t process) {
  const auto text = ReadProcFile(fmt::format("{}/stat", process));
  if (!text.has_value()) return true;
  // The name in parentheses may contain anything. The fields after it have fixed positions: state, five numbers, flags.
  std::istringstream fields(text->substr(text->rfind(')') + 1));
  char state = 0;
  long skipped = 0;
  unsigned long flags = 0;
  fields >> state >> skipped >> skipped >> skipped >> skipped >> skipped >> flags;
  return state == 'Z' || state == 'X' || (flags & kExiting) != 0 || HasPendingKill(process);
}

pid_t FindLockHolder(int descriptor, pid_t claimed) {
  struct stat file = {};
  if (fstat(descriptor, &file) != 0) return 0;
  const pid_t listed = ListedHolder(file);
  if (listed > 0) return listed;
  // Some filesystems list their files under a different device number.
  return claimed > 0 && HasOpen(claimed, file) ? claimed : 0;
}

}  // namespace weightfs

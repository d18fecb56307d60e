// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "bench/suite/process.h"

namespace weightfs::bench {
namespace {

using Item = std::pair<Kept, std::string>;

// /proc/self/mounts writes a space as \040; the paths here are absolute and resolved.
bool IsMounted(std::string path) {
  for (size_t at = 0; (at = path.find(' ', at)) != std::string::npos;) path.replace(at, 1, "\\040");
  std::ifstream mounts("/proc/self/mounts");
  for (std::string source, point, rest; mounts >> source >> point && std::getline(mounts, rest);) {
    if (point == path) return true;
  }
  return false;
}

bool HasMountBelow(const std::string& directory) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string source, point, rest; mounts >> source >> point && std::getline(mounts, rest);) {
    if (point.starts_with(directory + "/")) return true;
  }
  return false;
}

void TakeAway(const std::string& program, const Item& item) {
  const auto& [kind, path] = item;
  std::error_code error;
  switch (kind) {
    case Kept::kMount:
      if (IsMounted(path)) (void)RunCommand({{program, "umount", path}, {}, nullptr});
      break;
    case Kept::kDirectory:
      // Never through a mount that would not go.
      if (!HasMountBelow(path)) std::filesystem::remove_all(path, error);
      break;
    case Kept::kLoopDevice: (void)RunCommand({{"losetup", "--detach", path}, {}, nullptr}); break;
    case Kept::kCgroup: RemoveCgroup(path); break;
  }
}

// Reads what is told until the benchmark has ended; then takes away what is left, the newest first.
[[noreturn]] void Keep(int pipe, const std::string& program) {
  setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(number, SIG_IGN);
  // The output of the benchmark ends with the benchmark.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, standard);
  std::vector<Item> items;
  FILE* const lines = fdopen(pipe, "r");
  char* line = nullptr;
  size_t capacity = 0;
  for (ssize_t length; lines != nullptr && (length = getline(&line, &capacity, lines)) > 0;) {
    const std::string text(line, static_cast<size_t>(length) - 1);
    if (text.size() < 3) continue;
    Item item{static_cast<Kept>(text[1]), text.substr(2)};
    std::erase(items, item);
    if (text[0] == '+') items.push_back(std::move(item));
  }
  while (!items.empty()) {
    TakeAway(program, items.back());
    items.pop_back();
  }
  _exit(0);
}

}  // namespace

void RemoveCgroup(const std::string& directory) {
  // A daemon that has given back its store may still be ending.
  constexpr int kTries = 200, kPauseUs = 20'000;
  for (int tried = 0; tried < kTries && rmdir(directory.c_str()) != 0 && errno == EBUSY; ++tried) usleep(kPauseUs);
}

Result<Keeper> Keeper::Start(const std::string& program) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", "cannot be made");
  File read_end(ends[0]), write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return SystemError("the keeper", "fork");
  if (pid == 0) {
    // Twice, so that nobody has to wait for it.
    if (fork() != 0) _exit(0);
    write_end.Reset();
    Keep(read_end.get(), program);
  }
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return Keeper(std::move(write_end));
}

void Keeper::Tell(char sign, Kept kind, const std::string& path) const {
  const std::string line = fmt::format("{}{}{}\n", sign, static_cast<char>(kind), path);
  // Nothing can be done about a keeper that is gone; the benchmark still cleans up itself.
  if (pipe_ && write(pipe_.get(), line.data(), line.size()) < 0) return;
}

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// What `weightfs stats` and `weightfs top` share: the mount, the interval, and a screen that is drawn again.
#pragma once

#include <sys/ioctl.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

struct WatchArguments {
  std::string path;
  double interval = 1;  // seconds
  uint64_t count = 0;   // 0: until interrupted
  bool json = false;
};

// Adds DIR, --interval (at most `longest` seconds), --count and --json.
std::shared_ptr<WatchArguments> AddWatchArguments(CLI::App& command, double longest);

// Opens the directory and checks that it is on a weightfs mount.
Result<UniqueFd> OpenOnMount(const std::string& path);

// Asks the mount. kNotSupported, as a full line, from a mount of an older version.
template <typename T>
Result<T> AskMount(const WatchArguments& arguments, int descriptor, unsigned long command) {
  T answer{};
  if (ioctl(descriptor, command, &answer) == 0) return answer;
  if (errno == ENOTTY) {
    return Error{ErrorCode::kNotSupported,
                 arguments.path + ": this mount runs an older version of weightfs; mount it again"};
  }
  return Error{ErrorCode{errno}, arguments.path + ": " + std::strerror(errno)};
}

// Calls `show` at the end of each interval. A text for people replaces the one before on a terminal; otherwise, and
// with --json, it is printed behind it. Returns the exit code; an interrupt ends it with success.
int Watch(const WatchArguments& arguments, const std::function<Result<std::string>()>& show);

// "1.23 GB/s", "850 µs", "12.3k": at most eight columns. Bytes are powers of ten, as drives and fio show them.
std::string RateText(double bytes_per_second);
std::string TimeText(double seconds);
std::string CountText(double count);

}  // namespace weightfs::cli

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
#include <string_view>

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

// Opens the directory and checks that it is on a weightfs mount. An open descriptor keeps a mount from being unmounted,
// so the commands open it for each look anew.
Result<UniqueFd> OpenOnMount(const std::string& path);

// Asks the mount that `descriptor` is on. kNotSupported, as a full line, from a mount of an older version.
template <typename T>
Result<void> AskMount(const WatchArguments& arguments, int descriptor, unsigned long command, T* argument) {
  if (ioctl(descriptor, command, argument) == 0) return {};
  if (errno == ENOTTY) {
    return Error{ErrorCode::kNotSupported,
                 arguments.path + ": this mount runs an older version of weightfs; mount it again"};
  }
  return Error{ErrorCode{errno}, arguments.path + ": " + std::strerror(errno)};
}

// Calls `show` at the end of each interval, with the rows of the terminal that it may fill; 0: as many as it likes.
// A text for people replaces the one before on a terminal; otherwise, and with --json, it is printed behind it. Returns
// the exit code; an interrupt, or 'q' on a terminal, ends it with success. An error of a path that was on a mount
// before says that the mount has ended.
int Watch(const WatchArguments& arguments, const std::function<Result<std::string>(size_t rows)>& show);

// The part of `text` that a terminal shows: at most `rows` lines, each of at most `columns` columns, with the codes
// that erase what was there before. 0 columns or rows: unlimited.
std::string FitScreen(std::string_view text, size_t columns, size_t rows);

// "1.23 GB/s", "850 µs", "12.3k": at most eight columns. Bytes are powers of ten, as drives and fio show them.
std::string RateText(double bytes_per_second);
std::string TimeText(double seconds);
std::string CountText(double count);

}  // namespace weightfs::cli

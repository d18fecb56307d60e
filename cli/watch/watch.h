// SPDX-License-Identifier: Apache-2.0
// What the views of `weightfs stats` share: the mount, the interval, and a screen that is drawn again.
#pragma once

#include <sys/ioctl.h>

#include <cstring>

#include "cli/options.h"
#include "common/unique_fd.h"

namespace weightfs::cli {

struct WatchArguments {
  std::string path;
  double interval = 1;  // seconds
  uint64_t count = 0;   // 0: until interrupted
  std::string by;       // "process", "file", or both; empty: sums of the mount
  bool json = false;
  bool lines = false;  // never drawn again
};

// Where a text will be shown.
struct WatchView {
  bool redrawn = false;           // on a terminal, in the place of the text before
  size_t rows = 0, columns = 0;  // of the terminal; 0: unlimited
};

// `weightfs stats --by`: the processes and files that use a mount.
Result<int> WatchActivity(const WatchArguments& arguments);

// Asks the mount that `descriptor` is on. kNotSupported, as a full line, from a mount of an older version.
template <typename T>
Result<void> AskMount(const WatchArguments& arguments, int descriptor, unsigned long command, T* argument) {
  if (ioctl(descriptor, command, argument) == 0) return {};
  if (errno == ENOTTY) {
    return Error{ErrorCode::kNotSupported,
                 arguments.path + ": this mount runs an older version of weightfs; mount it again"};
  }
  Error error{ErrorCode{errno}, arguments.path + ": " + std::strerror(errno)};
  if (errno == EPERM) error.what += "; only root and the user of the mount may see it: run it as one of them";
  return error;
}

// Calls `show` at the end of each interval. A text for people replaces the one before on a terminal; otherwise it is
// printed behind it. Returns the exit code; an interrupt, or 'q' on a terminal, ends it with success. An error of a
// path that was on a mount before says that the mount has ended.
Result<int> Watch(const WatchArguments& arguments, const std::function<Result<std::string>(const WatchView&)>& show);

// The part of `text` that a terminal shows: at most `rows` lines, each of at most `columns` columns, with the codes
// that erase what was there before. 0 columns or rows: unlimited.
std::string FitScreen(std::string_view text, size_t columns, size_t rows);

// Since the epoch.
double NowSeconds();
std::string NowText();  // UTC
// "TITLE  2026-11-23T22:13:04Z, in the last 1.0 s" and an empty line.
std::string Heading(std::string_view title, double seconds);

// "1.23 GB/s", "850 µs", "12.3k": at most nine columns; "-" for 0. Bytes are powers of ten, as drives and fio show them.
std::string RateText(double bytes_per_second);
std::string TimeText(double seconds);
std::string CountText(double count);

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "cli/interrupt.h"
#include "cli/output.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

bool DrawsAgain(const WatchArguments& arguments) {
  const char* terminal = std::getenv("TERM");
  return !arguments.json && isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

// Returns false when interrupted.
bool Pause(std::chrono::steady_clock::time_point until, const std::atomic<bool>& interrupted) {
  constexpr std::chrono::milliseconds kStep{50};
  while (!interrupted.load()) {
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return true;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left, kStep));
  }
  return false;
}

}  // namespace

std::shared_ptr<WatchArguments> AddWatchArguments(CLI::App& command, double longest) {
  auto arguments = std::make_shared<WatchArguments>();
  command.add_option("DIR", arguments->path, "A directory or file in a mount")->type_name("")->required();
  command.add_option("--interval", arguments->interval, "Seconds between two looks, fractions allowed")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, longest))
      ->capture_default_str();
  command.add_option("--count", arguments->count, "Number of looks; without it until Ctrl-C")->type_name("N");
  command.add_flag("--json", arguments->json,
                   "Print one line of JSON for each interval: bytes, seconds, never rounded");
  return arguments;
}

Result<UniqueFd> OpenOnMount(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(path, "cannot be opened");
  weightfs_info info{};
  if (ioctl(file.get(), WEIGHTFS_IOC_INFO, &info) == 0) return file;
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: not in a mount of weightfs; 'findmnt -t fuse.weightfs' lists the mounts", path)};
}

int Watch(const WatchArguments& arguments, const std::function<Result<std::string>()>& show) {
  const std::atomic<bool>& interrupted = CatchInterrupts();
  const bool draws = DrawsAgain(arguments);
  auto next = std::chrono::steady_clock::now();
  for (uint64_t shown = 0; arguments.count == 0 || shown < arguments.count; ++shown) {
    next += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(arguments.interval));
    if (!Pause(next, interrupted)) return kSuccess;
    const auto text = show();
    if (!text.has_value()) return Fail(text.error());
    // The first look erases the screen, later ones go to its upper left corner and erase the rest.
    if (draws) Print(stdout, shown == 0 ? "\x1b[2J\x1b[H" : "\x1b[H");
    Print(stdout, *text);
    if (draws) Print(stdout, "\x1b[J");
    if (!draws && !arguments.json) Print(stdout, "\n");
    if (const auto flushed = FlushOutput(); !flushed.has_value()) return Fail(flushed.error());
  }
  return kSuccess;
}

std::string RateText(double bytes_per_second) {
  constexpr std::array<std::string_view, 5> kUnits = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
  size_t unit = 0;
  for (; bytes_per_second >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes_per_second /= 1000;
  if (bytes_per_second == 0) return "-";
  return fmt::format("{:.{}f} {}", bytes_per_second,
                     unit == 0 || bytes_per_second >= 99.95 ? 0
                     : bytes_per_second >= 9.995            ? 1
                                                            : 2,
                     kUnits[unit]);
}

std::string TimeText(double seconds) {
  if (seconds <= 0) return "-";
  if (seconds < 0.0009995) return fmt::format("{:.0f} µs", seconds * 1e6);
  if (seconds < 0.9995)
    return fmt::format("{:.{}f} ms", seconds * 1e3, seconds < 0.00995 ? 2 : seconds < 0.0995 ? 1 : 0);
  return fmt::format("{:.{}f} s", seconds, seconds < 9.95 ? 2 : 1);
}

std::string CountText(double count) {
  if (count == 0) return "-";
  if (count < 9.95) return fmt::format("{:.1f}", count);
  if (count < 9999.5) return fmt::format("{:.0f}", count);
  return count < 999'500 ? fmt::format("{:.1f}k", count / 1000) : fmt::format("{:.2f}M", count / 1e6);
}

}  // namespace weightfs::cli

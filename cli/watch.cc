// SPDX-License-Identifier: Apache-2.0
#include "cli/watch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "cli/interrupt.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "common/utc_time.h"
#include "lease/on_mount.h"

namespace weightfs::cli {
namespace {

bool DrawsAgain(const WatchArguments& arguments) {
  const char* terminal = std::getenv("TERM");
  return !arguments.json && !arguments.lines && isatty(STDOUT_FILENO) == 1 && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

// Reads single keys from the terminal, without showing them, during the lifetime of this object. Does nothing if
// standard input is no terminal, or if this process is in its background.
class Keys {
 public:
  explicit Keys(bool wanted) {
    if (!wanted || tcgetpgrp(STDIN_FILENO) != getpgrp() || tcgetattr(STDIN_FILENO, &before_) != 0) return;
    termios now = before_;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    changed_ = reads_ = tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
  }
  ~Keys() {
    if (changed_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // Waits until the time has passed, or for a key. Returns true if 'q' was pressed.
  bool WaitForQuit(std::chrono::milliseconds time) {
    pollfd input{.fd = reads_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, static_cast<int>(time.count())) <= 0) return false;
    char key = 0;
    if (read(STDIN_FILENO, &key, 1) != 1) reads_ = false;
    return key == 'q' || key == 'Q';
  }

 private:
  termios before_{};
  bool changed_ = false, reads_ = false;
};

// The terminal's size in characters; zeros: unknown.
winsize TerminalSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  return size;
}

// Shows texts one over the other, and again when the terminal changes its size.
class Screen {
 public:
  // One row stays free for the cursor.
  static WatchView View() {
    const winsize size = TerminalSize();
    return {true, size.ws_row > 1 ? size.ws_row - 1U : 0U, size.ws_col};
  }
  void Show(std::string text) {
    text_ = std::move(text);
    Draw();
  }
  void FollowSize() {
    const winsize now = TerminalSize();
    if (text_.empty() || (now.ws_row == drawn_.ws_row && now.ws_col == drawn_.ws_col)) return;
    Draw();
    std::fflush(stdout);
  }

 private:
  // Erases the screen for another size, because the terminal may have wrapped lines.
  void Draw() {
    const winsize now = TerminalSize();
    const bool other = now.ws_row != drawn_.ws_row || now.ws_col != drawn_.ws_col || !drawn_once_;
    Print(stdout, other ? "\x1b[2J\x1b[H" : "\x1b[H");
    Print(stdout, FitScreen(text_, now.ws_col, View().rows));
    Print(stdout, "\x1b[J");
    drawn_ = now;
    drawn_once_ = true;
  }

  std::string text_;
  winsize drawn_{};
  bool drawn_once_ = false;
};

// A program that reads the output, such as head, may end when it has enough; that is no error.
int EndOutput(const Error& error) {
  // What was not written is dropped, so that it is not reported again at the end of the process.
  __fpurge(stdout);
  std::clearerr(stdout);
  return error.code == ErrorCode{EPIPE} ? kSuccess : Fail(error);
}

}  // namespace

void AddWatchOptions(Command* command, WatchArguments* arguments, double longest) {
  command->Add("DIR", &arguments->path, "A directory or file in a mount");
  command
      ->AddDecimal("--interval SECONDS", &arguments->interval, "Seconds between two looks, fractions allowed", "2",
                   longest, 0.1)
      .fallback = fmt::format("{}", arguments->interval);
  command->AddNumber("--count N", &arguments->count, "Number of looks; without it until q or Ctrl-C", "10", 0);
  command->Add("--json", &arguments->json, "Print one line of JSON for each interval: bytes, seconds, never rounded");
}

Result<UniqueFd> OpenOnMount(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return AccessError(path, "cannot be opened");
  if (lease::IsOnMount(file.get())) return file;
  return Error{ErrorCode::kInvalid,
               fmt::format("{}: not in a mount of weightfs; 'findmnt -t fuse.weightfs' lists the mounts", path)};
}

int Watch(const WatchArguments& arguments, const std::function<Result<std::string>(const WatchView& view)>& show) {
  constexpr std::chrono::milliseconds kStep{50};
  using Clock = std::chrono::steady_clock;
  const std::atomic<bool>& interrupted = CatchInterrupts();
  const bool draws = DrawsAgain(arguments);
  Keys keys(draws);
  Screen screen;
  auto next = Clock::now();
  for (uint64_t shown = 0; arguments.count == 0 || shown < arguments.count; ++shown) {
    next += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(arguments.interval));
    for (auto now = Clock::now(); now < next; now = Clock::now()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
      if (interrupted.load() || keys.WaitForQuit(std::min(left, kStep)) || interrupted.load()) return kSuccess;
      if (draws) screen.FollowSize();
    }
    // After a suspension one look is enough for all that was missed.
    next = std::max(next, Clock::now() - kStep);
    auto text = show(draws ? Screen::View() : WatchView());
    if (!text.has_value()) {
      if (!OpenOnMount(arguments.path).has_value()) {
        return Fail(Error{text.error().code, arguments.path + ": the mount has ended"});
      }
      return Fail(text.error());
    }
    if (draws) {
      screen.Show(*std::move(text));
    } else {
      Print(stdout, *text);
    }
    if (const auto flushed = FlushOutput(); !flushed.has_value()) return EndOutput(flushed.error());
  }
  return kSuccess;
}

std::string FitScreen(std::string_view text, size_t columns, size_t rows) {
  std::string out;
  for (size_t row = 0; !text.empty() && (rows == 0 || row < rows); ++row) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    size_t width = 0;
    for (size_t at = 0; at < line.size();) {
      size_t end = at + 1;
      const bool code = line[at] == '\x1b';  // takes no column, so the codes behind the last column stay
      if (code) {
        end = std::min(line.find('m', at), line.size() - 1) + 1;
      } else {
        while (end < line.size() && (static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) ++end;
      }
      if (!code) ++width;
      if (code || columns == 0 || width <= columns) out += line.substr(at, end - at);
      at = end;
    }
    out += "\x1b[K\n";
  }
  return out;
}

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string NowText() { return FormatUtc(static_cast<int64_t>(NowSeconds() * 1e9)); }

std::string Heading(std::string_view title, double seconds) {
  return Paint(Tone::kBold, title) + fmt::format("  {}, in the last {:.1f} s\n\n", NowText(), seconds);
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

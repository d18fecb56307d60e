// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/watch.h"

#include <poll.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/signals.h"
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
Result<int> EndOutput(const Error& error) {
  // What was not written is dropped, so that it is not reported again at the end of the process.
  __fpurge(stdout);
  std::clearerr(stdout);
  if (error.code == ErrorCode{EPIPE}) return kSuccess;
  return error;
}

// Three digits, in the largest unit of which the value has at least one; each unit is 1,000 of the one before.
std::string Scaled(double value, std::span<const char* const> units) {
  if (value <= 0) return "-";
  for (; value >= 999.5 && units.size() > 1; units = units.subspan(1)) value /= 1000;
  return fmt::format("{:.{}f}{}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, units.front());
}

}  // namespace

Result<int> Watch(const WatchArguments& arguments,
                  const std::function<Result<std::string>(const WatchView& view)>& show) {
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
        return Error{text.error().code, arguments.path + ": the mount has ended"};
      }
      return text.error();
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
    out += (columns == 0 ? std::string(line) : CutText(line, columns)) + "\x1b[K\n";
  }
  return out;
}

double NowSeconds() { return static_cast<double>(UtcNowNs()) / 1e9; }

std::string NowText() { return FormatUtc(UtcNowNs()); }

std::string Heading(std::string_view title, double seconds) {
  return Paint(Tone::kBold, title) + fmt::format("  {}, in the last {:.1f} s\n\n", NowText(), seconds);
}

std::string RateText(double bytes_per_second) {
  return Scaled(bytes_per_second, std::array{" B/s", " kB/s", " MB/s", " GB/s", " TB/s"});
}

std::string TimeText(double seconds) { return Scaled(seconds * 1e6, std::array{" µs", " ms", " s"}); }

std::string CountText(double count) { return Scaled(count, std::array{"", "k", "M"}); }

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cli/output.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr double kSettleSeconds = 2;   // before the first estimate
constexpr double kWindowSeconds = 10;  // minimum length of the averaging window
constexpr size_t kMostCells = 30, kFewestCells = 10;
constexpr size_t kDefaultColumns = 80;
constexpr const char* kEraseLine = "\r\x1b[K";

double Seconds(std::chrono::steady_clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double PartDone(const Progress& progress) {
  return std::min(1.0, static_cast<double>(progress.done) / static_cast<double>(progress.total));
}

std::string Amount(const Progress& progress) {
  const bool bytes = progress.unit == Progress::Unit::kBytes;
  const auto text = [bytes](uint64_t value) { return bytes ? FormatSize(ByteCount{value}) : FormatCount(value); };
  if (progress.unit == Progress::Unit::kParts) return {};
  const std::string items = bytes ? std::string() : fmt::format(" {}", progress.items);
  if (progress.total == 0) return text(progress.done) + items;
  return fmt::format("{} of {}{}", text(std::min(progress.done, progress.total)), text(progress.total), items);
}

std::string Rate(const Progress& progress, double per_second) {
  if (per_second <= 0 || progress.unit == Progress::Unit::kParts) return {};
  if (progress.unit == Progress::Unit::kBytes) {
    return FormatSize(ByteCount{static_cast<uint64_t>(std::llround(per_second))}) + "/s";
  }
  const bool slow = per_second < 1;
  return fmt::format("{}/{}", FormatCount(static_cast<uint64_t>(std::llround(per_second * (slow ? 60 : 1)))),
                     slow ? "min" : "s");
}

std::string Head(std::string_view title, const Progress& progress) {
  std::string head(title);
  if (progress.passes > 1) head += fmt::format(" {}/{}", progress.pass, progress.passes);
  if (!progress.step.empty()) head += fmt::format(": {}", progress.step);
  return head;
}

// Joins the non-empty parts, two spaces apart.
std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    if (!text.empty()) text += "  ";
    text += part;
  }
  return text;
}

}  // namespace

void RateEstimator::Add(Time now, uint64_t done) {
  if (!last_.has_value()) {
    first_ = last_ = now;
    done_ = done;
    return;
  }
  const double passed = Seconds(now - *last_);
  if (passed <= 0 || done < done_) return;
  const double keep = std::exp(-passed / std::max(kWindowSeconds, Seconds(now - *first_) / 4));
  weighted_done_ = weighted_done_ * keep + static_cast<double>(done - done_);
  weighted_seconds_ = weighted_seconds_ * keep + passed;
  last_ = now;
  done_ = done;
}

double RateEstimator::PerSecond() const {
  if (!last_.has_value() || Seconds(*last_ - *first_) < kSettleSeconds) return 0;
  return weighted_done_ / weighted_seconds_;
}

std::optional<std::chrono::seconds> RateEstimator::TimeLeft(uint64_t total) const {
  constexpr double kLongest = 1000.0 * 24 * 3600;  // longer estimates are not shown
  const double rate = PerSecond();
  if (rate <= 0 || total < done_) return std::nullopt;
  const double seconds = static_cast<double>(total - done_) / rate;
  if (seconds > kLongest) return std::nullopt;
  return std::chrono::seconds(std::llround(seconds));
}

std::string FormatDuration(std::chrono::seconds duration) {
  const auto seconds = static_cast<uint64_t>(std::max<std::chrono::seconds::rep>(duration.count(), 0));
  const uint64_t minutes = seconds / 60, hours = minutes / 60;
  if (hours >= 24) return fmt::format("{} d {} h", hours / 24, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, seconds % 60);
  return fmt::format("{}:{:02}", minutes, seconds % 60);
}

std::string FormatCount(uint64_t count) {
  std::string text = fmt::format("{}", count);
  for (size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string FormatProgress(std::string_view title, const Progress& progress, const RateEstimator& rate,
                           size_t columns) {
  const std::string head = Head(title, progress), amount = Amount(progress), speed = Rate(progress, rate.PerSecond());
  std::string percent, left;
  if (progress.total > 0) {
    percent = fmt::format("{:.0f}%", std::floor(PartDone(progress) * 100));
    if (const auto time = rate.TimeLeft(progress.total)) left = FormatDuration(*time) + " left";
  }
  for (const auto& tail : {Join({percent, amount, speed, left}), Join({percent, amount, left})}) {
    const size_t taken = TextWidth(head) + 1 + TextWidth(tail);
    if (progress.total == 0 && taken + 1 <= columns) return Join({head, tail});
    constexpr size_t kFrame = 3;  // the brackets and a space
    if (progress.total == 0 || taken + kFrame + kFewestCells > columns) continue;
    const size_t cells = std::min(kMostCells, columns - taken - kFrame);
    const auto full = static_cast<size_t>(PartDone(progress) * static_cast<double>(cells));
    return fmt::format("{} [{}{}] {}", head, std::string(full, '#'), std::string(cells - full, '.'), tail);
  }
  const std::string tail = Join({progress.total > 0 ? percent : amount, left});
  if (TextWidth(tail) + 2 >= columns) return CutText(percent.empty() ? head : percent, columns);
  return Join({CutText(head, columns - TextWidth(tail) - 2), tail});
}

ProgressTerminal StandardErrorTerminal() {
  ProgressTerminal terminal;
  const char* kind = std::getenv("TERM");
  terminal.shown = isatty(STDERR_FILENO) != 0 && kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb";
  terminal.now = [] { return std::chrono::steady_clock::now(); };
  // Queried each time, because a window may be resized.
  terminal.columns = [] {
    winsize size{};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size_t{size.ws_col} : kDefaultColumns;
  };
  terminal.write = [](std::string_view text) {
    Print(stderr, text);
    std::fflush(stderr);
  };
  return terminal;
}

ProgressBar::ProgressBar(std::string title, ProgressTerminal terminal)
    : title_(std::move(title)), terminal_(std::move(terminal)) {}

ProgressBar::~ProgressBar() {
  if (drawn_.has_value()) terminal_.write(kEraseLine);
}

void ProgressBar::Update(const Progress& progress) {
  if (!terminal_.shown) return;
  const Time now = terminal_.now();
  const bool starts = progress.pass != pass_;
  if (starts) rate_ = RateEstimator();
  pass_ = progress.pass;
  rate_.Add(now, progress.done);
  if (!starts && now - *drawn_ < kRedrawInterval) return;
  drawn_ = now;
  const size_t columns = std::max<size_t>(terminal_.columns(), 2) - 1;  // text in the last column would wrap
  terminal_.write(kEraseLine + FormatProgress(title_, progress, rate_, columns));
}

TransferProgress::TransferProgress(std::string title, std::string step, bool lines) : step_(std::move(step)) {
  if (!lines) bar_.emplace(std::move(title));
}

void TransferProgress::Update(uint64_t done, uint64_t total) {
  if (bar_) {
    bar_->Update({.step = step_, .done = done, .total = total});
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  const bool last = done == total && done != last_done_;
  if (written_ && now - *written_ < kRedrawInterval && !last) return;
  written_ = now;
  last_done_ = done;
  Print(stderr, "{{\"done\": {}, \"total\": {}}}\n", done, total);
}

}  // namespace weightfs::cli

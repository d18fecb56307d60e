#include "cli/output.h"

#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/printable.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

// Columns that a cell takes: bytes, less the continuation bytes of UTF-8 and the colours.
size_t Width(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\x1b') {
      at = std::min(text.find('m', at), text.size());
    } else if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) {
      ++width;
    }
  }
  return width;
}

// "[######....] 60%"
std::string Bar(uint64_t done, uint64_t total) {
  constexpr size_t kCells = 30;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const auto full = static_cast<size_t>(part * kCells);
  return fmt::format("[{}{}] {:.0f}%", std::string(full, '#'), std::string(kCells - full, '.'), part * 100);
}

}  // namespace

std::string Line(const Error& error) {
  return error.what.empty() ? std::string(ErrorCodeName(error.code)) : Printable(error.what);
}

int Fail(const Error& error, int exit_code) {
  fmt::print(stderr, "weightfs: {}\n", Line(error));
  return exit_code;
}

std::string Paint(Tone tone, std::string_view text) {
  static const bool colours = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  if (!colours || tone == Tone::kPlain) return std::string(text);
  const auto style = tone == Tone::kBold   ? fmt::text_style(fmt::emphasis::bold)
                     : tone == Tone::kDim  ? fmt::text_style(fmt::emphasis::faint)
                     : tone == Tone::kGood ? fmt::fg(fmt::terminal_color::green)
                                           : fmt::fg(fmt::terminal_color::yellow);
  return fmt::format(style, "{}", text);
}

std::string Table::ToString(bool titles) const {
  std::vector<size_t> widths;
  for (size_t column = 0; column < columns_.size(); ++column) {
    widths.push_back(titles ? Width(columns_[column].title) : 0);
    for (const auto& row : rows_) widths[column] = std::max(widths[column], Width(row[column]));
  }
  std::string out;
  const auto line = [&](const auto& cell, Tone tone) {
    std::string text;
    for (size_t column = 0; column < columns_.size(); ++column) {
      const std::string& value = cell(column);
      const std::string pad(widths[column] - Width(value), ' ');
      if (column > 0) text += "  ";
      text += columns_[column].right ? pad + value : value + pad;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += Paint(tone, text) + "\n";
  };
  if (titles) line([&](size_t column) -> const std::string& { return columns_[column].title; }, Tone::kBold);
  for (const auto& row : rows_) {
    line([&](size_t column) -> const std::string& { return row[column]; }, Tone::kPlain);
  }
  return out;
}

ProgressBar::ProgressBar(std::string title) : title_(std::move(title)), shown_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (drawn_.has_value()) fmt::print(stderr, "\r\x1b[K");
}

bool ProgressBar::Due(bool last) {
  const auto now = Clock::now();
  if (!shown_ || (drawn_.has_value() && !last && now - *drawn_ < std::chrono::milliseconds(100))) return false;
  drawn_ = now;
  return true;
}

void ProgressBar::Update(ByteCount done, ByteCount total) {
  if (total.value == 0 || !Due(done >= total)) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto rate = static_cast<uint64_t>(static_cast<double>(done.value) / std::max(seconds, 0.001));
  fmt::print(stderr, "\r\x1b[K{} {}  {} of {}  {}/s", title_, Bar(done.value, total.value), FormatSize(done),
             FormatSize(total), FormatSize(ByteCount{rate}));
  std::fflush(stderr);
}

void ProgressBar::UpdateCount(std::string_view step, uint64_t done, uint64_t total) {
  if (!Due(false)) return;
  const std::string bar = total == 0 ? std::string() : Bar(done, total) + "  ";
  fmt::print(stderr, "\r\x1b[K{}: {}  {}{}", title_, step, bar, done);
  std::fflush(stderr);
}

}  // namespace weightfs::cli

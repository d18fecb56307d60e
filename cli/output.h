// What every command prints with: one-line errors, tables, a progress bar. Nothing here is thread-safe.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs::cli {

// Exit codes of every command but fsck.
inline constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;

// Prints "weightfs: <the error's line>" to standard error and returns `exit_code`.
int Fail(const Error& error, int exit_code = kFailure);

// The line of an error, for people; names in it are made printable.
std::string Line(const Error& error);

// `text` in bold, green, yellow or dim where standard output is a terminal, else as it is.
enum class Tone : unsigned char { kPlain, kBold, kGood, kWarning, kDim };
std::string Paint(Tone tone, std::string_view text);

// Columns as wide as their widest cell, two spaces apart. Numbers are best right-aligned.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string ToString(bool titles = true) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// One line on a terminal's standard error, redrawn at most ten times a second and gone at the end; silent elsewhere.
class ProgressBar {
 public:
  explicit ProgressBar(std::string title);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // Bytes, with their rate.
  void Update(ByteCount done, ByteCount total);
  // Things of any kind; `total` 0 where it is not known.
  void UpdateCount(std::string_view step, uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  // Whether it is time to draw again.
  bool Due(bool last);
  const std::string title_;
  const bool shown_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> drawn_;
};

}  // namespace weightfs::cli

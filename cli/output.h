// SPDX-License-Identifier: Apache-2.0
// Output of all commands: text, one-line errors, JSON and tables. Not thread-safe.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "common/make_error.h"
#include "common/result.h"

namespace weightfs::client {
struct Publication;
}

namespace weightfs::cli {

// Exit codes of all commands except verify. Of pull and versions: the version that was named does not exist, or not any
// more; verify has the same code.
inline constexpr int kSuccess = 0, kFailure = 1, kUsage = 2, kNoVersion = 8;
// Exit codes of verify are those of fsck(8); they are combined by addition.
inline constexpr int kFsckCorrected = 1, kFsckUncorrected = 4, kFsckOperationalError = 8, kFsckUsage = 16,
                     kFsckCancelled = 32;

// Writes `text`. Never throws. The stream keeps its error flag after a failed write; for standard output, FlushOutput
// reports it.
void Print(std::FILE* stream, std::string_view text);
// The same for a text of fmt::format.
template <typename First, typename... Rest>
void Print(std::FILE* stream, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest) {
  Print(stream, std::string_view(fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)));
}

// Flushes standard output. Returns an error, as a complete message, if any output was lost.
Result<void> FlushOutput();

// JSON for people and programs; `indent` -1: in one line. Bytes of names that are not UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent = 2);

// Prints it, and returns kSuccess.
int ShowJson(const nlohmann::ordered_json& json);

// A publication in the JSON of publish and pull.
nlohmann::ordered_json PublicationJson(const std::string& directory, const client::Publication& publication);

// Prints "weightfs: ERROR" to standard error and returns `exit_code`.
int Fail(const Error& error, int exit_code = kFailure);

// The one-line text of an error; unprintable characters in names are escaped.
std::string Line(const Error& error);

// Returns `text` in bold, green, yellow or dim if standard output is a terminal, and otherwise unchanged.
enum class Tone : unsigned char { kPlain, kBold, kGood, kWarning, kDim };
std::string Paint(Tone tone, std::string_view text);

// The number of terminal columns that `text` takes: UTF-8 characters without escape sequences.
size_t TextWidth(std::string_view text);
// The part of `text` in its first `columns`, without splitting characters. Escape sequences behind it stay.
std::string CutText(std::string_view text, size_t columns);

// Each column is as wide as its widest cell; columns are two spaces apart. Numbers should be right-aligned.
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

}  // namespace weightfs::cli

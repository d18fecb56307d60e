// SPDX-License-Identifier: Apache-2.0
// What every command prints with: text, one-line errors, JSON and tables. Nothing here is thread-safe.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs::cli {

// Exit codes of every command but fsck.
inline constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;
// Those of fsck(8); those that hold are added up.
inline constexpr int kFsckCorrected = 1, kFsckUncorrected = 4, kFsckOperationalError = 8, kFsckUsage = 16,
                     kFsckCancelled = 32;

// Writes `text`. Never throws: the stream keeps the mark of a failed write, and FlushOutput reports that of standard
// output.
void Print(std::FILE* stream, std::string_view text);

// Writes what standard output still buffers. A full-line error where anything printed to it was lost.
Result<void> FlushOutput();

// `json` for people and programs: indented, with U+FFFD where the bytes of a name are no UTF-8.
std::string JsonText(const nlohmann::ordered_json& json);

// Prints "weightfs: <the error's line>" to standard error and returns `exit_code`.
int Fail(const Error& error, int exit_code = kFailure);

// The line of an error, for people; names in it are made printable.
std::string Line(const Error& error);

// `text` in bold, green, yellow or dim where standard output is a terminal, else as it is.
enum class Tone : unsigned char { kPlain, kBold, kGood, kWarning, kDim };
std::string Paint(Tone tone, std::string_view text);

// Columns that `text` takes on a terminal: characters of UTF-8, without the escape sequences of colors.
size_t TextWidth(std::string_view text);

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

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <fmt/color.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "client/publication.h"
#include "common/hex.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/utc_time.h"

namespace weightfs::cli {

void Print(std::FILE* stream, std::string_view text) { std::fwrite(text.data(), 1, text.size(), stream); }

Result<void> FlushOutput() {
  errno = EIO;  // an earlier failed write has left no errno
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return SystemError("standard output", "cannot be written");
}

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int ShowJson(const nlohmann::ordered_json& json) {
  Print(stdout, JsonText(json) + "\n");
  return kSuccess;
}

size_t TextWidth(std::string_view text) {
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

std::string CutText(std::string_view text, size_t columns) {
  std::string cut;
  for (size_t at = 0, width = 0; at < text.size();) {
    const bool code = text[at] == '\x1b';
    size_t end = code ? std::min(text.find('m', at), text.size() - 1) + 1 : at + 1;
    while (!code && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (!code) ++width;
    if (code || width <= columns) cut += text.substr(at, end - at);
    at = end;
  }
  return cut;
}

std::string Line(const Error& error) {
  return error.what.empty() ? std::string(ErrorCodeName(error.code)) : Printable(error.what);
}

int Fail(const Error& error, int exit_code) {
  Print(stderr, "{}{}\n", LogsToJournal() ? "<3>" : "weightfs: ", Line(error));
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
    widths.push_back(titles ? TextWidth(columns_[column].title) : 0);
    for (const auto& row : rows_) widths[column] = std::max(widths[column], TextWidth(row[column]));
  }
  std::string out;
  const auto line = [&](const auto& cell, Tone tone) {
    std::string text;
    for (size_t column = 0; column < columns_.size(); ++column) {
      const std::string& value = cell(column);
      const std::string pad(widths[column] - TextWidth(value), ' ');
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

nlohmann::ordered_json PublicationJson(const std::string& directory, const client::Publication& publication) {
  return {{"directory", directory},         {"version", publication.version},
          {"id", ToHex(publication.id)},    {"published", FormatUtc(publication.time_ns)},
          {"time_ns", publication.time_ns}, {"files", publication.files},
          {"bytes", publication.bytes}};
}

}  // namespace weightfs::cli

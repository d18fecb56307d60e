// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/rows.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "bench/suite/texts.h"

namespace weightfs::bench {
namespace {

using Json = nlohmann::ordered_json;

std::vector<RowSpec> ParseRows() {
  std::vector<RowSpec> rows;
  for (const Json& row : Json::parse(kRowsText)) {
    rows.push_back({row.at("id"), row.at("group"), row.at("title"), row.at("unit"), row.value("reference", ""),
                    row.at("at_least"), row.value("at_most", Json::object())});
  }
  return rows;
}

double TargetOf(const Json& targets, const char* name) { return targets.value(name, 0.0); }

}  // namespace

const std::vector<RowSpec>& Rows() {
  static const std::vector<RowSpec> kRows = ParseRows();
  return kRows;
}

const RowSpec* FindRow(std::string_view id) {
  const auto found = std::ranges::find(Rows(), id, &RowSpec::id);
  return found == Rows().end() ? nullptr : &*found;
}

bool Matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&name](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
  });
}

bool IsSelected(const RowSpec& row, const std::vector<std::string>& patterns) {
  return patterns.empty() || Matches(row.id, patterns) || Matches(row.group, patterns);
}

const std::vector<std::string>& CurveNames() {
  static const std::vector<std::string> kNames = {"streams", "large", "aging", "files"};
  return kNames;
}

std::string ReferenceTargetText(const RowSpec& row) {
  if (const double least = TargetOf(row.at_least, "reference"); least > 0) return fmt::format("≥ {:.2f}", least);
  return row.reference.empty() ? "" : "shown";
}

std::string HostTargetText(const RowSpec& row) {
  const double host = TargetOf(row.at_least, "host"), slow = TargetOf(row.at_least, "slow_host"),
               disk = TargetOf(row.at_least, "disk_host"), one = TargetOf(row.at_least, "one_device");
  if (one > 0) return fmt::format("{:.1f} to {:.1f} × one device", one, TargetOf(row.at_most, "one_device"));
  if (slow > 0) return fmt::format("≥ {:.1f}; ≥ {:.1f} where the host is slow", host, slow);
  if (disk > 0) return fmt::format("≥ {:.1f} on a disk", disk);
  return host > 0 ? fmt::format("≥ {:.1f}", host) : "shown";
}

Json ListAsJson() {
  Json rows = Json::array();
  for (const RowSpec& row : Rows()) {
    rows.push_back({{"id", row.id},
                    {"group", row.group},
                    {"title", row.title},
                    {"unit", row.unit},
                    {"at_least", row.at_least},
                    {"at_most", row.at_most}});
  }
  return {{"version", kJsonVersion}, {"rows", std::move(rows)}};
}

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// The catalogue (rows.json): every row of the benchmark, what it is compared with, and its targets.
//
// `reference` is the row whose reference it is compared with. In the targets of ratios, `at_least` and `at_most`, are:
//   reference, host      of the reference, and of the host's filesystem
//   slow_host            instead of host, where the host stays under 0.75 of the reference
//   disk_host            of the host, where its filesystem is none in memory
//   in_memory            of the reference, instead of all of these, where the host's filesystem is memory
//   one_device           of one of the throttled devices; several give at most their number times as much
//   host_to_reference    what the same program reaches on the host's files
//   beside               of the row `beside`, which differs in one thing alone
//   fio_in_memory        of fio
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace weightfs::bench {

struct RowSpec {
  std::string id, group, title, unit, reference;
  nlohmann::ordered_json at_least, at_most;
};

// In the order of the table.
const std::vector<RowSpec>& Rows();
const RowSpec* FindRow(std::string_view id);  // null when there is none

// Of the form of --json.
inline constexpr int kJsonVersion = 1;

// True where `name` matches one of the shell patterns, as Python's fnmatchcase has it.
bool Matches(const std::string& name, const std::vector<std::string>& patterns);

// True where the row's id, or its group, matches one of the shell patterns; none means all.
bool IsSelected(const RowSpec& row, const std::vector<std::string>& patterns);

// The curves of --scaling; --only knows them beside rows and groups, and "scaling" for all of them.
const std::vector<std::string>& CurveNames();

// "≥ 0.95", "≥ 1.0; ≥ 1.3 where the host is slow"; "shown" without one.
std::string ReferenceTargetText(const RowSpec& row);
std::string HostTargetText(const RowSpec& row);

// Every row and its targets.
nlohmann::ordered_json ListAsJson();

}  // namespace weightfs::bench

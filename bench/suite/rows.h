// SPDX-License-Identifier: Apache-2.0
// The catalog (rows.json): every row of the benchmark, its reference, and its targets.
//
// `reference` names the row whose reference the row is compared with. The targets for ratios, `at_least` and `at_most`,
// may contain:
//   reference, host      relative to the reference, and to the host's filesystem
//   slow_host            replaces host if the host reaches less than 0.75 of the reference
//   disk_host            relative to the host, if its filesystem is not in memory
//   in_memory            relative to the reference, replaces all of these if the host's filesystem is in memory
//   one_device           relative to one of the throttled devices; several give at most their number times as much
//   host_to_reference    the ratio that the same program reaches on the host's files
//   beside               relative to the row `beside`, which differs in one respect only
//   fio_in_memory        relative to fio
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

// Version of the format of --json.
inline constexpr int kJsonVersion = 1;

// True if `name` matches one of the shell patterns, by the rules of Python's fnmatchcase.
bool Matches(const std::string& name, const std::vector<std::string>& patterns);

// True if the row's id or group matches one of the shell patterns, or if there are no patterns.
bool IsSelected(const RowSpec& row, const std::vector<std::string>& patterns);

// The curves of --scaling. --only accepts them like rows and groups, and "scaling" for all of them.
const std::vector<std::string>& CurveNames();

// "≥ 0.95", "≥ 1.0; ≥ 1.3 where the host is slow"; "shown" without a target.
std::string ReferenceTargetText(const RowSpec& row);
std::string HostTargetText(const RowSpec& row);

// Every row and its targets.
nlohmann::ordered_json ListAsJson();

}  // namespace weightfs::bench

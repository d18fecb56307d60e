// SPDX-License-Identifier: Apache-2.0
// A result as JSON (complete, every sample), and as a page to look at.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/suite/suite.h"

namespace weightfs::bench {

// Rates in the unit's own measure (bytes, reads, files a second); a version number says when the form changes.
nlohmann::ordered_json ToJson(const Outcome& outcome);

// Every row and what it should reach, in the order of the table. A target of a ratio that is not asked for is left out.
nlohmann::ordered_json ListAsJson();

// One page with plots: everything in it, nothing fetched.
std::string ToHtml(const Outcome& outcome);

}  // namespace weightfs::bench

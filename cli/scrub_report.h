// SPDX-License-Identifier: Apache-2.0
// The part of `weightfs info` about the scrubs of a mount (-o scrub=).
#pragma once

#include <nlohmann/json.hpp>

#include "store/scrub/scrub_state.h"

namespace weightfs::cli {

// A duration in the largest unit of which it has two: "3 days".
std::string DurationText(int64_t time_ns);

// Asks the mount of an open file or directory. nullopt if it is of an older version.
std::optional<ScrubReport> AskForScrubs(int descriptor);

nlohmann::ordered_json ScrubJson(const ScrubReport& report);

// Lines for people, each with its end; empty if the store never had a scrub and this mount starts none.
std::string ScrubLines(const ScrubReport& report);

}  // namespace weightfs::cli

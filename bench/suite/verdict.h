// SPDX-License-Identifier: Apache-2.0
// From samples to rows: medians, ratios, and how they stand to what they should reach.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/suite/lab.h"
#include "bench/suite/suite.h"

namespace weightfs::bench {

// By row (shown or not) and way.
using SampleTable = std::map<std::pair<std::string, Way>, std::vector<Sample>>;

// The rows that were asked for, in the catalogue's order.
std::vector<RowOutcome> Judge(const Lab& lab, const SampleTable& samples);

// Adds the checks of a row on throttled devices: the ratio to one device reaches its target, and does not exceed the
// number of devices. Where a rate exceeds what the throttle lets through, the row has no meaning: it loses its samples
// and says why.
void JudgeDevices(RowOutcome* row);

// How much the references varied. Load and steal are the caller's to add.
Noise NoiseOf(const SampleTable& samples);

}  // namespace weightfs::bench

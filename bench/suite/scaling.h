// SPDX-License-Identifier: Apache-2.0
// How cost grows: with streams, with the size of a file, with a store's age, with the number of files. Long.
#pragma once

#include <vector>

#include "bench/suite/lab.h"

namespace weightfs::bench {

// The curves that were asked for. In a mount that was there before, only the streams.
Result<std::vector<Curve>> MeasureScaling(Lab& lab);

// Their share in the progress of the run.
uint64_t ScalingParts(const Lab& lab);

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// The arguments of `weightfs bench`: every refusal comes before anything is measured or made.
#pragma once

#include <optional>
#include <string>

#include "bench/suite/suite.h"
#include "common/result.h"

namespace weightfs::cli {

struct BenchArguments {
  bench::SuiteOptions suite;
  // As given; empty and nullopt where they are not.
  std::string size, large_size, json, report;
  std::optional<unsigned> rounds, files;
  bool list = false;
};

// Checks the arguments and completes `suite`. kInvalid with a full line names the argument and its limits; no argument
// is changed silently. Touches no file.
Result<void> CompleteBenchArguments(BenchArguments* arguments);

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// The arguments of `weightfs bench`. All of them are checked before anything is measured or created.
#pragma once

#include <optional>
#include <string>

#include "bench/suite/suite.h"
#include "common/result.h"

namespace weightfs::cli {

struct BenchArguments {
  bench::SuiteOptions suite;
  // As given; empty or nullopt if absent.
  std::string size, large_size, json, report;
  std::optional<unsigned> rounds, files;
  bool list = false;
};

// Checks the arguments and completes `suite`. On error returns kInvalid with a complete message that names the argument
// and its limits. Changes no argument silently and accesses no file.
Result<void> CompleteBenchArguments(BenchArguments* arguments);

}  // namespace weightfs::cli

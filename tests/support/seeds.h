// SPDX-License-Identifier: Apache-2.0
// Where a test's random numbers begin: the same in every run, so that a change is not refused for an unlucky draw.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

namespace weightfs {

// WEIGHTFS_SEED where it is set: a number repeats a run; `random` looks for what no run found yet.
inline uint64_t FirstSeed(uint64_t otherwise = 1) {
  const char* given = std::getenv("WEIGHTFS_SEED");
  if (given == nullptr) return otherwise;
  return std::string_view(given) == "random" ? std::random_device()() : std::strtoull(given, nullptr, 10);
}

}  // namespace weightfs

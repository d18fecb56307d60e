// SPDX-License-Identifier: Apache-2.0
// The first seed of a test's random numbers. It is the same in every run, so that no change is rejected because of an
// unlucky seed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string_view>

namespace weightfs {

// Returns WEIGHTFS_SEED if it is set: a number repeats a run, and `random` explores new seeds.
inline uint64_t FirstSeed(uint64_t otherwise = 1) {
  const char* given = std::getenv("WEIGHTFS_SEED");
  if (given == nullptr) return otherwise;
  return std::string_view(given) == "random" ? std::random_device()() : std::strtoull(given, nullptr, 10);
}

}  // namespace weightfs

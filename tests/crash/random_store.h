// SPDX-License-Identifier: Apache-2.0
// Small stores with timers that end soon, and faults at random: both by seed.
#pragma once

#include <cstdint>

#include "tests/support/test_store.h"

namespace weightfs {

TestStoreOptions RandomStoreOptions(uint64_t seed);
// Most seeds arm one kind of failure, some none.
void ArmFaults(TestStore& store, uint64_t seed);

}  // namespace weightfs

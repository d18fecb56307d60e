// SPDX-License-Identifier: Apache-2.0
// Devices and a key-value store made of a crash image, to mount again.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/fault_device.h"
#include "tests/support/journal.h"
#include "tests/support/memory_kv_store.h"

namespace weightfs {

// With a new journal, whose first state is the image: crashes can be nested.
struct Restarted {
  std::shared_ptr<Journal> journal;
  std::vector<std::unique_ptr<FaultDevice>> devices;
  std::unique_ptr<MemoryKvStore> kv;
};

Restarted Restart(const CrashImage& image);

}  // namespace weightfs

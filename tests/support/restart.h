// SPDX-License-Identifier: Apache-2.0
// Creates devices and a key-value store from a crash image, to mount again.
#pragma once

#include <memory>
#include <vector>

#include "tests/support/fault_device.h"
#include "tests/support/journal.h"
#include "tests/support/memory_kv_store.h"

namespace weightfs {

// They have a new journal that starts with the image, so crashes can be nested.
struct Restarted {
  std::shared_ptr<Journal> journal;
  std::vector<std::unique_ptr<FaultDevice>> devices;
  std::unique_ptr<MemoryKvStore> kv;

  std::vector<BlockDevice*> borrowed() const {
    std::vector<BlockDevice*> pointers;
    for (const auto& device : devices) pointers.push_back(device.get());
    return pointers;
  }
};

Restarted Restart(const CrashImage& image);

}  // namespace weightfs

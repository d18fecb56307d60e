// SPDX-License-Identifier: Apache-2.0
#include "tests/support/restart.h"

#include <fmt/format.h>

namespace weightfs {

Restarted Restart(const CrashImage& image) {
  Restarted restarted;
  restarted.journal = std::make_shared<Journal>();
  for (const BlockImage& device : image.devices) {
    FaultDeviceOptions options;
    options.path = fmt::format("fault-device-{}", restarted.devices.size());
    restarted.devices.push_back(std::make_unique<FaultDevice>(restarted.journal, device, std::move(options)));
  }
  restarted.kv = std::make_unique<MemoryKvStore>(restarted.journal, image.kv);
  return restarted;
}

}  // namespace weightfs

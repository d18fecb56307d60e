// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/random_store.h"

#include <chrono>
#include <random>

namespace weightfs {

TestStoreOptions RandomStoreOptions(uint64_t seed) {
  TestStoreOptions options;
  options.devices = 1 + seed % 2;
  options.device_size = ByteCount{6 * kMiB};
  options.device = {.reorder = true, .seed = seed};
  options.store.memory = ByteCount{32 * kMiB};
  options.store.commit_interval = std::chrono::milliseconds(1 + seed % 7);
  options.store.close_delay = std::chrono::milliseconds(1);
  return options;
}

void ArmFaults(TestStore& store, uint64_t seed) {
  std::mt19937_64 random(seed);
  FaultDevice& device = store.device(random() % store->device_count());
  const bool later = random() % 4 == 0;
  const uint64_t nth = 1 + random() % 40;
  switch (random() % 9) {
    case 0:
    case 1: device.Fail(FaultDevice::Target::kWrite, {nth, later, ErrorCode::kIo}); break;
    case 2: device.Fail(FaultDevice::Target::kRead, {1 + nth / 4, later, ErrorCode::kIo}); break;
    case 3: device.Fail(FaultDevice::Target::kFlush, {1 + nth / 4}); break;
    case 4: store.kv().FailWrite(nth); break;
    case 5: store.kv().FailSync(1 + nth / 4); break;
    case 6: device.SetWriteBudget(ByteCount{nth * 16 * kKiB}); break;
    case 7: device.Fail(FaultDevice::Target::kSynchronousWrite, {nth, later, ErrorCode::kIo}); break;
    default: break;
  }
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_gpu/gpus.h"

namespace fake_gpu {

Fake& TheFake() {
  // Never destroyed, because the threads of streams may outlive main.
  static auto* fake = new Fake;
  return *fake;
}

std::vector<Context*>& Stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

int Enter(const char* function) {
  if (Stack().empty()) {
    TheFake().Mistake();
    return kInvalidContext;
  }
  return TheFake().InjectedStatus(function);
}

std::shared_ptr<Stream> StreamOf(Stream* handle) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  // 1 and 2 are CUDA's names of the legacy and the per-thread default stream.
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    auto& stream = fake.default_streams[Stack().back()->ordinal];
    if (stream == nullptr) stream = std::make_shared<Stream>();
    return stream;
  }
  const auto found = fake.streams.find(handle);
  if (found != fake.streams.end()) return found->second;
  ++fake.counts.mistakes;
  return nullptr;
}

}  // namespace fake_gpu

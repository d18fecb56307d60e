// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_gpu/gpus.h"

namespace fake_gpu {

Fake& TheFake() {
  // Never destroyed, because the threads of streams may outlive main.
  static auto* fake = new Fake;
  return *fake;
}

int Fake::Attribute(void* value, int attribute, uint64_t address) {
  const std::lock_guard lock(mutex);
  uint64_t begin = 0;
  const Allocation* allocation = FindLocked(address, 1, &begin);
  if (allocation == nullptr) return kInvalidValue;
  switch (attribute) {
    case 1: *static_cast<Context**>(value) = &contexts[allocation->ordinal]; return 0;
    case 2: *static_cast<unsigned*>(value) = 2; return 0;                    // kind of memory: of a GPU
    case 3: *static_cast<uint64_t*>(value) = address; return 0;              // address on the GPU
    case 7: *static_cast<uint64_t*>(value) = begin; return 0;                // identity of the allocation
    case 8: *static_cast<unsigned*>(value) = 0; return 0;                    // managed memory
    case 9: *static_cast<int*>(value) = allocation->ordinal; return 0;
    case 11: *static_cast<uint64_t*>(value) = begin; return 0;
    case 12: *static_cast<size_t*>(value) = allocation->size; return 0;
    case 13: *static_cast<unsigned*>(value) = 1; return 0;                   // mapped
    default: return kInvalidValue;
  }
}

std::vector<Context*>& Stack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

int& CaptureMode() {
  static thread_local int mode = 0;
  return mode;
}

int Enter(const char* function) {
  if (Stack().empty()) {
    TheFake().Mistake();
    return kInvalidContext;
  }
  if (CaptureMode() != kRelaxed && TheFake().Capturing()) {
    TheFake().Mistake();
    return kForbiddenInCapture;
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

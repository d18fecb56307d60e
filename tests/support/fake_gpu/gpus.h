// SPDX-License-Identifier: Apache-2.0
// Shared by the fakes of CUDA's driver and of cuFile: the GPUs' memory, their streams, and injected failures.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_gpu/fake_gpu.h"

namespace fake_gpu {

// CUDA's status codes.
constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kForbiddenInCapture = 900;
constexpr int kRelaxed = 2;

struct Allocation {
  size_t size = 0;
  size_t mapped = 0;
  int ordinal = 0;
  std::byte* hidden = nullptr;
};

// Carries out its work in order on a thread of its own, which ends with the last reference.
class Stream {
 public:
  Stream() : state_(std::make_shared<State>()) {
    std::thread([state = state_] { Run(*state); }).detach();
  }
  ~Stream() {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
    state_->changed.notify_all();
  }

  // The position that the stream will have reached when all its current work is done.
  uint64_t end() {
    const std::lock_guard lock(state_->mutex);
    return state_->put;
  }
  void Put(std::function<int()> work) {
    const std::lock_guard lock(state_->mutex);
    state_->work.push_back(std::move(work));
    ++state_->put;
    state_->changed.notify_all();
  }
  bool Reached(uint64_t point) {
    const std::lock_guard lock(state_->mutex);
    return state_->done >= point;
  }
  void Wait(uint64_t point) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->done >= point; });
  }
  // The status of the first failed work so far.
  int status() {
    const std::lock_guard lock(state_->mutex);
    return state_->status;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<int()>> work;
    uint64_t put = 0;
    uint64_t done = 0;
    int status = 0;
    bool ended = false;
  };
  static void Run(State& state) {
    std::unique_lock lock(state.mutex);
    for (;;) {
      state.changed.wait(lock, [&] { return !state.work.empty() || state.ended; });
      if (state.work.empty()) return;
      const auto work = std::move(state.work.front());
      state.work.pop_front();
      lock.unlock();
      const int status = work();
      lock.lock();
      if (state.status == 0) state.status = status;
      ++state.done;
      state.changed.notify_all();
    }
  }
  const std::shared_ptr<State> state_;
};

struct Event {
  std::shared_ptr<Stream> stream;
  uint64_t point = 0;
};
struct Context {
  int ordinal;
};
struct File {
  int descriptor;
};

struct Failure {
  int after = 0;
  int times = 0;
  int status = 0;
};

constexpr int kDevices = 2;

struct Fake {
  std::mutex mutex;
  std::condition_variable released;
  std::map<uint64_t, Allocation> allocations;
  std::map<std::string, Failure> failures;
  Failure copy_failure;
  std::map<uint64_t, size_t> locked;  // host memory
  std::map<uint64_t, size_t> pinned;
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::set<Event*> events;
  std::set<File*> files;
  Context contexts[kDevices]{{0}, {1}};
  std::shared_ptr<Stream> default_streams[kDevices];
  int retained = 0;
  int devices = 1;
  unsigned kinds = 0;
  size_t limit = 0;
  bool held = false;
  std::optional<uint64_t> captured;  // the stream of which a graph is captured
  uint64_t copies = 0;  // under way
  uint64_t awaited_copies = 0;
  std::condition_variable copy_started;
  FakeGpuCounts counts{};

  Allocation* FindLocked(uint64_t address, size_t size, uint64_t* begin) {
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return nullptr;
    auto& [start, allocation] = *std::prev(after);
    if (address - start > allocation.size || size > allocation.size - (address - start)) return nullptr;
    *begin = start;
    return &allocation;
  }
  // Returns the hidden address. If the range is not in one allocation, returns null and counts a mistake.
  std::byte* Hidden(uint64_t address, size_t size) {
    const std::lock_guard lock(mutex);
    uint64_t begin = 0;
    Allocation* allocation = FindLocked(address, size, &begin);
    if (allocation == nullptr) {
      ++counts.mistakes;
      return nullptr;
    }
    return allocation->hidden + (address - begin);
  }
  // CUDA's attribute of an address, into the type that CUDA gives it. Returns CUDA's status.
  int Attribute(void* value, int attribute, uint64_t address);
  static bool Take(Failure& failure) {
    if (failure.times == 0) return false;
    if (failure.after > 0) {
      --failure.after;
      return false;
    }
    --failure.times;
    return true;
  }
  // Returns the injected status of the function, or 0.
  int InjectedStatus(const char* function) {
    const std::lock_guard lock(mutex);
    const auto found = failures.find(function);
    return found != failures.end() && Take(found->second) ? found->second.status : 0;
  }
  bool Capturing() {
    const std::lock_guard lock(mutex);
    return captured.has_value();
  }
  void Mistake() {
    const std::lock_guard lock(mutex);
    ++counts.mistakes;
  }
};

Fake& TheFake();

// The context stack of this thread.
std::vector<Context*>& Stack();

// This thread's capture mode: 0 strict, 2 relaxed.
int& CaptureMode();

// Returns the injected status, or invalid context, or the status of a call that a capture forbids, or 0.
int Enter(const char* function);

// If there is no such stream, returns null and counts a mistake.
std::shared_ptr<Stream> StreamOf(Stream* handle);

}  // namespace fake_gpu

// SPDX-License-Identifier: Apache-2.0
// Operations of a handle that are guaranteed to be under way.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/handle.h"
#include "tests/support/thread_state.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {

inline MemoryView View(Bytes& bytes) { return MemoryView(std::span<std::byte>(bytes)); }

// Returns when the I/O threads of all handles, those that open files, and `others` wait for other threads. By then an
// operation that has begun has ended, unless a callback or a StandingWrite on its ring prevents it.
inline void WaitUntilIdle(const std::vector<pid_t>& others = {}) {
  std::vector<pid_t> threads = ThreadsNamed("weightfs-io");
  for (const auto& more : {ThreadsNamed("weightfs-open"), others}) {
    threads.insert(threads.end(), more.begin(), more.end());
  }
  WaitUntilBlocked(threads);
}

// A write that blocks after its first transfer, together with its ring, until it is released.
class StandingWrite {
 public:
  StandingWrite(Handle& handle, const std::string& path, Bytes& bytes, std::optional<uint64_t> offset = 0,
                bool atomic = false)
      : operation_(handle
                       .StartWrite(path, View(bytes),
                                   {.offset = offset,
                                    .atomic = atomic,
                                    .progress =
                                        [this](uint64_t, uint64_t) {
                                          if (begun_.exchange(true)) return;
                                          stands_.count_down();
                                          go_.wait();
                                        }})
                       .value()) {
    stands_.wait();
  }
  ~StandingWrite() { LetGo(); }
  void LetGo() {
    if (!gone_.exchange(true)) go_.count_down();
  }
  Operation& operator*() const { return *operation_; }
  Operation* operator->() const { return operation_.get(); }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> gone_{false};
  std::latch stands_{1};
  std::latch go_{1};
  std::shared_ptr<Operation> operation_;
};

}  // namespace weightfs::client

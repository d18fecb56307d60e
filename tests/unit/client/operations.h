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

// Operations inside one block are distributed over the rings in turn; larger ones have a slice on each of several
// rings.
inline std::unique_ptr<Handle> MakeHandle(unsigned threads = 2) {
  return std::move(
      Handle::Create({.block_size = 4096, .queue_depth = 4, .overlap_events = true, .intra_op_parallelism = threads})
          .value());
}

// Returns when the threads of all handles and `others` wait for other threads. By then an operation that has begun has
// ended, unless a callback prevents it.
inline void WaitUntilIdle(const std::vector<pid_t>& others = {}) {
  for (std::vector<pid_t> threads; threads != ThreadsNamed("weightfs-io");) {
    threads = ThreadsNamed("weightfs-io");
    std::vector<pid_t> all = threads;
    all.insert(all.end(), others.begin(), others.end());
    WaitUntilBlocked(all);
  }
}

// A write that does not end until it is released, because the callback of its progress blocks.
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
  ~StandingWrite() {
    LetGo();
    operation_->Wait();  // its callback uses this object
  }
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

// SPDX-License-Identifier: Apache-2.0
// Asynchronous transfers between memory and open files. The caller drives the ring: it queues transfers, submits them
// to the kernel and reaps the completions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs {

class KernelQueue;

// Thread-safe. With `wakeable` any number of threads may queue and submit while one thread reaps; without it no other
// thread may submit while a thread is in Reap, which could not be woken. No lock is held in a system call.
//
// A transfer is queued, then in the kernel, then completed. The ring hides what the kernel does not do at once:
//  - The kernel accepts a part of a batch: the rest stays queued.
//  - The kernel accepts nothing for now (EAGAIN): Submit returns, and the caller submits again after it has reaped.
//    With nothing in the kernel Reap then waits for a millisecond at most, because no completion announces that there
//    is room.
//  - A transfer is short: the rest is queued again, from the last whole `unit` that was reached.
class IoRing {
 public:
  static constexpr size_t kMaxBatch = 64;  // transfers of one system call

  struct Options {
    unsigned depth = 128;     // transfers in the kernel at once
    bool may_shrink = false;  // a smaller depth is accepted where the system has no more left
    bool wakeable = false;    // Wake may be called
  };
  struct Transfer {
    bool write = false;
    int descriptor = -1;
    std::byte* data = nullptr;
    uint64_t size = 0;
    uint64_t offset = 0;
    uint64_t unit = 1;  // what O_DIRECT needs: the rest of a short transfer begins at a multiple of it in this one
    void* owner = nullptr;
  };
  struct Completion {
    Transfer transfer;
    uint64_t done = 0;     // bytes from the start of the transfer; all of them after a success
    int error_number = 0;  // 0 with fewer bytes: the kernel stopped before the end of the next unit, as at a file's end
  };

  // kAgain, with the numbers of fs.aio-max-nr, when the system has no room for the ring.
  static Result<std::unique_ptr<IoRing>> Create(const Options& options);
  IoRing(unsigned depth, std::unique_ptr<KernelQueue> kernel);
  // Nothing may be in the kernel.
  ~IoRing();

  unsigned depth() const { return depth_; }
  size_t queued() const EXCLUDES(mutex_);
  size_t in_kernel() const EXCLUDES(mutex_);
  // True when nothing is queued, in the kernel or waiting to be reaped.
  bool idle() const EXCLUDES(mutex_);

  void Queue(std::span<const Transfer> transfers) EXCLUDES(mutex_);
  // Removes the queued transfers whose owner satisfies the predicate, and returns these owners.
  std::vector<void*> Withdraw(const std::function<bool(void* owner)>& predicate) EXCLUDES(mutex_);

  // Submits at most `limit` queued transfers, in batches of at most `batch`. Returns how many the kernel accepted. A
  // transfer that the kernel refuses for good completes with its errno, through Reap.
  size_t Submit(size_t limit = SIZE_MAX, size_t batch = kMaxBatch) EXCLUDES(mutex_);

  // Waits for at least `minimum` events of the kernel (0 or 1), at most until the timeout. Returns the number of
  // completions, at most kMaxBatch: it may be 0, after a short transfer or a signal, and by Wake. The caller then
  // submits, because transfers may have been queued again.
  size_t Reap(std::span<Completion> completions, size_t minimum,
              std::optional<std::chrono::nanoseconds> timeout = std::nullopt) EXCLUDES(mutex_);
  // Makes the current call of Reap return, or else the next one.
  void Wake();

 private:
  struct Entry {
    Transfer transfer;
    uint64_t done = 0;
  };

  size_t TakeBatchLocked(std::span<unsigned> batch) REQUIRES(mutex_);
  // Queues again what the kernel left of a batch. False when it accepts nothing for now.
  bool RequeueLocked(std::span<const unsigned> left, int error_number) REQUIRES(mutex_);
  std::optional<Completion> CompleteLocked(unsigned slot, int64_t result) REQUIRES(mutex_);
  size_t InKernelLocked() const REQUIRES(mutex_) { return slots_.size() - free_.size(); }

  const unsigned depth_;
  const std::unique_ptr<KernelQueue> kernel_;
  mutable Mutex mutex_;
  std::vector<Entry> slots_ GUARDED_BY(mutex_);
  std::vector<unsigned> free_ GUARDED_BY(mutex_);  // slots
  std::deque<Entry> queue_ GUARDED_BY(mutex_);
  std::deque<Completion> failed_ GUARDED_BY(mutex_);  // by Submit
  bool reaping_ GUARDED_BY(mutex_) = false;           // a thread is in KernelQueue::Wait
  bool refused_ GUARDED_BY(mutex_) = false;           // the kernel accepted nothing, with nothing in it
};

}  // namespace weightfs

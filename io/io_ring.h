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
#include <vector>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs {

class KernelQueue;

// Thread-safe. With `wakeable`, any number of threads may queue and submit while one thread reaps. Without it, no other
// thread may submit while a thread is in Reap, because that thread cannot be woken. No lock is held during a system
// call.
//
// A transfer is queued, then in the kernel, then completed. The ring handles partial progress of the kernel:
// - The kernel accepts part of a batch: the rest stays queued.
// - The kernel accepts nothing for now (EAGAIN): Submit returns, and the caller submits again after it has reaped. When
//   nothing is in the kernel, Reap then waits at most one millisecond, because no completion will announce free
//   capacity.
// - A transfer is short: the rest is queued again, from the last whole `unit` that was transferred.
class IoRing {
 public:
  static constexpr size_t kMaxBatch = 64;  // transfers per system call

  struct Options {
    unsigned depth = 128;     // maximum number of transfers in the kernel
    bool may_shrink = false;  // accept a smaller depth when the system limit allows no more
    bool wakeable = false;    // Wake may be called
  };
  struct Transfer {
    bool write = false;
    int descriptor = -1;
    std::byte* data = nullptr;
    uint64_t size = 0;
    uint64_t offset = 0;
    uint64_t unit = 1;  // O_DIRECT granularity: a short transfer continues at a multiple of it from its start
    void* owner = nullptr;
  };
  struct Completion {
    Transfer transfer;
    uint64_t done = 0;     // bytes from the start of the transfer; equal to its size on success
    int error_number = 0;  // 0 with fewer bytes: the kernel stopped before the end of a unit, as at end of file
  };

  // Returns kAgain, with the values of fs.aio-max-nr, when the system limit allows no ring.
  static Result<std::unique_ptr<IoRing>> Create(const Options& options);
  IoRing(unsigned depth, std::unique_ptr<KernelQueue> kernel);
  // No transfer may be in the kernel.
  ~IoRing();

  unsigned depth() const { return depth_; }
  size_t queued() const EXCLUDES(mutex_);
  size_t in_kernel() const EXCLUDES(mutex_);
  // True when nothing is queued, in the kernel or waiting to be reaped.
  bool idle() const EXCLUDES(mutex_);

  void Queue(std::span<const Transfer> transfers) EXCLUDES(mutex_);
  // Removes the queued transfers whose owner satisfies the predicate, and returns their owners.
  std::vector<void*> Withdraw(const std::function<bool(void* owner)>& predicate) EXCLUDES(mutex_);

  // Submits at most `limit` queued transfers, in batches of at most `batch`. Returns how many the kernel accepted. A
  // transfer that the kernel rejects permanently completes with its errno through Reap.
  size_t Submit(size_t limit = SIZE_MAX, size_t batch = kMaxBatch) EXCLUDES(mutex_);

  // Waits for at least `minimum` kernel events (0 or 1), until the timeout at the latest. Returns the number of
  // completions, at most kMaxBatch. It may be 0: after a short transfer, a signal or a Wake. The caller then submits
  // again, because transfers may have been requeued.
  size_t Reap(std::span<Completion> completions, size_t minimum,
              std::optional<std::chrono::nanoseconds> timeout = std::nullopt) EXCLUDES(mutex_);
  // Makes the current call of Reap return, or the next one if there is none.
  void Wake();

 private:
  struct Entry {
    Transfer transfer;
    uint64_t done = 0;
  };

  size_t TakeBatchLocked(std::span<unsigned> batch) REQUIRES(mutex_);
  // Requeues the rest of a batch that the kernel did not accept. Returns false when it accepts nothing for now.
  bool RequeueLocked(std::span<const unsigned> left, int error_number) REQUIRES(mutex_);
  std::optional<Completion> CompleteLocked(unsigned slot, int64_t result) REQUIRES(mutex_);
  size_t InKernelLocked() const REQUIRES(mutex_) { return slots_.size() - free_.size(); }

  const unsigned depth_;
  const std::unique_ptr<KernelQueue> kernel_;
  mutable Mutex mutex_;
  std::vector<Entry> slots_ GUARDED_BY(mutex_);
  std::vector<unsigned> free_ GUARDED_BY(mutex_);  // slots
  std::deque<Entry> queue_ GUARDED_BY(mutex_);
  std::deque<Completion> failed_ GUARDED_BY(mutex_);  // failed in Submit
  bool reaping_ GUARDED_BY(mutex_) = false;           // a thread is in KernelQueue::Wait
  bool refused_ GUARDED_BY(mutex_) = false;           // the kernel accepted nothing while it held nothing
};

// The interface of an IoRing to the kernel's asynchronous I/O. aio_queue.cc implements it with libaio and is the only
// production file that uses libaio; io_uring could be a second implementation.
//
// A fixed number of slots with one transfer each. Different threads may prepare and submit different slots at the same
// time while one thread waits. Any thread may call Wake.
class KernelQueue {
 public:
  struct Event {
    unsigned slot = 0;
    int64_t result = 0;  // bytes, or a negative errno
  };

  // `wakeable` enables Wake; the queue then takes one more slot from the system limit.
  static Result<std::unique_ptr<KernelQueue>> Create(unsigned slots, bool wakeable);
  virtual ~KernelQueue() = default;

  // Sets the transfer of a slot that is not in the kernel. Its first `done` bytes are skipped.
  virtual void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) = 0;
  // Submits prepared slots to the kernel. Returns how many it accepted (a prefix), or a negative errno for the first
  // slot.
  virtual int Submit(std::span<const unsigned> slots) = 0;
  // Waits for at least `minimum` events, or for Wake, or until the timeout. Returns the number of events, which may be
  // 0, or a negative errno.
  virtual int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) = 0;
  // Makes the current call of Wait return, or the next one if there is none.
  virtual void Wake() = 0;
};

}  // namespace weightfs

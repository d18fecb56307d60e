// SPDX-License-Identifier: Apache-2.0
// The I/O loop of a handle: a pipeline, and the threads that take turns driving it.
//
// At most one thread at a time drives a ring: it plans, submits and reaps transfers. It is one of the ring's own
// threads, or a thread that waits for a synchronous operation while no other thread drives. The latter saves two
// context switches per small operation.
//
// The driver makes no request that may take long (no open, fallocate, fsync, rename or request for a lease) and runs
// no callback. Those are *tasks* (the open at the turn of an operation, an end of an operation that is more than a
// close) and *calls* (callbacks), in queues of their own. The ring's threads that do not drive carry them out in
// order, a call first and the calls one at a time; one thread is left for them, if it can be started. The last thread
// without a task never takes one: it drives when there is something to drive. So no task or call delays a transfer, and
// no call delays a task but the end of the operation whose progress it reports. A driver with nothing left to do takes
// tasks itself, without a context switch. One exception: where the kernel refuses a transfer by O_DIRECT, or cuts it
// short, the driver opens the file without.
//
// Every thread of a ring is started by Create or by another thread of the ring. So all of them have the user, groups
// and capabilities of the thread that created the handle, and none ever changes them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "client/operation.h"
#include "client/pipeline.h"
#include "common/mutex.h"

namespace weightfs::client {

// Thread-safe.
class Ring : public std::enable_shared_from_this<Ring> {
 public:
  // Threads of a ring: one drives, one runs callbacks, the others have tasks that block.
  static constexpr size_t kMostThreads = 6;
  static constexpr size_t kMostTasks = kMostThreads - 2;  // at the same time; further ones wait

  static Result<std::shared_ptr<Ring>> Create(const PipelineOptions& options);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() = default;  // must be called after Stop

  // Waits for the transfers in the kernel, cancels the queued rest, and waits for all tasks and calls. All operations
  // are then done. If called in a task or call of the ring itself, it does not wait for that one; no transfer is under
  // way afterwards, and calls behind it, and the end of its operation, follow when it has returned.
  void Stop() EXCLUDES(mutex_);
  // The first part of Stop, without waiting, so that several rings can stop concurrently.
  void BeginStop() EXCLUDES(mutex_);

  // Adds the bytes [begin, end) of an operation's memory. The range is empty only for an operation of 0 bytes. `wake`:
  // wake the ring's thread; false if the caller is going to call Help. A ring that has ended cancels the operation.
  void Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) EXCLUDES(mutex_);
  // Drives the ring until the slices of the operation are done or `limit` has passed. Returns at once if another thread
  // drives. The ring's thread does the remaining work. Returns true if the caller must call End. Not allowed in
  // callbacks.
  [[nodiscard]] bool Help(const Operation& operation, std::chrono::nanoseconds limit) EXCLUDES(mutex_);
  // Ends an operation whose slices are done, on this thread. Blocks.
  void End(const std::shared_ptr<Operation>& operation) EXCLUDES(mutex_);
  // Runs a task, which may block. From other threads not after BeginStop.
  void Run(std::function<void()> task) EXCLUDES(mutex_) { Post(tasks_, std::move(task)); }

 private:
  using Tasks = std::deque<std::function<void()>>;
  struct Queued {
    std::shared_ptr<Operation> operation;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  explicit Ring(std::unique_ptr<Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
  Result<void> StartThreadLocked() REQUIRES(mutex_);
  // The loop of the ring's threads.
  void Work() EXCLUDES(mutex_);
  // Returns when the slices of `until` are done or `limit` has passed; if `until` is null, when nothing is left to do.
  // Returns true if the caller has to end `until`.
  bool Drive(const Operation* until, std::chrono::nanoseconds limit = {}) EXCLUDES(mutex_);
  void TakeQueued() EXCLUDES(mutex_);
  // Queues what is due in the pipeline for other threads. Returns true if the caller has to end `until`.
  bool HandOver(const Operation* until) EXCLUDES(mutex_);
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit) EXCLUDES(mutex_);

  // Post also wakes a thread for the task.
  void Post(Tasks& queue, std::function<void()> task) EXCLUDES(mutex_);
  // Calls the progress callback of the operation, which may then have to be ended.
  void Report(const std::shared_ptr<Operation>& operation) EXCLUDES(mutex_);
  void AddTask(Tasks& queue, std::function<void()> task) EXCLUDES(mutex_);
  // True if a task or a call could begin.
  bool WaitsLocked() const REQUIRES(mutex_) {
    return CallWaitsLocked() || (!tasks_.empty() && working_ < kMostTasks);
  }
  bool CallWaitsLocked() const REQUIRES(mutex_) { return !calls_.empty() && !calling_; }
  // Returns false if no thread is idle.
  bool WakeOneLocked() REQUIRES(mutex_);
  // If a task or call could begin: wakes a thread for it, or starts one.
  void WakeForTaskLocked() REQUIRES(mutex_);
  // Carries out the next task or call, without the lock. Returns false if there is none that this thread may take.
  bool TakeTask(MutexLock& lock) REQUIRES(mutex_);
  bool NeedsDriverLocked() const REQUIRES(mutex_) { return !driven_ && (!queue_.empty() || work_left_); }
  bool HasEndedLocked() const REQUIRES(mutex_) {
    return stopping_ && !driven_ && !NeedsDriverLocked() && !WaitsLocked();
  }

  std::unique_ptr<Pipeline> pipeline_;  // used by the driver; null once the ring has ended
  Mutex mutex_;
  std::deque<Queued> queue_ GUARDED_BY(mutex_);
  bool driven_ GUARDED_BY(mutex_) = false;
  bool sleeps_ GUARDED_BY(mutex_) = false;     // the driver waits for the kernel and does not look at the queue
  bool work_left_ GUARDED_BY(mutex_) = false;  // a driver returned while work was under way
  bool stopping_ GUARDED_BY(mutex_) = false;
  Tasks tasks_ GUARDED_BY(mutex_);
  Tasks calls_ GUARDED_BY(mutex_);
  bool calling_ GUARDED_BY(mutex_) = false;     // a call runs
  size_t working_ GUARDED_BY(mutex_) = 0;       // tasks that run
  std::vector<std::condition_variable*> idle_ GUARDED_BY(mutex_);   // of the threads that wait; the last one began last
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);  // those that Stop has not taken
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// The I/O loop of a handle: a pipeline, and the threads that take turns driving it.
//
// The driver does all work of the ring but the ends of operations. It is either the ring's own thread, or a thread that
// waits for a synchronous operation while no other thread drives. The latter saves two context switches per small
// operation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "client/operation.h"
#include "client/pipeline.h"
#include "common/mutex.h"

namespace weightfs::client {

// Thread-safe.
class Ring {
 public:
  // `run`: for blocking transfers and ends of operations.
  static Result<std::unique_ptr<Ring>> Create(const PipelineOptions& options, const RunBlocking& run);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { Stop(); }

  // Waits for the transfers in the kernel and cancels the queued rest; the ends of all operations then run.
  void Stop() EXCLUDES(mutex_);
  // The first part of Stop, without waiting, so that several rings can stop concurrently.
  void BeginStop() EXCLUDES(mutex_);

  // Adds the bytes [begin, end) of an operation's memory. The range is empty only for an operation of 0 bytes. `wake`:
  // wake the ring's thread; false if the caller is going to call Help. A stopping ring cancels the operation instead.
  void Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) EXCLUDES(mutex_);
  // Drives the ring until the slices of the operation are done or `limit` has passed. Returns at once if another thread
  // drives. The ring's thread does the remaining work. Returns true if the caller has to end the operation.
  [[nodiscard]] bool Help(const Operation& operation, std::chrono::nanoseconds limit) EXCLUDES(mutex_);

 private:
  struct Queued {
    std::shared_ptr<Operation> operation;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  Ring(std::unique_ptr<Pipeline> pipeline, RunBlocking run) : pipeline_(std::move(pipeline)), run_(std::move(run)) {}
  void StartEnd(std::shared_ptr<Operation> operation) const;
  void Run() EXCLUDES(mutex_);
  // Returns when `until` is transferred or `limit` has passed; if `until` is null, when there is nothing left to do.
  // Returns true if the caller has to end `until`.
  bool Drive(const Operation* until, std::chrono::nanoseconds limit = {}) EXCLUDES(mutex_);
  void TakeQueued() EXCLUDES(mutex_);
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit) EXCLUDES(mutex_);

  std::unique_ptr<Pipeline> pipeline_;  // used by the driver
  const RunBlocking run_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_ GUARDED_BY(mutex_);
  bool driven_ GUARDED_BY(mutex_) = false;
  std::thread::id driver_ GUARDED_BY(mutex_);
  bool sleeps_ GUARDED_BY(mutex_) = false;     // the driver waits for the kernel and does not look at the queue
  bool work_left_ GUARDED_BY(mutex_) = false;  // a driver returned while work was under way
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weightfs::client

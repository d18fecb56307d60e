// SPDX-License-Identifier: Apache-2.0
// The I/O loop of a handle: a pipeline, and the threads that take turns driving it.
//
// The driver does all work of the ring. It is either the ring's own thread, or a thread that waits for a synchronous
// operation while no other thread drives. The latter saves two context switches per small operation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
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
  static Result<std::shared_ptr<Ring>> Create(const PipelineOptions& options);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() = default;  // must be called after Stop

  // Waits for the transfers in the kernel and cancels the queued rest; all operations are then done. May be called in a
  // callback of the ring itself. If called in a progress callback, no transfer is under way afterwards, and the
  // operations are done once the callback has returned.
  void Stop() EXCLUDES(mutex_);
  // The first part of Stop, without waiting, so that several rings can stop concurrently.
  void BeginStop() EXCLUDES(mutex_);

  // Adds the bytes [begin, end) of an operation's memory. The range is empty only for an operation of 0 bytes. `wake`:
  // wake the ring's thread; false if the caller is going to call Help.
  void Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) EXCLUDES(mutex_);
  // Drives the ring until the operation is done or `limit` has passed. Returns at once if another thread drives. The
  // ring's thread does the remaining work. Not allowed in callbacks.
  void Help(const Operation& operation, std::chrono::nanoseconds limit) EXCLUDES(mutex_);

 private:
  struct Queued {
    std::shared_ptr<Operation> operation;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  explicit Ring(std::unique_ptr<Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
  void Run() EXCLUDES(mutex_);
  // Returns when `until` is done or `limit` has passed; if `until` is null, when there is nothing left to do.
  void Drive(const Operation* until, std::chrono::nanoseconds limit = {}) EXCLUDES(mutex_);
  void TakeQueued() EXCLUDES(mutex_);
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit) EXCLUDES(mutex_);

  std::unique_ptr<Pipeline> pipeline_;  // used by the driver
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

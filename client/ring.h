// SPDX-License-Identifier: Apache-2.0
// The I/O loop of a handle: a pipeline, and the threads that take turns in driving it.
//
// The driver carries out everything in the ring. It is the ring's own thread, or a thread that waits for a synchronous
// operation and finds nobody driving. The second saves two switches of threads for each small operation.
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
  ~Ring() = default;  // after Stop

  // Ends it: waits for what the kernel has, the queued rest is cancelled; all operations are done afterwards. May be
  // called in a callback of the ring itself; after that of a progress no transfer is under way, and the operations are
  // done once it has returned.
  void Stop() EXCLUDES(mutex_);
  // The first part of Stop, without waiting: several rings end beside each other.
  void BeginStop() EXCLUDES(mutex_);

  // Takes the bytes [begin, end) of an operation's memory, not empty but for an operation of no bytes. Wakes the ring's
  // thread, unless the caller is going to Help.
  void Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) EXCLUDES(mutex_);
  // Drives until the operation is done or the time is over; not while another thread drives. The ring's thread carries
  // out the rest. Not for callbacks.
  void Help(const Operation& operation, std::chrono::nanoseconds limit) EXCLUDES(mutex_);

 private:
  struct Queued {
    std::shared_ptr<Operation> operation;
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  explicit Ring(std::unique_ptr<Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
  void Run() EXCLUDES(mutex_);
  // Returns when `until` is done or `limit` over, or without one when there is nothing left to do.
  void Drive(const Operation* until, std::chrono::nanoseconds limit = {}) EXCLUDES(mutex_);
  void TakeQueued() EXCLUDES(mutex_);
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit) EXCLUDES(mutex_);

  std::unique_ptr<Pipeline> pipeline_;  // of the driver
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_ GUARDED_BY(mutex_);
  bool driven_ GUARDED_BY(mutex_) = false;
  std::thread::id driver_ GUARDED_BY(mutex_);
  bool sleeps_ GUARDED_BY(mutex_) = false;     // the driver waits for the kernel, and does not look at the queue
  bool work_left_ GUARDED_BY(mutex_) = false;  // a driver left with work under way
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weightfs::client

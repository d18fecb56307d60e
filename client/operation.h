// One read or write of a Handle, from its start to its outcome: the future that callers wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/memory_view.h"
#include "client/target.h"
#include "common/mutex.h"

namespace weightfs::client {

class DeviceMemory;  // client/gpu/gpu.h

// Thread-safe. Shared by the caller and the handle; the memory must stay until done() is true. Once done, an
// operation needs its handle no more. Callbacks come from a thread of the handle (or one that waits in a
// synchronous call), with no lock held; they may start operations and may not wait for one.
class Operation {
 public:
  enum class Direction : unsigned char { kRead, kWrite };
  struct Plan {
    Direction direction;
    std::unique_ptr<Target> target;
    MemoryView memory;
    std::shared_ptr<DeviceMemory> device = {};                         // for memory of a GPU
    uint64_t offset = 0;                                               // in the file
    std::function<void(uint64_t done, uint64_t total)> progress = {};  // bytes; may be empty
    // The handle's account; called once, under the operation's lock. Null: success.
    std::function<void(const IoError* error)> finished = {};
    std::shared_ptr<void> place = {};  // among the handle's operations; given up once done, with no lock held
  };

  explicit Operation(Plan plan) : plan_(std::move(plan)) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Whether it has ended, in whatever way: the memory is the caller's again.
  bool done() const EXCLUDES(mutex_);
  // Set once done, when it failed or was cancelled.
  std::optional<IoError> error() const EXCLUDES(mutex_);
  bool cancelled() const EXCLUDES(mutex_);
  uint64_t size() const { return plan_.memory.size(); }
  // Bytes transferred so far; size() after a success.
  uint64_t transferred() const { return transferred_.load(std::memory_order_relaxed); }

  // Waits until done. False when `timeout` passed before, or when called from a callback (it could never end
  // there).
  bool Wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt) const EXCLUDES(mutex_);
  // Asks it to stop: what is not in the kernel yet is dropped. False when it is done already. An operation
  // whose last byte was already on its way still succeeds.
  bool Cancel() EXCLUDES(mutex_);
  // Calls `callback` once it is done; at once, on this thread, if it is.
  void OnDone(std::function<void()> callback) EXCLUDES(mutex_);

  // --- For the loop that carries it out (client/ring.h). ---
  Direction direction() const { return plan_.direction; }
  const Target& target() const { return *plan_.target; }
  const MemoryView& memory() const { return plan_.memory; }
  // Null for memory of the host; until Complete.
  const std::shared_ptr<DeviceMemory>& device() const { return plan_.device; }
  uint64_t offset() const { return plan_.offset; }
  // No further transfer is to begin: it failed, or was cancelled.
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  // Bytes of the memory that are written when all slices are done.
  struct Edge {
    uint64_t at = 0;
    uint64_t size = 0;
  };
  void DeferEdge(const Edge& edge) {
    MutexLock lock(mutex_);
    edges_.push_back(edge);
  }
  std::vector<Edge> TakeEdges() {
    MutexLock lock(mutex_);
    return std::exchange(edges_, {});
  }
  // O_DIRECT was refused for one piece: the rest goes by the buffered descriptor.
  bool direct_refused() const { return direct_refused_.load(std::memory_order_relaxed); }
  void RefuseDirect() { direct_refused_.store(true, std::memory_order_relaxed); }
  void AddTransferred(uint64_t bytes);
  // The first error counts.
  void Fail(IoError error) EXCLUDES(mutex_);
  // How many slices SliceDone is going to be called for; before the first is handed out.
  void SetSlices(size_t count) { slices_left_.store(count, std::memory_order_relaxed); }
  // True for the last one; the caller then calls Complete.
  bool SliceDone() { return slices_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // Finishes the target, publishes the outcome, runs the callbacks.
  void Complete() EXCLUDES(mutex_);

  // Marks the time in which this thread runs callbacks, where waiting would never end.
  class CallbackScope {
   public:
    CallbackScope();
    ~CallbackScope();
    static bool active();
  };

 private:
  Plan plan_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> direct_refused_{false};
  std::atomic<uint64_t> transferred_{0};
  std::atomic<uint64_t> reported_{0};  // to `progress`
  std::atomic<size_t> slices_left_{0};
  mutable Mutex mutex_;
  mutable std::condition_variable ended_;
  bool completing_ GUARDED_BY(mutex_) = false;  // the outcome is being made: it is too late to fail
  std::vector<Edge> edges_ GUARDED_BY(mutex_);
  bool done_ GUARDED_BY(mutex_) = false;
  std::optional<IoError> error_ GUARDED_BY(mutex_);
  std::vector<std::function<void()>> callbacks_ GUARDED_BY(mutex_);
};

}  // namespace weightfs::client

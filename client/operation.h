// SPDX-License-Identifier: Apache-2.0
// One read or write of a Handle, from its start to its outcome: the future that callers wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "client/export.h"
#include "client/memory_view.h"
#include "common/error.h"

namespace weightfs::client {

class DeviceMemory;
class Target;

// Thread-safe. Shared by the caller and the handle; the memory must stay until done() is true. Once done, an
// operation needs its handle no more. Callbacks come from a thread of the handle (or one that waits in a
// synchronous call), with no lock held; they may start operations and may not wait for one.
class Operation {
 public:
  enum class Direction : unsigned char { kRead, kWrite };

  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // True when it succeeded, failed or was cancelled: the memory is the caller's again.
  WEIGHTFS_EXPORT bool done() const;
  // Set once done, when it failed or was cancelled.
  WEIGHTFS_EXPORT std::optional<Error> error() const;
  WEIGHTFS_EXPORT bool cancelled() const;
  WEIGHTFS_EXPORT uint64_t size() const;
  // Bytes transferred so far; size() after a success.
  WEIGHTFS_EXPORT uint64_t transferred() const;

  // Waits until done. False when `timeout` passed before, or when called from a callback (it could never end
  // there).
  WEIGHTFS_EXPORT bool Wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt) const;
  // Asks it to stop: what is not in the kernel yet is dropped. False when it is done already. An operation
  // whose last byte was already on its way still succeeds.
  WEIGHTFS_EXPORT bool Cancel();
  // Calls `callback` once it is done; at once, on this thread, if it is.
  WEIGHTFS_EXPORT void OnDone(std::function<void()> callback);

  // --- For the library alone, which makes operations and carries them out: nothing below is exported. ---
  struct Plan;
  explicit Operation(Plan plan);
  ~Operation();
  Direction direction() const;
  const Target& target() const;
  const MemoryView& memory() const;
  // Null for memory of the host; until Complete.
  const std::shared_ptr<DeviceMemory>& device() const;
  uint64_t offset() const;
  // Begins an operation that was held. False: it was stopped before. It is dispatched all the same, and touches
  // nothing.
  bool Begin();
  // Opened again when it began, because the file may be another one by then: its target from now on, and its offset.
  // Before it is dispatched. The first target stays open until the end: others may have its descriptors.
  void Adopt(std::unique_ptr<Target> target, uint64_t offset);
  // Once it is cancelled and has not begun its memory is left alone for ever, though it is done later.
  bool begun() const;
  Error Cancellation() const;
  // No further transfer is to begin: it failed, or was cancelled.
  bool stopped() const;
  // Bytes of the memory that are written when all slices are done.
  struct Edge {
    uint64_t at = 0;
    uint64_t size = 0;
  };
  void DeferEdge(const Edge& edge);
  std::vector<Edge> TakeEdges();
  // O_DIRECT was refused for one piece: the rest goes by the buffered descriptor.
  bool direct_refused() const;
  void RefuseDirect();
  void AddTransferred(uint64_t bytes);
  // The first error counts.
  void Fail(Error error);
  // How many slices SliceDone is going to be called for; before the first is handed out.
  void SetSlices(size_t count);
  // True for the last one; the caller then calls Complete.
  bool SliceDone();
  // Finishes the target, publishes the outcome, runs the callbacks.
  void Complete();

  // Marks the time in which this thread runs callbacks, where waiting would never end.
  class CallbackScope {
   public:
    CallbackScope();
    ~CallbackScope();
    static bool active();
  };

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace weightfs::client

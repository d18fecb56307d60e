// SPDX-License-Identifier: Apache-2.0
// One read or write of a Handle, from start to outcome: the future that callers wait for.
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

class Access;
class DeviceMemory;
class Layout;
struct Target;

// Thread-safe. Shared by the caller and the handle. The memory must stay valid until done() is true. Once done, an
// operation no longer needs its handle. Callbacks run on a thread of the handle that does nothing else meanwhile (see
// client/ring.h), with no lock held. They may start operations but must not wait for one.
class Operation {
 public:
  enum class Direction : unsigned char { kRead, kWrite };

  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // True when the operation has succeeded, failed or been canceled: the memory belongs to the caller again.
  WEIGHTFS_EXPORT bool done() const;
  // Set once the operation is done, if it failed or was canceled.
  WEIGHTFS_EXPORT std::optional<Error> error() const;
  WEIGHTFS_EXPORT bool cancelled() const;
  WEIGHTFS_EXPORT uint64_t size() const;
  // Number of bytes transferred so far; equal to size() after success.
  WEIGHTFS_EXPORT uint64_t transferred() const;

  // Waits until the operation is done. Returns false if `timeout` expires first, or where the wait could never end: in
  // a callback, and if WaitsForThisThread.
  WEIGHTFS_EXPORT bool Wait(std::optional<std::chrono::nanoseconds> timeout = std::nullopt) const;
  // True if the operation is not done, and waits for a SaveMany or LoadMany that a signal handler on this thread has
  // interrupted.
  WEIGHTFS_EXPORT bool WaitsForThisThread() const;
  // Requests cancellation: pieces that are not in the kernel yet are dropped. Returns true if the operation will end as
  // canceled, even if its last byte is in flight, and false if it has ended, is ending or has failed.
  WEIGHTFS_EXPORT bool Cancel();
  // Calls `callback` once the operation is done. If it is done already, calls it immediately on this thread.
  WEIGHTFS_EXPORT void OnDone(std::function<void()> callback);

  // --- Internal: the library creates and carries out operations. Nothing below is exported. ---
  struct Plan;
  explicit Operation(Plan plan);
  ~Operation();
  Direction direction() const;
  // Of an operation whose file is open.
  const Layout& layout() const;
  const Access& access() const;
  const MemoryView& memory() const;
  // Null for host memory. Valid until Complete.
  const std::shared_ptr<DeviceMemory>& device() const;
  uint64_t offset() const;
  bool stable() const;
  // Begins an operation that was held. Returns false if it was stopped before; it must be dispatched even so, and
  // accesses nothing.
  bool Begin();
  // Replaces the target and the offset of an operation that reopened its file when it began, because the file may have
  // been replaced. Must be called before the operation is dispatched. The first target stays open until the end,
  // because others may be using its descriptors.
  void Adopt(Target target, uint64_t offset);
  // True once the operation has begun. If it is canceled before that, its memory is never accessed, although it becomes
  // done only later.
  bool begun() const;
  Error Cancellation() const;
  // True if the operation failed or was canceled, so no further transfer may begin.
  bool stopped() const;
  // Bytes of the memory that are written after all slices are done.
  struct Edge {
    uint64_t at = 0;
    std::vector<std::byte> bytes;
  };
  void DeferEdge(Edge edge);
  std::vector<Edge> TakeEdges();
  // True if O_DIRECT was refused for one piece: all other pieces then use the buffered descriptor.
  bool direct_refused() const;
  void RefuseDirect();
  // Returns true if `progress` is due: the caller has Report called, on a thread that runs callbacks.
  [[nodiscard]] bool AddTransferred(uint64_t bytes);
  // Calls `progress` for all reports that are due. Returns true if the end waits for that: Complete is called again.
  [[nodiscard]] bool Report();
  // Records an error. Only the first one counts.
  void Fail(Error error);
  // Sets how often SliceDone will be called. Must be called before the first slice is dispatched.
  void SetSlices(size_t count);
  // Returns true for the last slice; the caller then has Complete called.
  bool SliceDone();
  // Finishes the target, which may block, and publishes the outcome. Returns true if RunCallbacks has to be called.
  // Does nothing while `progress` is due.
  [[nodiscard]] bool Complete();
  // True if, after the last slice, there are no edges to write and Complete makes no request that may take long.
  bool EndsAtOnce() const;
  void RunCallbacks();

  // Marks the time in which this thread runs callbacks, when waiting would never end.
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

// SPDX-License-Identifier: Apache-2.0
// A pool device: it transfers units of kBlockSize asynchronously, and Flush makes writes durable. FileDevice is the
// real one (libaio, O_DIRECT); tests/support has one that simulates power loss.
#pragma once

#include <condition_variable>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// One transfer. The caller owns the request and its memory until OnComplete runs. `offset`, `size` and the address of
// `data` must be multiples of kBlockSize, and the range must lie inside the device.
class IoRequest {
 public:
  enum class Operation : unsigned char { kRead, kWrite };

  IoRequest() = default;
  // Memory to write is only read.
  IoRequest(Operation what, ByteOffset where, std::span<const std::byte> memory)
      : operation(what), offset(where), data(const_cast<std::byte*>(memory.data())), size{memory.size()} {}

  Operation operation = Operation::kRead;
  ByteOffset offset;
  std::byte* data = nullptr;
  ByteCount size;

  // Used by the device until OnComplete: the pieces of the request that are not complete, and their first error.
  size_t pieces_left = 0;
  std::optional<ErrorCode> error = {};

  // Runs exactly once per submitted request, on a completion thread and never inside Submit (but for Perform), so the
  // caller of Submit may hold locks that OnComplete takes. Success means that every byte was transferred. OnComplete
  // must not block on other I/O of the same device. It may call Submit and destroy the request.
  virtual void OnComplete(Result<void> result) = 0;

 protected:
  ~IoRequest() = default;
};

// A transfer that one thread waits for.
class SynchronousRequest final : public IoRequest {
 public:
  using IoRequest::IoRequest;
  void OnComplete(Result<void> result) override {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    done_.notify_one();
  }
  Result<void> Wait() {  // after Submit, once
    MutexLock lock(mutex_);
    while (!result_) done_.wait(lock.native());
    return *std::move(result_);
  }

 private:
  Mutex mutex_;
  std::condition_variable done_;
  std::optional<Result<void>> result_ GUARDED_BY(mutex_);
};

// Thread-safe.
class BlockDevice {
 public:
  virtual ~BlockDevice() = default;

  virtual ByteCount size() const = 0;
  virtual std::string_view path() const = 0;

  // Starts every request. Requests in flight at the same time are not ordered. Never waits for I/O: requests that do
  // not fit in the ring are queued. Submission errors arrive through OnComplete.
  virtual void Submit(std::span<IoRequest* const> requests) = 0;

  // Same for one request that the caller waits for next: OnComplete may run inside the call. FileDevice needs no other
  // thread for it, whose wake-ups take as long as a small transfer.
  virtual void Perform(IoRequest& request);

  // The number of requests submitted and not complete.
  virtual size_t outstanding() const { return 0; }

  // Makes every write that completed before the call durable. After a failure earlier writes may be lost, and a later
  // success does not change that.
  virtual Result<void> Flush() = 0;

  // Synchronous transfers for superblocks, the log, fsck and tests, built on Submit unless the device needs no thread
  // for them. They have the same alignment rules.
  virtual Result<void> Read(ByteOffset offset, std::span<std::byte> out);
  // FileDevice does not use a completion thread for it: that may wait for a lock of the caller.
  virtual Result<void> Write(ByteOffset offset, std::span<const std::byte> in);
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// A pool device in memory that fails, delays and reorders on demand, and loses power through its journal.
#pragma once

#include <array>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "common/mutex.h"
#include "engine/block_device.h"
#include "tests/support/journal.h"

namespace weightfs {

struct FaultDeviceOptions {
  std::string path = "fault-device";
  bool reorder = false;  // requests in flight complete in an order drawn from `seed`
  uint64_t seed = 1;
};

// Thread-safe. Requests complete on one thread of the device, never inside Submit. Breaking the contract of
// BlockDevice (alignment, range, memory changed while it is written) is a bug of the caller and aborts with a message.
class FaultDevice final : public BlockDevice {
 public:
  // An empty device, all zeros.
  FaultDevice(std::shared_ptr<Journal> journal, ByteCount size, FaultDeviceOptions options = {});
  FaultDevice(std::shared_ptr<Journal> journal, BlockImage image, FaultDeviceOptions options = {});
  // Completes everything submitted, also what is held.
  ~FaultDevice() override;

  ByteCount size() const override { return size_; }
  std::string_view path() const override { return options_.path; }
  void Submit(std::span<IoRequest* const> requests) override;
  Result<void> Flush() override;

  // The `nth` operation of a kind from now on (the first is 1) fails with `code`, or it and all later ones. Transfers
  // are counted as they are submitted. A failed write changes nothing here; a crash image may hold parts of it.
  enum class Target : unsigned char { kRead, kWrite, kFlush };
  struct Failure {
    uint64_t nth = 1;
    bool and_later = false;
    ErrorCode code = ErrorCode::kIo;
  };
  void Fail(Target target, Failure failure) EXCLUDES(mutex_);
  void StopFailing() EXCLUDES(mutex_);  // also lifts the budget

  // Writes beyond this many bytes from now fail with `code`, whole requests at a time.
  void SetWriteBudget(ByteCount bytes, ErrorCode code = ErrorCode::kNoSpace) EXCLUDES(mutex_);

  // Between Hold and Release no request completes. WaitForHeld returns once `count` requests are waiting.
  void Hold() EXCLUDES(mutex_);
  void Release() EXCLUDES(mutex_);
  void WaitForHeld(size_t count) EXCLUDES(mutex_);
  // Completes one request that is held; returns when its OnComplete has.
  void CompleteOne() EXCLUDES(mutex_);

  // Flips every bit of one byte, as a decaying medium does: the device notices nothing. The block should have no
  // unflushed write, which a crash image would put on top.
  void Corrupt(ByteOffset offset) EXCLUDES(mutex_);

  // Operations submitted so far.
  struct Counts {
    uint64_t reads = 0, writes = 0, flushes = 0;
    ByteCount read, written;
  };
  Counts counts() const EXCLUDES(mutex_);

 private:
  struct Pending {
    IoRequest* request;
    size_t event = 0;             // of a write: its kWrite
    SharedBytes bytes = nullptr;  // of a write: as they were submitted
    std::optional<ErrorCode> failure = std::nullopt;
  };
  struct Trigger {
    uint64_t left = 0;  // 0: not set
    bool and_later = false;
    ErrorCode code = ErrorCode::kIo;
  };

  void CheckRequest(const IoRequest& request) const;
  std::optional<ErrorCode> NextFailureLocked(Target target) REQUIRES(mutex_);
  std::optional<ErrorCode> ChargeBudgetLocked(ByteCount bytes) REQUIRES(mutex_);
  Pending TakeLocked() REQUIRES(mutex_);
  Result<void> ExecuteLocked(const Pending& pending) REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);

  const std::shared_ptr<Journal> journal_;
  const FaultDeviceOptions options_;
  const ByteCount size_;
  const size_t index_;  // in the journal
  mutable Mutex mutex_;
  std::condition_variable changed_;
  BlockImage image_ GUARDED_BY(mutex_);
  std::deque<Pending> pending_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::array<Trigger, 3> triggers_ GUARDED_BY(mutex_);
  ByteCount budget_ GUARDED_BY(mutex_) = {std::numeric_limits<uint64_t>::max()};
  ErrorCode budget_code_ GUARDED_BY(mutex_) = ErrorCode::kNoSpace;
  Counts counts_ GUARDED_BY(mutex_);
  bool held_ GUARDED_BY(mutex_) = false;
  bool one_ GUARDED_BY(mutex_) = false;  // completes though it is held
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace weightfs

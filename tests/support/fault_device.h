// SPDX-License-Identifier: Apache-2.0
// A pool device in memory that fails, delays and reorders requests, and lies on demand, and loses power through its
// journal.
#pragma once

#include <array>
#include <deque>
#include <initializer_list>
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

// Thread-safe. Submitted requests complete on a thread of the device, never inside Submit. A caller that breaks the
// contract of BlockDevice (alignment, range, memory changed during a write) has a bug; the device aborts with a
// message.
class FaultDevice final : public BlockDevice {
 public:
  // An empty device, all zeros.
  FaultDevice(std::shared_ptr<Journal> journal, ByteCount size, FaultDeviceOptions options = {});
  FaultDevice(std::shared_ptr<Journal> journal, BlockImage image, FaultDeviceOptions options = {});
  // Completes everything submitted, including held requests.
  ~FaultDevice() override;

  ByteCount size() const override { return size_; }
  std::string_view path() const override { return options_.path; }
  void Submit(std::span<IoRequest* const> requests) override;
  // On the caller's thread if nothing is in flight, held or reordered, because a switch of threads costs more than the
  // read.
  Result<void> Read(ByteOffset offset, std::span<std::byte> out) override;
  // On the caller's thread, like FileDevice: neither held nor reordered. Has failures and counts of its own.
  Result<void> Write(ByteOffset offset, std::span<const std::byte> in) override;
  Result<void> Flush() override;

  // Makes the `nth` operation of a kind from now on (the first is 1), or it and all later ones, fail with `code`.
  // Transfers are counted when they are submitted. A failed write changes nothing here, but a crash image may contain
  // parts of it.
  enum class Target : unsigned char { kRead, kWrite, kFlush, kSynchronousWrite };
  struct Failure {
    uint64_t nth = 1;
    bool and_later = false;
    ErrorCode code = ErrorCode::kIo;
  };
  void Fail(Target target, Failure failure) EXCLUDES(mutex_);
  void StopFailing() EXCLUDES(mutex_);  // also removes the write budget, stops lying, and makes all readable
  // Makes every read of this byte fail.
  void FailReadsAt(ByteOffset offset) EXCLUDES(mutex_);

  // Makes the `nth` operation of its kind from now on (the first is 1), or it and all later ones, succeed without doing
  // what it says. Asynchronous and synchronous writes count together.
  enum class Lie : unsigned char {
    kLostWrite,         // nothing is written
    kMisdirectedWrite,  // the bytes of the write before are overwritten instead, or the next blocks
    kTornWrite,         // every second sector of 512 bytes is written
    kFlippedWrite,      // one bit is written wrong
    kStaleRead,         // returns the bytes as of the call of StartLying
    kMisdirectedRead,   // returns the blocks that follow
    kFlippedRead,       // one bit is returned wrong
    kLostFlush,         // nothing becomes durable
  };
  void StartLying(Lie lie, uint64_t nth, bool and_later = false) EXCLUDES(mutex_);
  bool has_lied() const EXCLUDES(mutex_);

  // Writes beyond this many bytes from now on fail with `code`, each request as a whole.
  void SetWriteBudget(ByteCount bytes, ErrorCode code = ErrorCode::kNoSpace) EXCLUDES(mutex_);

  // Between Hold and Release no request completes; between HoldReads and Release no read. WaitForHeld returns once
  // `count` requests are waiting.
  void Hold() EXCLUDES(mutex_);
  void HoldReads() EXCLUDES(mutex_);
  void Release() EXCLUDES(mutex_);
  void WaitForHeld(size_t count) EXCLUDES(mutex_);
  // Completes one held request, and returns after its OnComplete.
  void CompleteOne() EXCLUDES(mutex_);

  // Flips every bit of one byte, like medium decay that the device does not notice. The block should have no unflushed
  // write, because a crash image would apply that write on top.
  void Corrupt(ByteOffset offset) EXCLUDES(mutex_);

  // Numbers of operations submitted so far.
  struct Counts {
    uint64_t reads = 0, writes = 0, flushes = 0;
    ByteCount read, written;
  };
  Counts counts() const EXCLUDES(mutex_);

 private:
  // What a write does.
  struct Stored {
    ByteOffset offset = {};
    SharedBytes bytes = nullptr;  // null: nothing
    size_t event = 0;             // its kWrite event
  };
  struct Pending {
    IoRequest* request;
    SharedBytes bytes = nullptr;  // for a write: the bytes as submitted
    Stored stored = {};
    std::optional<ErrorCode> failure = std::nullopt;
    std::optional<Lie> lie = std::nullopt;  // for a read
  };
  struct Trigger {
    uint64_t left = 0;  // 0: not set
    bool and_later = false;
    ErrorCode code = ErrorCode::kIo;
  };

  void CheckRequest(const IoRequest& request) const;
  Pending StartReadLocked(IoRequest* request) REQUIRES(mutex_);
  std::optional<ErrorCode> NextFailureLocked(Target target) REQUIRES(mutex_);
  std::optional<Lie> NextLieLocked(std::initializer_list<Lie> lies) REQUIRES(mutex_);
  Stored StoreLocked(ByteOffset offset, SharedBytes bytes) REQUIRES(mutex_);
  void FinishWriteLocked(const Stored& stored, bool failed) REQUIRES(mutex_);
  void ReadLocked(ByteOffset offset, std::span<std::byte> out, std::optional<Lie> lie) REQUIRES(mutex_);
  std::optional<ErrorCode> ChargeBudgetLocked(ByteCount bytes) REQUIRES(mutex_);
  bool CanCompleteLocked(const Pending& pending) const REQUIRES(mutex_);
  std::optional<Pending> TakeLocked() REQUIRES(mutex_);
  Result<void> ExecuteLocked(const Pending& pending) REQUIRES(mutex_);
  void Run() EXCLUDES(mutex_);

  const std::shared_ptr<Journal> journal_;
  const FaultDeviceOptions options_;
  const ByteCount size_;
  const size_t index_;  // device index in the journal
  mutable Mutex mutex_;
  std::condition_variable changed_;
  BlockImage image_ GUARDED_BY(mutex_);
  std::deque<Pending> pending_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::array<Trigger, 4> triggers_ GUARDED_BY(mutex_);
  std::optional<ByteOffset> unreadable_ GUARDED_BY(mutex_);
  ByteCount budget_ GUARDED_BY(mutex_) = {std::numeric_limits<uint64_t>::max()};
  ErrorCode budget_code_ GUARDED_BY(mutex_) = ErrorCode::kNoSpace;
  Lie lie_ GUARDED_BY(mutex_) = Lie::kLostWrite;
  Trigger lying_ GUARDED_BY(mutex_);
  bool has_lied_ GUARDED_BY(mutex_) = false;
  std::optional<BlockImage> stale_ GUARDED_BY(mutex_);
  ByteOffset last_write_ GUARDED_BY(mutex_) = {};
  Counts counts_ GUARDED_BY(mutex_);
  bool held_ GUARDED_BY(mutex_) = false, reads_held_ GUARDED_BY(mutex_) = false;
  bool one_ GUARDED_BY(mutex_) = false;  // complete one request although requests are held
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread worker_;  // last member, because it uses all of the above
};

}  // namespace weightfs

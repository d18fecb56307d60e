// SPDX-License-Identifier: Apache-2.0
// A key-value store in memory that fails on demand and loses power through its journal.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "common/mutex.h"
#include "meta/kv_store.h"
#include "tests/support/journal.h"

namespace weightfs {

// Thread-safe. Iterators read snapshots and may outlive the store.
class MemoryKvStore final : public KvStore {
 public:
  explicit MemoryKvStore(std::shared_ptr<Journal> journal, KvContent content = {});

  Result<std::optional<std::string>> Get(std::string_view key) override;
  Result<void> Write(KvBatch batch) override;
  Result<void> Sync() override;
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first = {},
                                          KvScan scan = KvScan::kMany) override;
  uint64_t EstimateSize(std::string_view prefix) const override;  // exact
  Result<void> Verify(const std::function<bool(ByteCount)>& next) override EXCLUDES(state_->mutex);  // one part

  // Makes the `nth` operation of a kind from now on (the first is 1) fail with kIo. A failed Write or Sync makes the
  // store read-only permanently. A failed batch stays invisible here, but a crash image may contain it. A Write that
  // fails with kNoSpace changes nothing.
  void FailWrite(uint64_t nth, ErrorCode code = ErrorCode::kIo) EXCLUDES(state_->mutex);
  void FailSync(uint64_t nth) EXCLUDES(state_->mutex);
  void FailGet(uint64_t nth) EXCLUDES(state_->mutex);
  // While it is full, Sync returns kNoSpace.
  void Fill(bool full) EXCLUDES(state_->mutex);
  // Makes Verify find damage, or none again.
  void DamageTables(bool damaged) EXCLUDES(state_->mutex);
  // Makes the `nth` iterator created from now on end with kIo after `keys` keys.
  void FailIterator(uint64_t nth, uint64_t keys = 0) EXCLUDES(state_->mutex);

  // Runs `then`, without locks, before the next Get.
  void BeforeGet(std::function<void()> then) EXCLUDES(state_->mutex);
  // Runs `then`, without locks, at the end of the next Get, or of every Get.
  void AfterGet(std::function<void()> then, bool once = true) EXCLUDES(state_->mutex);
  // Runs `then`, without locks, at the end of every NewIterator.
  void AfterNewIterator(std::function<void()> then) EXCLUDES(state_->mutex);
  // Runs `then`, without locks of the store, before the next Write.
  void BeforeWrite(std::function<void()> then) EXCLUDES(state_->mutex);
  // Runs `then` once during the next Sync, which does not cover what it writes.
  void DuringSync(std::function<void()> then) EXCLUDES(state_->mutex);

  KvContent content() const EXCLUDES(state_->mutex);
  bool failed() const override EXCLUDES(state_->mutex);

 private:
  class Iterator;
  struct State {
    Mutex mutex;
    std::shared_ptr<KvContent> content GUARDED_BY(mutex);  // shared with iterators; copied before a change if so
  };

  // Counts an operation down. Returns true if it is the one that must fail.
  static bool Due(uint64_t& left) { return left > 0 && --left == 0; }

  const std::shared_ptr<Journal> journal_;
  const std::shared_ptr<State> state_;
  bool failed_ GUARDED_BY(state_->mutex) = false, full_ GUARDED_BY(state_->mutex) = false;
  uint64_t write_failure_ GUARDED_BY(state_->mutex) = 0;  // number of operations until one fails; 0: none fails
  ErrorCode write_error_ GUARDED_BY(state_->mutex) = ErrorCode::kIo;
  uint64_t sync_failure_ GUARDED_BY(state_->mutex) = 0;
  uint64_t get_failure_ GUARDED_BY(state_->mutex) = 0;
  bool after_get_once_ GUARDED_BY(state_->mutex) = true;
  std::function<void()> before_get_ GUARDED_BY(state_->mutex), after_get_ GUARDED_BY(state_->mutex);
  std::function<void()> after_new_iterator_ GUARDED_BY(state_->mutex);
  std::function<void()> before_write_ GUARDED_BY(state_->mutex), during_sync_ GUARDED_BY(state_->mutex);
  uint64_t iterator_failure_ GUARDED_BY(state_->mutex) = 0;
  uint64_t iterator_keys_ GUARDED_BY(state_->mutex) = 0;
  bool tables_damaged_ GUARDED_BY(state_->mutex) = false;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The catalog as its users see it: an index, whose changes are in the log on the devices.
#pragma once

#include <atomic>
#include <memory>

#include "common/mutex.h"
#include "meta/kv_store.h"
#include "store/wal/wal_format.h"

namespace weightfs::wal {

class LogWriter;

// Reads the version of an index; 0 when it has none yet. kCorrupt when it cannot be decoded.
Result<Version> ReadVersion(KvStore& index);
// Returns the batch with the version that the index has after it.
KvBatch WithVersion(KvBatch batch, Version version);

// Thread-safe. Batches are appended to the log and applied to the index in the same order. A batch that the index
// refuses may be found after a crash. A large one that the log or the index has no space for fails with kNoSpace and
// changes nothing.
class LoggedKvStore final : public KvStoreWrapper {
 public:
  LoggedKvStore(std::unique_ptr<KvStore> index, Version version)
      : KvStoreWrapper(std::move(index)), version_(version) {}

  // From now on changes go to `log`. Before, and after null, writes fail.
  void Attach(LogWriter* log) EXCLUDES(order_);
  KvStore& index() { return wrapped(); }
  Version version() EXCLUDES(order_);

  bool failed() const override;
  Result<void> Write(KvBatch batch) override EXCLUDES(order_);
  Result<void> Sync() override;
  Result<void> CheckSpace(KvChange change) override;

 private:
  // Held while a batch is applied, which waits if the index is busy. The log never takes it.
  Mutex order_;
  Version version_ GUARDED_BY(order_);
  std::atomic<LogWriter*> log_{nullptr};
  std::atomic<bool> failed_{false};
};

}  // namespace weightfs::wal

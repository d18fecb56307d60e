// SPDX-License-Identifier: Apache-2.0
// The catalog with a version and a replica: numbers every batch and passes it on.
#pragma once

#include <memory>
#include <string>

#include "common/mutex.h"
#include "meta/kv_store.h"
#include "store/replica/replica_format.h"

namespace weightfs::replica {

// Receives the entries of a catalog in order. The calls come from any thread, one at a time, and must not wait for I/O.
class EntrySink {
 public:
  virtual ~EntrySink() = default;
  virtual void Append(std::string entry, Version version) = 0;
  // The catalog has all batches up to this one on stable storage.
  virtual void NoteDurable(uint64_t sequence) = 0;
};

// Reads the version of a catalog; 0 when it has none yet. kCorrupt when it cannot be decoded.
Result<Version> ReadVersion(KvStore& catalog);
// Returns the batch with the version that the catalog has after it.
KvBatch WithVersion(KvBatch batch, Version version);

// Thread-safe. Writes are serialized, so that the entries are in the order of the catalog.
class MirroredKvStore final : public KvStoreWrapper {
 public:
  MirroredKvStore(std::unique_ptr<KvStore> catalog, Version version)
      : KvStoreWrapper(std::move(catalog)), version_(version) {}

  // Entries go to `sink` from now on. Null: to nobody; no call to the earlier sink is running then.
  void Attach(EntrySink* sink) EXCLUDES(mutex_);

  // All records, and the version that they belong to.
  struct Snapshot {
    std::unique_ptr<KvIterator> records;
    Version version;
  };
  Snapshot TakeSnapshot() EXCLUDES(mutex_);

  Result<void> Write(KvBatch batch) override EXCLUDES(mutex_);
  Result<void> Sync() override EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  Version version_ GUARDED_BY(mutex_);
  EntrySink* sink_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace weightfs::replica

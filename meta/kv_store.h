// SPDX-License-Identifier: Apache-2.0
// The ordered key-value store under the catalog. RocksDB is the real one (rocks_kv_store.h); tests/support has one
// in memory that loses power.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace weightfs {

// Changes that happen together or not at all. Not thread-safe.
class KvBatch {
 public:
  struct Change {
    enum class Kind : unsigned char { kPut, kDelete, kDeleteRange };
    Kind kind;
    std::string key;    // the first key of a range
    std::string value;  // or the key after the last of a range
  };

  void Put(std::string key, std::string value) {
    changes_.push_back({Change::Kind::kPut, std::move(key), std::move(value)});
  }
  void Delete(std::string key) { changes_.push_back({Change::Kind::kDelete, std::move(key), {}}); }
  // Removes begin <= key < end. For large files only: many range deletions slow iteration.
  void DeleteRange(std::string begin, std::string end) {
    changes_.push_back({Change::Kind::kDeleteRange, std::move(begin), std::move(end)});
  }
  bool empty() const { return changes_.empty(); }
  const std::vector<Change>& changes() const { return changes_; }
  // Appends the changes of `other`, in order.
  void Append(KvBatch other) {
    for (auto& change : other.changes_) changes_.push_back(std::move(change));
  }

 private:
  std::vector<Change> changes_;
};

// Walks keys in byte order over a snapshot taken when it was made. Not thread-safe. key() and value() are valid
// until the next move.
class KvIterator {
 public:
  virtual ~KvIterator() = default;
  virtual bool Valid() const = 0;  // false at the end and after an error
  virtual void Next() = 0;
  virtual void Seek(std::string_view key) = 0;  // to the first key >= `key` inside the prefix
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual Result<void> status() const = 0;  // check once Valid() is false: an error is not the end
};

// Thread-safe. Any failed write makes the store read-only: later writes fail with kReadOnly. Reading asserts
// Mutex::MayReadCatalog: no inode's mutex is held.
class KvStore {
 public:
  virtual ~KvStore() = default;

  // nullopt when the key is absent.
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;

  // A write or a sync has failed: nothing is written any more.
  virtual bool failed() const = 0;

  // Applies the batch: visible to reads on return, durable after the next Sync. Batches are recovered as a prefix in
  // the order of their Writes: one that survives a crash implies all earlier ones. Survives a kill of the process.
  virtual Result<void> Write(const KvBatch& batch) = 0;

  // Everything written before the call is durable on return. Concurrent calls share the work.
  virtual Result<void> Sync() = 0;

  // Positioned at the first key that begins with `prefix`; Valid() ends with the prefix.
  virtual std::unique_ptr<KvIterator> NewIterator(std::string_view prefix) = 0;

  // About how many bytes the keys that begin with `prefix` take with their values; 0 where it is unknown. Quick, and
  // good for a progress bar alone.
  virtual uint64_t EstimateSize(std::string_view prefix) const = 0;
};

}  // namespace weightfs

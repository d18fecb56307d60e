// SPDX-License-Identifier: Apache-2.0
// The ordered key-value store under the catalog. RocksDB is the real one (rocks_kv_store.h); tests/support has one in
// memory that simulates power loss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// The log has space for a batch of this size, encoded, whatever else fills the pool. So what must not fail for lack of
// space (deletions, publications) is written in such batches.
inline constexpr size_t kSmallBatch = 32 * kKiB;

// An atomic set of changes. Not thread-safe.
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
  // Removes begin <= key < end. For large files only, because many range deletions slow down iteration.
  void DeleteRange(std::string begin, std::string end) {
    changes_.push_back({Change::Kind::kDeleteRange, std::move(begin), std::move(end)});
  }
  bool empty() const { return changes_.empty(); }
  const std::vector<Change>& changes() const { return changes_; }
  // Marks the batch: it maps blocks that were written, but perhaps not flushed. Their checksums are in it. After a
  // crash, the log counts only up to the first such batch whose blocks differ from their checksums.
  void NoteUnflushedData() { unflushed_data_ = true; }
  bool has_unflushed_data() const { return unflushed_data_; }
  // Marks the batch: its changes were accepted before, when space was kept for them (SpaceManager::AddUncommitted). So
  // it is refused only if the log has none for the batch itself.
  void NoteAccepted() { accepted_ = true; }
  bool accepted() const { return accepted_; }
  // Appends the changes of `other`, in order.
  void Append(KvBatch other) {
    for (auto& change : other.changes_) changes_.push_back(std::move(change));
    unflushed_data_ = unflushed_data_ || other.unflushed_data_;
  }

 private:
  std::vector<Change> changes_;
  bool unflushed_data_ = false, accepted_ = false;
};

// What a change does to the size of the store. A store whose filesystem is almost full accepts only some of them.
enum class KvChange : unsigned char {
  kGrow,    // adds records, or makes them larger
  kUpdate,  // replaces records by others of about the same size
  kRemove,
};

// Keeps space of the filesystem of a store for a change. Destroy it after the change is written, and before the store.
using KvClaim = std::shared_ptr<void>;

// Iterates over keys in byte order in a snapshot taken at its creation. Not thread-safe. key() and value() are valid
// until the next move.
class KvIterator {
 public:
  virtual ~KvIterator() = default;
  virtual bool Valid() const = 0;  // false at the end and after an error
  virtual void Next() = 0;
  virtual void Seek(std::string_view key) = 0;  // to the first key >= `key` inside the prefix
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual Result<void> status() const = 0;  // check when Valid() is false: it may be an error instead of the end
};

// How many keys the user of an iterator reads. With kFew the iterator keeps the blocks of these keys in memory until it
// is destroyed, instead of copying each key.
enum class KvScan : unsigned char { kMany, kFew };

// Thread-safe. A failed write makes the store read-only: later writes fail with kReadOnly. Reads assert
// Mutex::MayReadCatalog, that is, the thread holds no inode's mutex.
class KvStore {
 public:
  virtual ~KvStore() = default;

  // nullopt when the key is absent.
  virtual Result<std::optional<std::string>> Get(std::string_view key) = 0;

  // True after a failed write or sync: nothing is written any more.
  virtual bool failed() const = 0;

  // Applies the batch. It is visible to reads on return, and durable after the next Sync. Recovery after a crash
  // restores a prefix of the batches in the order of the Write calls.
  virtual Result<void> Write(KvBatch batch) = 0;

  // Returns kNoSpace when the filesystem has too little space for a change of this kind, which adds at most a few MiB;
  // then do not write. It may wait a second for space to be freed, so hold no lock.
  virtual Result<void> CheckSpace(KvChange) { return {}; }
  // The same for a change that adds about so many bytes, which no other change gets meanwhile.
  virtual Result<KvClaim> ClaimSpace(ByteCount /*added*/) { return KvClaim(); }
  // The bytes until kGrow is refused; nullopt when nothing is ever refused.
  virtual std::optional<uint64_t> FreeSpace() { return std::nullopt; }

  // Makes everything durable that was written before the call. Concurrent calls share the work. kNoSpace of a store
  // that does not fail: what is not durable yet will be when the filesystem has space.
  virtual Result<void> Sync() = 0;

  // Returns an iterator at the first key that begins with `prefix` and is not less than `first`. Valid() becomes false
  // after the last such key.
  virtual std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first = {},
                                                  KvScan scan = KvScan::kMany) = 0;

  // Estimates the bytes of the keys that begin with `prefix` and of their values; 0 when unknown. Fast; precise enough
  // for a progress bar only.
  virtual uint64_t EstimateSize(std::string_view prefix) const = 0;

  // Reads everything that is stored, past all caches, and compares it with its checksums, except the log of the batches
  // since the last flush. Fills no cache. Calls `next` without locks after each part (at most about 64 MiB) with its
  // size, and returns early when that returns false. Returns kCorrupt, as a full line, for the first part that is
  // damaged or that the disk cannot read; another error if it could not be checked.
  virtual Result<void> Verify(const std::function<bool(ByteCount)>& next) = 0;
};

// Forwards every call to another store. Derive from it to change some of them.
class KvStoreWrapper : public KvStore {
 public:
  explicit KvStoreWrapper(std::unique_ptr<KvStore> wrapped) : wrapped_(std::move(wrapped)) {}

  Result<std::optional<std::string>> Get(std::string_view key) override { return wrapped_->Get(key); }
  bool failed() const override { return wrapped_->failed(); }
  Result<void> Write(KvBatch batch) override { return wrapped_->Write(std::move(batch)); }
  Result<void> CheckSpace(KvChange change) override { return wrapped_->CheckSpace(change); }
  Result<KvClaim> ClaimSpace(ByteCount added) override { return wrapped_->ClaimSpace(added); }
  std::optional<uint64_t> FreeSpace() override { return wrapped_->FreeSpace(); }
  Result<void> Sync() override { return wrapped_->Sync(); }
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first = {},
                                          KvScan scan = KvScan::kMany) override {
    return wrapped_->NewIterator(prefix, first, scan);
  }
  uint64_t EstimateSize(std::string_view prefix) const override { return wrapped_->EstimateSize(prefix); }
  Result<void> Verify(const std::function<bool(ByteCount)>& next) override { return wrapped_->Verify(next); }

 protected:
  KvStore& wrapped() { return *wrapped_; }

 private:
  const std::unique_ptr<KvStore> wrapped_;
};

}  // namespace weightfs

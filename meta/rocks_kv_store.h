// SPDX-License-Identifier: Apache-2.0
// KvStore on RocksDB. Only the sources rocks_* include RocksDB.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/units.h"
#include "meta/kv_store.h"

namespace weightfs {

// Uses no log of RocksDB: Sync writes and syncs everything as tables. Recovery restores the batches up to one of those
// before the crash. A log that an older version has left counts up to its first damage. Uses paranoid checks and one
// bounded cache. A failed write, flush or compaction makes the store read-only until it is reopened, and is logged
// once. A failed Sync is never retried. Iterators may outlive the store: they keep the database, and its lock, open.
class RocksKvStore final : public KvStore {
 public:
  struct Options {
    bool create = false;  // for format: the directory must be missing or empty, else kExists
    // For fsck and info: changes nothing in the directory and takes no lock, so a mount may be active. Shows the
    // batches that are stored at the time of Open. Write returns kReadOnly.
    bool read_only = false;
    // For a store whose changes are in a log elsewhere (store/wal): when the filesystem is full, they collect in memory
    // until it has space, and Sync returns kNoSpace soon. Otherwise a lack of space is a failure.
    bool awaits_space = false;
    // With read_only: opens a catalog although some of its tables cannot be opened. Reads that need them fail.
    bool damaged_too = false;
    ByteCount cache{32 * kMiB};         // block cache, index and filter blocks included
    ByteCount write_buffer{16 * kMiB};  // one memtable; writers wait for a flush when two are full
    // Asked before a file of the catalog is created, renamed or deleted, which fails if it returns false. Another
    // machine that has the store uses the same file names. Empty: always true.
    std::function<bool()> may_write = {};
    // Runs on a thread of RocksDB, or in Sync, before batches are stored in tables. Empty: nothing.
    std::function<void()> before_flush = {};
  };

  // Errors are full lines with the directory and RocksDB's message: kNotFound, kExists, kBusy (its lock is held),
  // kCorrupt (a file is damaged or missing), kNoSpace, kPermission (the directory or one of its entries is a link or
  // belongs to another user: common/guarded_directory.h), kIo. After an error no batch is lost; a later attempt finds
  // them all.
  //
  // Unless read_only, removes all permissions of other users from the directory and its files, and sets the umask of
  // the process to 077 for good, because RocksDB creates files at any time.
  static Result<std::unique_ptr<RocksKvStore>> Open(const std::string& directory, const Options& options);
  ~RocksKvStore() override;  // what was written since the last Sync may be lost

  Result<std::optional<std::string>> Get(std::string_view key) override;
  bool failed() const override;
  Result<void> Write(KvBatch batch) override;
  Result<void> CheckSpace(KvChange change) override;
  Result<KvClaim> ClaimSpace(ByteCount added) override;
  std::optional<uint64_t> FreeSpace() override;
  Result<void> Sync() override;
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first = {},
                                          KvScan scan = KvScan::kMany) override;
  uint64_t EstimateSize(std::string_view prefix) const override;
  Result<void> Verify(const std::function<bool(ByteCount)>& next) override;

 private:
  class Impl;
  explicit RocksKvStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs

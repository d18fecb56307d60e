// SPDX-License-Identifier: Apache-2.0
// KvStore on RocksDB. The only file that includes RocksDB is rocks_kv_store.cc.
#pragma once

#include <memory>
#include <string>

#include "common/units.h"
#include "meta/kv_store.h"

namespace weightfs {

// Point-in-time WAL recovery, paranoid checks, WALs tracked and verified in the manifest, one bounded cache.
// A failed write, sync, flush or compaction makes the store read-only until it is opened again, and is logged once; a
// failed sync is never tried again. Iterators may outlive the store: they keep the database, and its lock, open.
class RocksKvStore final : public KvStore {
 public:
  struct Options {
    bool create = false;  // format: the directory is missing or empty, else kExists
    // For fsck and info: changes nothing in the directory and takes no lock, so a mount may go on beside it. Shows the
    // log's batches as of now; Write gives kReadOnly.
    bool read_only = false;
    ByteCount cache{32 * kMiB};         // block cache, index and filter blocks included
    ByteCount write_buffer{16 * kMiB};  // one memtable; two at most
  };

  // Full-line errors naming the directory and RocksDB's own words: kNotFound, kExists, kBusy (its lock is held),
  // kCorrupt (a file is damaged or missing), kNoSpace, kPermission (an entry of the directory, or the directory itself,
  // is a link or somebody else's: common/guarded_directory.h), kIo. An error has changed nothing that matters: the next
  // attempt finds every batch.
  //
  // Unless read_only, no other user has permissions on the directory and its files afterwards, and the umask of the
  // process is 077 from here on: RocksDB makes files at any time.
  static Result<std::unique_ptr<RocksKvStore>> Open(const std::string& directory, const Options& options);
  ~RocksKvStore() override;

  Result<std::optional<std::string>> Get(std::string_view key) override;
  bool failed() const override;
  Result<void> Write(const KvBatch& batch) override;
  Result<void> Sync() override;
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix) override;
  uint64_t EstimateSize(std::string_view prefix) const override;

 private:
  class Impl;
  explicit RocksKvStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs

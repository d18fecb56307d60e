// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/meta/rocks_older_log.h"

#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <memory>

namespace weightfs {

void WriteOlderLog(const std::filesystem::path& directory, const std::vector<KvBatch>& batches) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.avoid_flush_during_shutdown = true;
  options.track_and_verify_wals_in_manifest = true;
  rocksdb::DB* opened = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open(options, directory.string(), &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  for (const KvBatch& batch : batches) {
    rocksdb::WriteBatch changes;
    for (const auto& change : batch.changes()) ASSERT_TRUE(changes.Put(change.key, change.value).ok());
    ASSERT_TRUE(db->Write(rocksdb::WriteOptions(), &changes).ok());
  }
  ASSERT_TRUE(db->Close().ok());
}

}  // namespace weightfs

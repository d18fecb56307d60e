// SPDX-License-Identifier: Apache-2.0
// What the namespace asks of the owner of file data (FileIo; tests have a fake).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "engine/extent_allocator.h"
#include "meta/kv_store.h"
#include "store/file/inode.h"

namespace weightfs {

// The records of a file's data in the catalog, read without the inode's mutex.
struct DataRecords {
  uint64_t version = 0;              // Inode::committed_version that they belong to
  uint64_t size = 0;                 // bytes, committed
  std::vector<std::string> extents;  // keys
  std::vector<DeviceRun> runs;       // that they map
};

// Thread-safe.
class DataOwner {
 public:
  virtual ~DataOwner() = default;

  // kReadOnly for good after a failed device flush or catalog write: no name may publish data any more.
  virtual Result<void> CheckWritable() const = 0;

  // Commits the data of these files as of the call (CommitLevel::kOrdered): a name that is written to the catalog after
  // it cannot survive a crash without the data. Returns the first error of a file, which counts as reported, unless it
  // is `kept` for others. Blocks; called without locks.
  virtual Result<void> CommitBeforeNaming(std::span<const InodePtr> files, bool kept = false) = 0;
  // The same for every file that nobody is replacing (O_TRUNC and not closed yet). Errors stay with their files;
  // CheckWritable tells whether the commit as a whole has failed.
  virtual void CommitSettledBeforeNaming() = 0;
  // The files whose data may differ from the catalog, or that have an error to report.
  virtual std::vector<InodePtr> UncommittedFiles() = 0;

  // For a deletion. Called without the inode's mutex.
  virtual Result<DataRecords> ReadRecords(const InodePtr& inode) = 0;
  // Appends the deletion of the file's extents and checksums to `batch`. False, and nothing is appended, when `records`
  // are out of date.
  [[nodiscard]] virtual bool DeleteRecords(const InodePtr& inode, const DataRecords& records, KvBatch* batch)
      REQUIRES(inode->mutex) = 0;
  // That batch is in the catalog, under the same hold of the mutex: drops what is in memory of the file and queues its
  // space, which returns once the batch is durable and no read or write of it is in flight.
  virtual void DropData(const InodePtr& inode, const DataRecords& records) REQUIRES(inode->mutex) = 0;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The interface of the namespace to the owner of file data (FileIo, or a fake in tests).
#pragma once

#include <optional>
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
  uint64_t version = 0;              // the version in Inode::committed that the records belong to
  uint64_t size = 0;                 // bytes, committed
  std::vector<std::string> extents;  // their keys
  std::vector<DeviceRun> runs;       // the blocks that they map
  std::optional<KvBatch> restore;    // puts back what DeleteRecords deletes
};

// Thread-safe.
class DataOwner {
 public:
  virtual ~DataOwner() = default;

  // Returns kShutdown after Store::Close; kReadOnly for a read-only store, and permanently after a failed device flush
  // or catalog write: no name may publish data any more; kNoSpace when the catalog has no space for a change of this
  // kind. Call it without locks.
  virtual Result<void> CheckWritable(KvChange change) const = 0;

  // Commits the data of these files as of the call (CommitLevel::kOrdered), so that no name written to the catalog
  // later survives a crash without the data. Returns the first error of a file, and which one in `failed`. The error
  // then counts as reported unless it is `kept` for others. Blocks; call it without locks.
  virtual Result<void> CommitBeforeNaming(std::span<const InodePtr> files, bool kept = false,
                                          InodePtr* failed = nullptr) = 0;
  // Same for those of the files, or for all files (nullptr), that are not being replaced (O_TRUNC and not closed yet).
  // Errors stay pending with their files; CheckWritable tells whether the commit as a whole failed.
  virtual void CommitSettledBeforeNaming(const std::vector<InodePtr>* files) = 0;
  // Returns the first error of these files that is still to be reported; all of them then count as reported unless
  // `kept`. Commits nothing.
  virtual Result<void> ReportErrors(std::span<const InodePtr> files, bool kept) = 0;
  // The files whose data may differ from the catalog, or that have an error to report.
  virtual std::vector<InodePtr> UncommittedFiles() = 0;

  // True while the kernel serves the file, or a mapping of it, by passthrough: it would not notice a change.
  virtual bool IsPassed(const Inode& inode) const = 0;
  // ReadCache::DropReadAhead.
  virtual void DropReadAhead(const Inode& inode) = 0;

  // Reads the records that a deletion needs. If they are to be `restorable`, reads only those of a small file without
  // uncommitted changes, with DataRecords::restore. Called without the inode's mutex.
  virtual Result<DataRecords> ReadRecords(const InodePtr& inode, bool restorable) = 0;
  // Appends the deletion of the file's extents and checksums to `batch`. Returns false, and appends nothing, when
  // `records` are out of date.
  [[nodiscard]] virtual bool DeleteRecords(const InodePtr& inode, const DataRecords& records, KvBatch* batch)
      REQUIRES(inode->mutex) = 0;
  // Call this in the same hold of the mutex, once the batch is in the catalog. Drops the file's content from memory and
  // queues its space, which is freed once the batch is durable and no read or write of it is in flight.
  virtual void DropData(const InodePtr& inode, const DataRecords& records) REQUIRES(inode->mutex) = 0;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// One change of several inodes: their new attributes and one batch for the catalog, applied together or not at all.
#pragma once

#include <vector>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/extent_map.h"
#include "store/file/inode.h"

namespace weightfs {

class DataOwner;
class InodeTable;

// Holds the mutex of each of its inodes while it lives, taken in the order of their numbers. Whoever changes more than
// one inode at once holds Namespace::mutex_ besides, so that parents and children may be locked in this order too.
// Not thread-safe. Clang's analysis cannot follow a set of locks: their state is touched inside this class only.
class InodeTransaction {
 public:
  // The same inode may be named twice; null pointers are left out.
  InodeTransaction(KvStore& catalog, const std::vector<InodePtr>& inodes) NO_THREAD_SAFETY_ANALYSIS;
  ~InodeTransaction() NO_THREAD_SAFETY_ANALYSIS;
  InodeTransaction(const InodeTransaction&) = delete;
  InodeTransaction& operator=(const InodeTransaction&) = delete;

  // The attributes as they will be; to be changed at will. The inode is one of this transaction's.
  InodeRecord& record(const InodePtr& inode) { return Find(inode).record; }
  bool deleted(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;
  // Whether an open handle or the kernel needs the inode even without links.
  bool InUse(const InodePtr& inode, const InodeTable& inodes) const NO_THREAD_SAFETY_ANALYSIS;

  // Further changes of the catalog; the records of changed inodes are added by Commit.
  KvBatch& batch() { return batch_; }

  // Makes Commit delete the inode with its attributes and data; on an error nothing of it is in the batch.
  Result<void> Delete(const InodePtr& inode, DataOwner& data) NO_THREAD_SAFETY_ANALYSIS;

  // Writes the batch, then shows the new attributes. Where the write fails, all is as before.
  Result<void> Commit() NO_THREAD_SAFETY_ANALYSIS;

  // After Commit: what stat(2) shows now.
  Attributes Stat(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Member {
    InodePtr inode;
    InodeRecord record;
    DataOwner* deletes_from = nullptr;  // of one that goes: whose its data is,
    std::vector<DeviceRun> runs;        // and what DeleteRecords gave
  };
  Member& Find(const InodePtr& inode);

  KvStore& catalog_;
  std::vector<Member> members_;  // by number
  KvBatch batch_;
};

}  // namespace weightfs

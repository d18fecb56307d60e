// SPDX-License-Identifier: Apache-2.0
// One change of several inodes: their new attributes and one batch for the catalog, applied together or not at all.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"

namespace weightfs {

class InodeTable;

// What the catalog has of an inode that is to be deleted, read without its mutex.
struct DeletionRecords {
  uint64_t changes = 0;                 // Inode::changes that they belong to
  std::vector<std::string> attributes;  // keys
  DataRecords data;                     // of a regular file
};

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

  // How often the inode was changed (Inode::changes). What was read of its attributes before is up to date where this
  // is the number from before the reading.
  uint64_t changes(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

  // Reads what Delete needs. Called without locks of inodes.
  static Result<DeletionRecords> ReadDeletion(KvStore& catalog, const InodePtr& inode, DataOwner& data);
  // Makes Commit delete the inode with its attributes and data. False, and nothing of it is in the batch, when
  // `records` are out of date: read them again in a new transaction.
  [[nodiscard]] bool Delete(const InodePtr& inode, DataOwner& data, DeletionRecords records) NO_THREAD_SAFETY_ANALYSIS;

  // Writes the batch, then shows the new attributes. Where the write fails, all is as before.
  Result<void> Commit() NO_THREAD_SAFETY_ANALYSIS;

  // After Commit: what stat(2) shows now.
  Attributes Stat(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Member {
    InodePtr inode;
    InodeRecord record;
    DataOwner* deletes_from = nullptr;  // of an inode that is deleted: the owner of its data,
    DataRecords data;                   // and what the catalog has of that
  };
  Member& Find(const InodePtr& inode);

  KvStore& catalog_;
  std::vector<Member> members_;  // by number
  KvBatch batch_;
};

}  // namespace weightfs

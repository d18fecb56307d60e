// SPDX-License-Identifier: Apache-2.0
// One atomic change of several inodes: their new attributes and one batch for the catalog.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"

namespace weightfs {

// The catalog records of an inode to be deleted, read without its mutex.
struct DeletionRecords {
  uint64_t changes = 0;                 // the Inode::changes that the records belong to
  std::vector<std::string> attributes;  // keys
  DataRecords data;                     // of a regular file
};

// Holds the mutexes of all its inodes during its lifetime, locked in the order of their numbers. A caller that changes
// several also holds Namespace::mutex_, so that names do not change before the locks; of immutable inodes they cannot.
// Not thread-safe. Clang's analysis cannot follow a set of locks, so only this class touches the state that they guard.
class InodeTransaction {
 public:
  // The same inode may appear twice; null pointers are ignored.
  InodeTransaction(KvStore& catalog, const std::vector<InodePtr>& inodes) NO_THREAD_SAFETY_ANALYSIS;
  ~InodeTransaction() NO_THREAD_SAFETY_ANALYSIS;
  InodeTransaction(const InodeTransaction&) = delete;
  InodeTransaction& operator=(const InodeTransaction&) = delete;

  // The new attributes, which the caller may change. The inode must belong to this transaction.
  InodeRecord& record(const InodePtr& inode) { return Find(inode).record; }
  bool deleted(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;
  bool is_open(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

  // Further changes of the catalog. Commit adds the records of the changed inodes.
  KvBatch& batch() { return batch_; }

  // Adds or removes an extended attribute. `old` is its value in the catalog before, nullopt if there was none.
  void PutAttribute(const InodePtr& inode, std::string_view name, std::string value,
                    const std::optional<std::string>& old);
  void DeleteAttribute(const InodePtr& inode, std::string_view name, const std::optional<std::string>& old);

  // The number of changes of the inode (Inode::changes). Data read earlier is still valid if this number is unchanged
  // since then.
  uint64_t changes(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

  // Reads the records that Delete needs, and those that Restore needs if they are to be `restorable`
  // (DataOwner::ReadRecords). Called without inode locks.
  static Result<DeletionRecords> ReadDeletion(KvStore& catalog, const InodePtr& inode, DataOwner& data,
                                              bool restorable = false);
  // Makes Commit delete the inode with its attributes and data. Data with DataRecords::restore stays in memory and on
  // the devices; drop it later. Returns false, and adds nothing to the batch, when `records` are out of date; then read
  // them again in a new transaction. Keeps a pointer to `records`.
  [[nodiscard]] bool Delete(const InodePtr& inode, DataOwner& data, const DeletionRecords& records)
      NO_THREAD_SAFETY_ANALYSIS;
  // Makes Commit put back the records of a deleted regular file.
  void Restore(const InodePtr& inode, KvBatch records);

  // Writes the batch, then makes the new attributes visible. Returns kPermission when an inode of the transaction is
  // immutable (published). On an error nothing changes.
  Result<void> Commit() NO_THREAD_SAFETY_ANALYSIS;
  // Same for the transactions that publish and unpublish.
  Result<void> CommitPublication() NO_THREAD_SAFETY_ANALYSIS;

  // Returns the new attributes for stat(2). Call it after Commit.
  Attributes Stat(const InodePtr& inode) const NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Member {
    InodePtr inode;
    InodeRecord record;
    DataOwner* deletes_from = nullptr;  // the owner of the data of an inode to be deleted
    const DataRecords* data = nullptr;  // the catalog records of that data
    bool restored = false;
    std::optional<AttributeSizes> attribute_sizes;  // the new Inode::attribute_sizes
  };
  Member& Find(const InodePtr& inode);

  KvStore& catalog_;
  std::vector<Member> members_;  // by number
  KvBatch batch_;
};

}  // namespace weightfs

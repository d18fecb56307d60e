// SPDX-License-Identifier: Apache-2.0
// Names, links and attributes: the operations of a filesystem that move no file data.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"
#include "store/names/acl.h"
#include "store/names/inode_table.h"
#include "store/names/inode_transaction.h"
#include "store/types.h"

namespace weightfs {

// Thread-safe. Changes are serialized by one mutex and are visible, and ordered in the catalog's log, when a call
// returns; they are durable after the next KvStore::Sync. Look-ups take no common lock. Permissions are the kernel's
// (default_permissions) where nothing else is said; ACLs are kept in step with the mode here (fs/ sets FUSE_POSIX_ACL).
// Error codes are those POSIX gives the system call of the same name.
class Namespace {
 public:
  Namespace(KvStore& catalog, InodeTable& inodes, DataOwner& data) : catalog_(catalog), inodes_(inodes), data_(data) {}

  // Writes the root directory and the store's facts into an empty catalog. For format.
  static Result<void> Initialize(KvStore& catalog, uint32_t root_uid, uint32_t root_gid);

  // Reads the inode-number bound and deletes what orphans are left. Once, before any other call; `read_only` leaves
  // the orphans.
  Result<void> Recover(bool read_only);

  Result<Attributes> Lookup(InodeId parent, std::string_view name);
  Result<Attributes> GetAttributes(InodeId ino);

  // All members but `size` (FileIo truncates first). A chmod keeps a POSIX ACL's mask in step.
  Result<Attributes> SetAttributes(InodeId ino, const AttributeChange& change);

  // Any type of inode. A set-group-id parent passes its group (and the bit, to directories) on; a default ACL of the
  // parent is inherited.
  Result<Attributes> Create(InodeId parent, std::string_view name, const CreateRequest& request);
  // An inode without a name (O_TMPFILE): an orphan until Link.
  Result<Attributes> CreateUnnamed(InodeId parent, const CreateRequest& request);

  Result<Attributes> Link(InodeId ino, InodeId new_parent, std::string_view new_name);
  Result<void> Unlink(InodeId parent, std::string_view name);
  Result<void> RemoveDirectory(InodeId parent, std::string_view name);
  Result<void> Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name,
                      RenameMode mode);

  // Makes regular files in the directory, each with its content: their blocks are the runs, in order, which hold it,
  // and are on stable storage. Each replaces the inode that has its name, as a rename would, unless that is a
  // directory: one batch, so all of them or none. For somebody whose permissions nobody has looked at yet. The inodes
  // that had the names. On an error nothing has changed, and `failed` is the index of the file at fault, or their
  // number.
  Result<std::vector<InodeId>> Publish(InodeId directory, const Credentials& who, uint32_t mode,
                                       std::span<const DirectFile> files, std::span<const DeviceRun> runs,
                                       std::span<const uint32_t> checksums, size_t* failed);

  // kAccess where the mode, or the access control list, does not let `who` do `wanted`, a sum of these.
  static constexpr uint16_t kMayRead = 4, kMayWrite = 2, kMaySearch = 1;
  Result<void> CheckAccess(const InodePtr& inode, const Credentials& who, uint16_t wanted);

  Result<std::string> ReadLink(InodeId ino);

  // Every entry, "." and ".." first, as of now.
  Result<std::vector<DirectoryEntry>> ReadDirectory(InodeId ino);

  Result<std::string> GetExtendedAttribute(InodeId ino, std::string_view name);
  // An access control list that somebody sets who is neither in the file's group nor has CAP_FSETID takes the
  // set-group-id bit away: `keeps_set_group_id` is false for him.
  Result<void> SetExtendedAttribute(InodeId ino, std::string_view name, std::string_view value, AttributeWrite mode,
                                    bool keeps_set_group_id = true);
  Result<void> RemoveExtendedAttribute(InodeId ino, std::string_view name);
  Result<std::vector<std::string>> ListExtendedAttributes(InodeId ino);
  // Takes the file capabilities away, as any write does, and with `set_ids` set-user-id, and set-group-id of a file its
  // group may execute, as a write by somebody without the right to them does. True when the mode has changed.
  Result<bool> ClearPrivileges(const InodePtr& inode, bool set_ids);

  // One more open handle / one less; the last one of an inode without links and without lookups deletes it.
  Result<InodePtr> Open(InodeId ino);
  void Close(const InodePtr& inode);

  // The kernel forgot `count` lookups. Every Attributes that Lookup, Create and Link return to the kernel counts one
  // (the caller adds them with InodeTable::AddLookups before it replies).
  void Forget(InodeId ino, uint64_t count);
  // The blocks of files without links that nobody has open: each file is deleted when the kernel forgets it, which it
  // does some time after the unlink. Programs take its space for free already.
  BlockCount LeavingBlocks() EXCLUDES(mutex_);
  // Whether any deleted file still has its space: it is open, or not forgotten.
  bool HasOrphans() EXCLUDES(mutex_);

  uint64_t inode_count() const { return inode_count_.load(); }  // orphans included

 private:
  // A name with what it leads to; without an entry `inode` is null.
  struct EntryLocation {
    InodePtr directory;
    std::string_view name;
    InodePtr inode;
    uint32_t type = 0;  // S_IFMT bits of the inode
  };

  // Logs damage once, as "inode N: TEXT", and gives kCorrupt.
  static Error Damaged(InodeId ino, std::string_view text);
  Result<void> CheckWritable() const;

  Result<InodePtr> GetDirectory(InodeId ino);
  Result<std::optional<EntryRecord>> FindEntry(InodeId parent, std::string_view name);
  Result<EntryLocation> FindEntryLocation(InodeId parent, std::string_view name) REQUIRES(mutex_);
  Result<void> CheckEmpty(InodeId directory) REQUIRES(mutex_);
  // kInvalid when `directory` is `inode` or lies below it: it cannot move there.
  Result<void> CheckNotBelow(const InodePtr& inode, InodePtr directory) REQUIRES(mutex_);

  Result<Attributes> CreateLocked(const InodePtr& parent, std::string_view name, const CreateRequest& request)
      REQUIRES(mutex_);
  // A new inode as it is asked for, before it inherits anything.
  static Result<InodeRecord> NewRecord(const CreateRequest& request);
  // The default access control list of a directory; empty where it has none.
  Result<Acl> ReadDefaultAcl(const InodePtr& directory);
  // Gives a new inode what it inherits of the default list `acl`, which replaces the umask: POSIX.1e 23.3.4.
  static void InheritAcl(Acl acl, InodeId ino, uint32_t umask, InodeRecord* record, KvBatch* batch);
  // The first of `count` numbers never used before; what the catalog must know of them goes into `batch`. They are used
  // up when next_ino_ has moved behind them, and ino_bound_ to `bound`.
  InodeId NextInodeLocked(uint64_t count, KvBatch* batch, uint64_t* bound) REQUIRES(mutex_);

  // Numbers never used before, the caller's alone from here on, whatever becomes of them.
  Result<InodeId> TakeInodesLocked(uint64_t count) REQUIRES(mutex_);

  struct Publication;
  Result<InodePtr> FindReplacedInode(const Publication& work, std::string_view name);
  Result<void> FindReplaced(Publication& work, size_t* failed);
  Result<void> UpdateReplacedLocked(Publication& work, size_t* failed) REQUIRES(mutex_);
  Result<void> BuildFiles(Publication& work, uint32_t mode, std::span<const DeviceRun> runs,
                          std::span<const uint32_t> checksums, InodeId first);
  Result<void> PublishLocked(Publication& work, std::vector<InodePtr>* orphans) REQUIRES(mutex_);

  Result<void> RemoveLocked(const EntryLocation& location) REQUIRES(mutex_);
  Result<void> TryRemoveLocked(const EntryLocation& location) REQUIRES(mutex_);
  Result<InodeId> CommitData(InodeId parent, std::string_view name);
  Result<void> CommitTree(InodeId directory);
  Result<std::optional<std::vector<InodePtr>>> FilesBelow(InodeId directory, const std::vector<InodePtr>& candidates);
  Result<void> MoveLocked(const EntryLocation& from, const EntryLocation& to) REQUIRES(mutex_);
  Result<void> TryMoveLocked(const EntryLocation& from, const EntryLocation& to) REQUIRES(mutex_);
  Result<void> ExchangeLocked(const EntryLocation& from, const EntryLocation& to) REQUIRES(mutex_);
  Result<void> CheckMove(const EntryLocation& from, const EntryLocation& to) REQUIRES(mutex_);

  // What the catalog has of an inode that is about to lose its last link, null for none; nullopt where it is not going
  // to be deleted at once.
  Result<std::optional<DeletionRecords>> ReadReplaced(const InodePtr& replaced) REQUIRES(mutex_);
  // Commits a transaction in which `replaced` (which may be null) may have lost its last link: it becomes an orphan
  // while it is in use, and is deleted otherwise. `records` are from ReadReplaced; kAgain, and nothing has happened,
  // when they are out of date.
  Result<void> CommitLocked(InodeTransaction& transaction, const InodePtr& replaced,
                            std::optional<DeletionRecords> records, Timestamp now) REQUIRES(mutex_);
  // Deletes the orphan unless it is in use or has got a link again.
  void DeleteOrphan(const InodePtr& inode) EXCLUDES(mutex_);
  // The same for many, a few at a time.
  void DeleteOrphans(std::span<const InodePtr> inodes) EXCLUDES(mutex_);
  // Deletes those that can be deleted; the error of the first that cannot.
  Result<void> DeleteOrphansLocked(const std::vector<InodePtr>& inodes) REQUIRES(mutex_);
  Result<void> TryDeleteOrphansLocked(const std::vector<InodePtr>& inodes) REQUIRES(mutex_);
  Result<void> RecoverOrphan(InodeId ino) EXCLUDES(mutex_);

  Result<std::string> ReadAttribute(InodeId ino, std::string_view name);
  // An extended attribute as the catalog has it, and the Inode::changes that it belongs to.
  struct StoredAttribute {
    uint64_t changes = 0;
    std::optional<std::string> value;
  };
  Result<StoredAttribute> ReadStored(const InodePtr& inode, std::string_view name);
  Result<void> TrySetAttribute(const InodePtr& inode, std::string_view name, std::string_view value,
                               AttributeWrite mode);
  Result<void> TryRemoveAttribute(const InodePtr& inode, std::string_view name);
  Result<void> SetAcl(const InodePtr& inode, std::string_view name, std::string_view value, bool keeps_set_group_id);
  Result<void> CheckAttributeList(InodeId ino, std::string_view name);

  KvStore& catalog_;
  InodeTable& inodes_;
  DataOwner& data_;
  bool read_only_ = false;  // set by Recover, before any other call
  Mutex mutex_;
  uint64_t next_ino_ GUARDED_BY(mutex_) = 0;
  uint64_t ino_bound_ GUARDED_BY(mutex_) = 0;
  // Inodes without links that are in use: they stay in memory, so that the last Close or Forget finds them here.
  std::unordered_map<InodeId, InodePtr> orphans_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> inode_count_{0};
};

}  // namespace weightfs

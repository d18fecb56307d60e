// SPDX-License-Identifier: Apache-2.0
// Names, links and attributes: the filesystem operations that do not touch file data.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <set>
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

// Thread-safe. One mutex serializes changes. A change is visible, and ordered in the catalog's log, when its call
// returns; it is durable after the next KvStore::Sync. Lookups take no common lock. The kernel checks permissions
// (default_permissions) unless stated otherwise; ACLs are kept consistent with the mode here (fs/ sets FUSE_POSIX_ACL).
// Errors are those that POSIX defines for the system call of the same name.
class Namespace {
 public:
  Namespace(KvStore& catalog, InodeTable& inodes, DataOwner& data) : catalog_(catalog), inodes_(inodes), data_(data) {}

  // Writes the root directory and the store's facts to an empty catalog. Used by format.
  static Result<void> Initialize(KvStore& catalog, uint32_t root_uid, uint32_t root_gid);

  // Reads the inode number bound, deletes leftover orphans and reverts interrupted publications. `read_only` keeps
  // both, and accepts a catalog whose facts are damaged. Call it once, before any other call.
  Result<void> Recover(bool read_only);

  Result<Attributes> Lookup(InodeId parent, std::string_view name);
  Result<Attributes> GetAttributes(InodeId ino);
  // Returns the inode, or kStale. One that was unlinked, but that the kernel has not forgotten, gets its records back, as
  // an orphan. Call this before an operation that opens or changes an inode without its name; an unlink in between
  // deletes it again, and the operation then finds Inode::deleted.
  Result<InodePtr> Get(InodeId ino) EXCLUDES(mutex_);

  // Sets all members except `size` (call FileIo::Truncate first). A chmod also updates the mask of a POSIX ACL.
  Result<Attributes> SetAttributes(InodeId ino, const AttributeChange& change);

  // Creates any type of inode. A set-group-id parent passes on its group, and to directories the bit as well. A default
  // ACL of the parent is inherited.
  Result<Attributes> Create(InodeId parent, std::string_view name, const CreateRequest& request);
  // Creates an inode without a name (O_TMPFILE), an orphan until Link.
  Result<Attributes> CreateUnnamed(InodeId parent, const CreateRequest& request);

  Result<Attributes> Link(InodeId ino, InodeId new_parent, std::string_view new_name);
  Result<void> Unlink(InodeId parent, std::string_view name);
  Result<void> RemoveDirectory(InodeId parent, std::string_view name);
  Result<void> Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name,
                      RenameMode mode);

  // Creates regular files in the directory with content that is already on stable storage: their blocks are the runs,
  // in order. Each file replaces the inode of its name, as a rename would, unless that is a directory. One batch makes
  // this atomic for all files. Checks the permissions of `who`, because nobody has checked them yet. Returns the
  // replaced inodes. On an error nothing has changed, and `failed` is the index of the file at fault, or the number of
  // files.
  Result<std::vector<InodeId>> CreateMany(InodeId directory, const Credentials& who, const NewFileMode& mode,
                                          std::span<const DirectFile> files, std::span<const DeviceRun> runs,
                                          std::span<const uint32_t> checksums, size_t* failed);

  // Returns kAccess when the mode or the ACL denies `who` the access `wanted`, a sum of these.
  static constexpr uint16_t kMayRead = 4, kMayWrite = 2, kMaySearch = 1;
  Result<void> CheckAccess(const InodePtr& inode, const Credentials& who, uint16_t wanted);

  Result<std::string> ReadLink(InodeId ino);

  // Calls `visit` for the entries after the name `after` (empty: for all) in the byte order of their names, until it
  // returns false. "." and ".." are not among them. Reads the catalog as of the call, with an iterator that keeps what
  // it has read in memory: visit part of a large directory per call. `visit` must be short and must not use the store.
  Result<void> ListEntries(InodeId directory, std::string_view after,
                           const std::function<bool(const DirectoryEntry&)>& visit);

  Result<std::string> GetExtendedAttribute(InodeId ino, std::string_view name);
  // Returns kTooLarge for a value, and kNoSpace for an inode whose attributes would exceed their limits
  // (store/types.h). ACLs and the attributes of every namespace count. `keeps_set_group_id` is false for a caller who
  // is neither in the file's group nor has CAP_FSETID. Setting an ACL then clears the set-group-id bit.
  Result<void> SetExtendedAttribute(InodeId ino, std::string_view name, std::string_view value, AttributeWrite mode,
                                    bool keeps_set_group_id = true);
  Result<void> RemoveExtendedAttribute(InodeId ino, std::string_view name);
  Result<std::vector<std::string>> ListExtendedAttributes(InodeId ino);
  // Removes the file capabilities, as any write does. With `set_ids`, also clears set-user-id, and set-group-id on a
  // file that its group may execute, as a write by an unprivileged user does. Returns true when the mode has changed.
  Result<bool> ClearPrivileges(const InodePtr& inode, bool set_ids);

  // Makes the directory and everything below it immutable: every change then fails with kPermission. The content of the
  // files is committed before. One batch makes the publication visible, after those that set the flags of the inodes:
  // after a crash all of it is published or nothing. It is durable after the next KvStore::Sync. `version` is at
  // most kMaximumVersion; without one the publication gets the time (UTC) as the number YYYYMMDDhhmmss, or the next
  // number that is greater than all such versions of the store. A directory that is published already keeps its
  // publication, which is returned. On an error nothing has changed. Errors:
  //   kAgain        a file is open for writing, perhaps because its last close has not arrived yet, or another call is
  //                 publishing an inode: call this again soon. The call does not wait; it fails after the close_wait of
  //                 its PublishCall.
  //   kInvalid      the root directory, or an impossible version
  //   kPermission   an inode belongs to another user, and `who` lacks CAP_FOWNER
  //   ETXTBSY       a file is open for writing
  //   kBusy         an inode is published, or being published or unpublished, as a part of another publication
  //   kExists       the directory is published with another version
  //   kTooManyLinks a file has another name outside the directory, and would be immutable there, too
  //   kTooLarge     more than kMaximumTree inodes
  //   kCorrupt      the catalog is damaged: an entry, or a directory that lies below itself
  class PublishCall;
  Result<PublicationRecord> PublishTree(PublishCall* call);
  // Reverts PublishTree. Returns kNoAttribute for a directory that is not published. `failed` is the path of the inode
  // at fault, relative to the directory (empty: the directory). On an error nothing has changed, except when the
  // catalog fails between the batches: then nothing is published, and the next mount makes the rest mutable.
  Result<void> UnpublishTree(InodeId directory, const Credentials& who, std::string* failed);
  // Returns kNoAttribute for a directory that PublishTree was not called for.
  Result<PublicationRecord> GetPublication(InodeId directory);
  static constexpr size_t kMaximumTree = 131'072;

  // Adds or removes an open handle, which may write if `writes`: kPermission for an immutable inode. Closing the last
  // one deletes an inode that has no links and no lookups, or passes it to the callback of OnOrphan.
  Result<InodePtr> Open(InodeId ino, bool writes = false);
  void Close(const InodePtr& inode, bool writes = false);

  // The kernel forgot `count` lookups. Each Attributes that Lookup, Create or Link returns to the kernel counts as one;
  // the caller adds it with InodeTable::AddLookups before it replies.
  void Forget(InodeId ino, uint64_t count);
  // From now on, Close and Forget call `unused` for an unlinked inode that may be unused, instead of DeleteOrphan. The
  // callback has DeleteOrphan called soon, on any thread. Set it, and reset it with null, only while the namespace is
  // not in use.
  void OnOrphan(std::function<void(const InodePtr&)> unused) { unused_ = std::move(unused); }
  // Deletes the inode if it is unlinked and not in use. For a large file this takes long, but it does not delay other
  // operations.
  void DeleteOrphan(const InodePtr& inode) EXCLUDES(mutex_);
  // Same for many, a few at a time.
  void DeleteOrphans(std::span<const InodePtr> inodes) EXCLUDES(mutex_);
  // True while an unlinked inode still holds blocks, because it is open or not forgotten.
  bool HasOrphans() EXCLUDES(mutex_);

  // Stores the number of inodes, which the next mount then need not count. Call it when nothing changes any more.
  Result<void> StoreCount() EXCLUDES(mutex_);

  uint64_t inode_count() const { return inode_count_.load(); }  // orphans included

 private:
  // A name and its inode; `inode` is null when there is no entry.
  struct EntryLocation {
    InodePtr directory;
    std::string_view name;
    InodePtr inode;
    uint32_t type = 0;  // S_IFMT bits of the inode
  };

  // Logs damage as "inode N: TEXT" and returns kCorrupt.
  static Error Damaged(InodeId ino, std::string_view text);

  Result<InodePtr> GetDirectory(InodeId ino);
  Result<std::optional<EntryRecord>> FindEntry(InodeId parent, std::string_view name);
  Result<EntryLocation> FindEntryLocation(InodeId parent, std::string_view name) REQUIRES(mutex_);
  // What a look at a directory without locks has found. It is current while the directory has as many changes.
  struct EmptinessCheck {
    InodePtr directory;
    uint64_t changes = 0;
    bool empty = false;
  };
  // Skips what was deleted from the directory recently, which takes long after many deletions, so it takes no lock.
  Result<EmptinessCheck> CheckEmpty(const InodePtr& directory) EXCLUDES(mutex_);
  // Returns kNotEmpty, or kAgain when `check` is not of the directory or out of date.
  static Result<void> RequireEmpty(const InodePtr& directory, const EmptinessCheck& check);
  Result<void> TryRemoveDirectory(InodeId parent, std::string_view name, EmptinessCheck* check) EXCLUDES(mutex_);
  // That a directory does not move below itself, found without the mutex: the way to the root may be long.
  struct AncestryCheck {
    InodePtr moved, target;
    uint64_t moves = 0;  // directory_moves_ before the search
    Result<void> result;
  };
  // Returns kInvalid when `directory` is `inode` or lies below it, so that it cannot move there, and kAgain after `most`
  // steps.
  Result<void> CheckNotBelow(const InodePtr& inode, InodePtr directory, uint64_t most);

  Result<Attributes> CreateLocked(const InodePtr& parent, std::string_view name, const CreateRequest& request)
      REQUIRES(mutex_);
  // A new inode as requested, before it inherits anything.
  static Result<InodeRecord> NewRecord(const CreateRequest& request);
  // The default ACL of a directory; empty when it has none.
  Result<Acl> ReadDefaultAcl(const InodePtr& directory);
  // Applies the default ACL `acl` of the parent, which replaces the umask, to a new inode: POSIX.1e 23.3.4.
  static void InheritAcl(Acl acl, InodeId ino, uint32_t umask, InodeRecord* record, KvBatch* batch);
  // Returns the first of `count` unused inode numbers and adds the catalog's new bound to `batch`. The caller then
  // advances next_ino_ past them and sets ino_bound_ to `bound`.
  InodeId NextInodeLocked(uint64_t count, KvBatch* batch, uint64_t* bound) REQUIRES(mutex_);

  // Takes unused numbers for the caller. They are never used again, even if the operation fails.
  Result<InodeId> TakeInodesLocked(uint64_t count) REQUIRES(mutex_);

  struct ManyFiles;
  Result<InodePtr> FindReplacedInode(const ManyFiles& work, std::string_view name);
  Result<void> FindReplaced(ManyFiles& work, size_t* failed);
  Result<void> UpdateReplacedLocked(ManyFiles& work, size_t* failed) REQUIRES(mutex_);
  Result<void> BuildFiles(ManyFiles& work, const NewFileMode& mode, std::span<const DeviceRun> runs,
                          std::span<const uint32_t> checksums, InodeId first);
  Result<void> CreateManyLocked(ManyFiles& work, std::vector<InodePtr>* orphans) REQUIRES(mutex_);

  class Tree;
  Result<PublicationRecord> TryPublish(Tree& tree, std::optional<uint64_t> version) EXCLUDES(mutex_);
  Result<PublicationRecord> AddPublication(const Tree& tree, std::optional<uint64_t> version) EXCLUDES(mutex_);
  // Sets or clears kInodePublished of the tree, which must be immutable in memory until then, in batches that delay
  // others little. From the first batch until the last one that clears, the catalog has the directory's
  // kPublishingFact.
  Result<void> SetPublished(const Tree& tree, bool published);
  // Whether the directory's kPublishingFact is true.
  Result<bool> IsInterrupted(InodeId ino);
  // Makes mutable what an interrupted PublishTree or UnpublishTree has left immutable, and removes the fact.
  Result<void> RecoverPublication(InodeId ino) EXCLUDES(mutex_);
  Result<uint64_t> NextVersionLocked() REQUIRES(mutex_);
  Result<Timestamp> NextPublicationTimeLocked(KvBatch* batch) REQUIRES(mutex_);

  Result<void> RemoveLocked(const EntryLocation& location) REQUIRES(mutex_);
  Result<void> TryRemoveLocked(const EntryLocation& location) REQUIRES(mutex_);
  Result<InodeId> CommitData(InodeId parent, std::string_view name);
  Result<void> CommitTree(InodeId directory);
  Result<void> CheckLinkedFiles(InodeId directory, std::string_view target, const std::vector<InodePtr>& failed);
  Result<bool> FilesBelow(InodeId directory, const std::vector<InodePtr>& candidates, size_t most_entries,
                          std::vector<InodePtr>* found);
  // Follows a path from a directory, and symbolic links in it; nullopt when it does not lead to an inode.
  std::optional<EntryRecord> FollowPath(InodeId directory, std::string_view path, unsigned* links);
  Result<void> MoveLocked(const EntryLocation& from, const EntryLocation& to, const EmptinessCheck& target,
                          std::span<const AncestryCheck> ancestries) REQUIRES(mutex_);
  Result<void> TryMoveLocked(const EntryLocation& from, const EntryLocation& to) REQUIRES(mutex_);
  Result<void> ExchangeLocked(const EntryLocation& from, const EntryLocation& to,
                              std::span<const AncestryCheck> ancestries) REQUIRES(mutex_);
  Result<void> CheckMove(const EntryLocation& from, const EntryLocation& to,
                         std::span<const AncestryCheck> ancestries) REQUIRES(mutex_);

  // Reads the catalog records of an inode that is about to lose its last link. Returns nullopt when `replaced` is null
  // or will become an orphan. They are restorable if the kernel knows the inode.
  Result<std::optional<DeletionRecords>> ReadReplaced(const InodePtr& replaced) REQUIRES(mutex_);
  // Commits a transaction in which `replaced` (may be null) may have lost its last link. The inode becomes an orphan if
  // it is open, or the kernel knows it and it cannot be restored. Otherwise it is deleted. `records` are from
  // ReadReplaced. Returns kAgain, with no effect, when they are out of date.
  Result<void> CommitLocked(InodeTransaction& transaction, const InodePtr& replaced,
                            std::optional<DeletionRecords> records, Timestamp now) REQUIRES(mutex_);
  // Commits a transaction that adds so many inodes, or removes them.
  Result<void> CommitCountLocked(InodeTransaction& transaction, int64_t added) REQUIRES(mutex_);
  void OrphanUnused(const InodePtr& inode) EXCLUDES(mutex_);
  // Drops the data of those inodes that are in kept_, unless the kernel knows them. Returns the others.
  std::vector<InodePtr> DropKept(const std::set<InodePtr>& inodes) EXCLUDES(mutex_);
  // Deletes those orphans that can be deleted, in one batch. Returns the error of the first one that cannot. The second
  // function returns kAgain when an inode has changed since its records were read.
  Result<void> DeleteGroup(std::span<const InodePtr> inodes) EXCLUDES(mutex_);
  using OrphanRecords = std::vector<std::pair<InodePtr, Result<DeletionRecords>>>;
  Result<void> DeleteGroupLocked(OrphanRecords group) REQUIRES(mutex_);
  Result<void> RecoverOrphan(InodeId ino) EXCLUDES(mutex_);

  Result<std::string> ReadAttribute(InodeId ino, std::string_view name);
  // The catalog's value of an extended attribute, and the Inode::changes that it belongs to.
  struct StoredAttribute {
    uint64_t changes = 0;
    std::optional<std::string> value;
  };
  Result<StoredAttribute> ReadStored(const InodePtr& inode, std::string_view name);
  // Without a value, removes the attribute.
  Result<void> TrySetAttribute(InodeId ino, std::string_view name, std::optional<std::string_view> value,
                               AttributeWrite mode);
  Result<void> TrySetAcl(InodeId ino, std::string_view name, const Acl& acl, bool keeps_set_group_id);
  // Returns Inode::attribute_sizes, read from the catalog if they are not known; kAgain when `changes` is out of date.
  Result<AttributeSizes> ReadAttributeSizes(const InodePtr& inode, uint64_t changes);
  // Returns kNoSpace when the inode's attributes exceed their limits with a value of `size` bytes in place of `stored`.
  Result<void> CheckAttributeSpace(const InodePtr& inode, std::string_view name, const StoredAttribute& stored,
                                   size_t size);

  KvStore& catalog_;
  InodeTable& inodes_;
  DataOwner& data_;
  bool read_only_ = false;  // set by Recover, before any other call
  std::function<void(const InodePtr&)> unused_;
  Mutex mutex_;
  uint64_t next_ino_ GUARDED_BY(mutex_) = 0;
  uint64_t ino_bound_ GUARDED_BY(mutex_) = 0;
  // Unlinked inodes in use. They stay in memory so that the last Close or Forget finds them here.
  std::unordered_map<InodeId, InodePtr> orphans_ GUARDED_BY(mutex_);
  // Unlinked inodes that are not open and have no records, until the kernel forgets them. A program with an O_PATH
  // descriptor may open one again (Get).
  struct Kept {
    InodePtr inode;
    DataRecords data;
  };
  std::unordered_map<InodeId, Kept> kept_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> inode_count_{0};
  bool count_stored_ GUARDED_BY(mutex_) = false;  // the catalog has the fact kInodeCountFact
  uint64_t directory_moves_ GUARDED_BY(mutex_) = 0;  // changes of the parent of a directory
};

// The state of a PublishTree that is called again. Used by one thread at a time. Until the last call has returned, what
// the earlier ones have found is immutable in memory.
class Namespace::PublishCall {
 public:
  // `close_wait`: maximum wait for open writers. The kernel does not wait until the last close of a file has reached
  // this process.
  PublishCall(InodeId directory, Credentials who, std::optional<uint64_t> version,
              std::chrono::milliseconds close_wait = std::chrono::seconds(2));
  ~PublishCall();
  PublishCall(const PublishCall&) = delete;
  PublishCall& operator=(const PublishCall&) = delete;

  InodeId directory() const { return directory_; }
  // The path of the inode at fault, relative to the directory (empty: the directory).
  const std::string& failed() const { return failed_; }

 private:
  friend class Namespace;
  const InodeId directory_;
  const Credentials who_;
  const std::optional<uint64_t> version_;
  const std::chrono::milliseconds close_wait_;
  std::string failed_;
  std::unique_ptr<Tree> tree_;
};

}  // namespace weightfs

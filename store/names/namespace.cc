// SPDX-License-Identifier: Apache-2.0
// Lookup, attributes of inodes, and the lifetime of inodes without links.
#include "store/names/namespace.h"

#include <fmt/format.h>

#include "common/log.h"
#include "meta/facts.h"
#include "meta/keys.h"
#include "store/file/file.h"
#include "store/names/acl.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// Returns the count in the catalog, or counts the inodes if it has none.
Result<uint64_t> CountInodes(KvStore& catalog) {
  const auto fact = ReadFact(catalog, kInodeCountFact);
  if (fact && *fact) return **fact;
  if (!fact && fact.error().code == ErrorCode::kIo) return fact.error();
  uint64_t count = 0;
  const auto inodes = catalog.NewIterator(keys::KindPrefix(keys::kInode));
  for (; inodes->Valid(); inodes->Next()) ++count;
  RETURN_IF_ERROR(inodes->status());
  return count;
}

}  // namespace

Error Namespace::Damaged(InodeId ino, std::string_view text) {
  spdlog::error("inode {}: {}; run weightfs fsck", ino.value, text);
  return {ErrorCode::kCorrupt};
}

Result<void> Namespace::CheckWritable(KvChange change) const {
  if (read_only_) return ErrorCode::kReadOnly;
  RETURN_IF_ERROR(data_.CheckWritable());
  return catalog_.CheckSpace(change);
}

Result<void> Namespace::Initialize(KvStore& catalog, uint32_t root_uid, uint32_t root_gid) {
  ASSIGN_OR_RETURN(const auto existing, catalog.Get(keys::Inode(kRootInode)));
  if (existing) return Error{ErrorCode::kExists, "the catalog holds a filesystem already"};
  InodeRecord root;
  root.mode = S_IFDIR | 0755;
  root.uid = root_uid;
  root.gid = root_gid;
  root.links = 2;
  root.generation = 1;
  root.parent = kRootInode.value;
  root.accessed = root.modified = root.changed = root.created = Timestamp::Now();
  KvBatch batch;
  batch.Put(keys::Inode(kRootInode), root.Encode());
  batch.Put(keys::Store(kNextInodeFact), EncodeFact(kRootInode.value + 1));
  batch.Put(keys::Store(kInodeCountFact), EncodeFact(1));
  return catalog.Write(std::move(batch));
}

Result<void> Namespace::Recover(bool read_only) {
  read_only_ = read_only;
  const auto bound = ReadFact(catalog_, kNextInodeFact);
  if (!bound || !*bound || **bound <= kRootInode.value) {
    return Error{ErrorCode::kCorrupt, "the catalog does not say which inode numbers are used; run weightfs fsck"};
  }
  ASSIGN_OR_RETURN(inode_count_, CountInodes(catalog_));
  {
    MutexLock lock(mutex_);
    next_ino_ = ino_bound_ = **bound;
  }
  if (auto root = GetDirectory(kRootInode); !root) {
    return Error{ErrorCode::kCorrupt, "the root directory is missing or damaged; run weightfs fsck"};
  }
  if (read_only_) return {};
  const auto orphans = catalog_.NewIterator(keys::KindPrefix(keys::kOrphan));
  for (; orphans->Valid(); orphans->Next()) {
    if (const auto key = keys::ParseInode(orphans->key())) {
      RETURN_IF_ERROR(RecoverOrphan(key->ino));
    } else {
      spdlog::error("an orphan key is damaged; run weightfs fsck");
    }
  }
  return orphans->status();
}

// Leaves damage to fsck and continues; returns only errors of the catalog.
Result<void> Namespace::RecoverOrphan(InodeId ino) {
  const auto inode = inodes_.Get(ino);
  if (!inode && inode.error().code == ErrorCode::kIo) return inode.error();
  if (!inode) {
    spdlog::error("inode {}: listed as deleted, but its record is missing or damaged; run weightfs fsck", ino.value);
    return {};
  }
  MutexLock lock(mutex_);
  orphans_.emplace(ino, *inode);
  auto deleted = DeleteOrphansLocked({*inode});
  orphans_.erase(ino);
  const bool damaged =
      !deleted && (deleted.error().code == ErrorCode::kCorrupt || deleted.error().code == ErrorCode::kVersion);
  if (!damaged) return deleted;
  spdlog::error("inode {}: listed as deleted, but it cannot be: its records are damaged; run weightfs fsck", ino.value);
  return {};
}

Result<InodePtr> Namespace::GetDirectory(InodeId ino) {
  ASSIGN_OR_RETURN(InodePtr inode, inodes_.Get(ino));
  MutexLock lock(inode->mutex);
  if (!inode->IsDirectory()) return ErrorCode::kNotDirectory;
  if (inode->deleted) return ErrorCode::kStale;
  return inode;
}

Result<std::optional<EntryRecord>> Namespace::FindEntry(InodeId parent, std::string_view name) {
  ASSIGN_OR_RETURN(const auto bytes, catalog_.Get(keys::Entry(parent, name)));
  if (!bytes) return std::optional<EntryRecord>();
  const auto entry = EntryRecord::Decode(*bytes);
  if (!entry) return Damaged(parent, fmt::format("its entry '{}' is damaged", name));
  return std::optional(*entry);
}

Result<Attributes> Namespace::Lookup(InodeId parent, std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(parent));
  if (name == ".") return GetAttributes(parent);
  if (name == "..") {
    MutexLock lock(directory->mutex);
    const InodeId above{directory->attributes.parent};
    lock.Unlock();
    return GetAttributes(above);
  }
  // An inode that vanishes between the two lookups was unlinked meanwhile, so look the name up again.
  std::optional<InodeId> vanished;
  while (true) {
    ASSIGN_OR_RETURN(const auto entry, FindEntry(parent, name));
    if (!entry) return ErrorCode::kNotFound;
    auto attributes = GetAttributes(entry->ino);
    if (attributes || attributes.error().code != ErrorCode::kStale) return attributes;
    if (vanished == entry->ino) return Damaged(parent, fmt::format("its entry '{}' leads to no inode", name));
    vanished = entry->ino;
  }
}

Result<Attributes> Namespace::GetAttributes(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  return inode->Stat();
}

Result<Attributes> Namespace::SetAttributes(InodeId ino, const AttributeChange& change) {
  const bool any = change.mode || change.uid || change.gid || change.accessed || change.modified || change.changed;
  if (!any) return GetAttributes(ino);
  RETURN_IF_ERROR(CheckWritable(KvChange::kUpdate));
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  return WhileStale([&]() -> Result<Attributes> {
    // A chmod also changes the ACL.
    ASSIGN_OR_RETURN(const StoredAttribute list, ReadStored(inode, change.mode ? kAccessAclName : std::string_view()));
    InodeTransaction transaction(catalog_, {inode});
    if (transaction.deleted(inode)) return ErrorCode::kStale;
    if (transaction.changes(inode) != list.changes) return ErrorCode::kAgain;
    InodeRecord& record = transaction.record(inode);
    record.uid = change.uid.value_or(record.uid);
    record.gid = change.gid.value_or(record.gid);
    record.accessed = change.accessed.value_or(record.accessed);
    record.modified = change.modified.value_or(record.modified);
    record.changed = change.changed ? *change.changed : Timestamp::Now();
    if (change.mode) record.mode = (record.mode & S_IFMT) | (*change.mode & 07777);
    if (change.mode && list.value && !S_ISLNK(record.mode)) {
      auto acl = Acl::Decode(*list.value);
      if (!acl) return Damaged(ino, "its access control list is damaged");
      acl->SetMode(record.mode);
      transaction.batch().Put(keys::Attribute(ino, kAccessAclName), acl->Encode());
    }
    RETURN_IF_ERROR(transaction.Commit());
    return transaction.Stat(inode);
  });
}

Result<std::string> Namespace::ReadLink(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  if (!S_ISLNK(inode->attributes.mode)) return ErrorCode::kInvalid;
  return inode->attributes.symlink;
}

Result<std::vector<DirectoryEntry>> Namespace::ReadDirectory(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  std::vector<DirectoryEntry> entries;
  entries.push_back({".", ino, S_IFDIR});
  {
    MutexLock lock(directory->mutex);
    entries.push_back({"..", InodeId{directory->attributes.parent}, S_IFDIR});
  }
  const auto iterator = catalog_.NewIterator(keys::EntryPrefix(ino));
  for (; iterator->Valid(); iterator->Next()) {
    const auto key = keys::ParseNamed(iterator->key());
    const auto entry = EntryRecord::Decode(iterator->value());
    if (!key || !entry) return Damaged(ino, "one of its entries is damaged");
    entries.push_back({std::string(key->name), entry->ino, entry->type});
  }
  RETURN_IF_ERROR(iterator->status());
  return entries;
}

Result<InodePtr> Namespace::Open(InodeId ino) {
  ASSIGN_OR_RETURN(InodePtr inode, inodes_.Get(ino));
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  ++inode->open_handles;
  return inode;
}

void Namespace::Close(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (--inode->open_handles > 0 || inode->attributes.links > 0) return;
  }
  DeleteOrphan(inode);
}

void Namespace::Forget(InodeId ino, uint64_t count) {
  if (inodes_.DropLookups(ino, count) > 0) return;
  InodePtr inode;
  {
    MutexLock lock(mutex_);
    const auto found = orphans_.find(ino);
    if (found == orphans_.end()) return;
    inode = found->second;
  }
  DeleteOrphan(inode);
}

BlockCount Namespace::LeavingBlocks() {
  BlockCount blocks;
  MutexLock lock(mutex_);
  for (const auto& [ino, inode] : orphans_) {
    MutexLock inode_lock(inode->mutex);
    if (inode->open_handles > 0 || inode->deleted || !inode->file) continue;
    blocks += BlockCount{inode->attributes.blocks} + inode->file->reserved();
  }
  return blocks;
}

bool Namespace::HasOrphans() {
  MutexLock lock(mutex_);
  return !orphans_.empty();
}

void Namespace::DeleteOrphan(const InodePtr& inode) {
  if (read_only_) return;
  MutexLock lock(mutex_);
  if (!orphans_.contains(inode->id)) return;
  if (auto deleted = DeleteOrphansLocked({inode}); !deleted) {
    spdlog::error("inode {}: cannot be deleted ({}); the next mount tries again", inode->id.value,
                  ToString(deleted.error()));
  }
}

void Namespace::DeleteOrphans(std::span<const InodePtr> inodes) {
  if (read_only_) return;
  constexpr size_t kAtOnce = 32;  // per hold of the mutex
  for (size_t at = 0; at < inodes.size(); at += kAtOnce) {
    const auto some = inodes.subspan(at, std::min(kAtOnce, inodes.size() - at));
    MutexLock lock(mutex_);
    std::vector<InodePtr> group;
    for (const InodePtr& inode : some) {
      if (orphans_.contains(inode->id)) group.push_back(inode);
    }
    if (DeleteOrphansLocked(group)) continue;
    lock.Unlock();
    for (const InodePtr& inode : some) DeleteOrphan(inode);  // logs the ones that fail
  }
}

Result<void> Namespace::DeleteOrphansLocked(const std::vector<InodePtr>& inodes) {
  return WhileStale([&] { return TryDeleteOrphansLocked(inodes); });
}

// Returns kAgain when an inode changed between the reading of its records and their deletion.
Result<void> Namespace::TryDeleteOrphansLocked(const std::vector<InodePtr>& inodes) {
  Result<void> result;
  std::vector<std::pair<InodePtr, DeletionRecords>> readable;
  for (const InodePtr& inode : inodes) {
    auto records = InodeTransaction::ReadDeletion(catalog_, inode, data_);
    if (records) {
      readable.emplace_back(inode, std::move(*records));
    } else if (result) {
      result = records.error();
    }
  }
  InodeTransaction transaction(catalog_, inodes);
  std::vector<InodeId> gone;
  for (auto& [inode, records] : readable) {
    const bool linked = transaction.record(inode).links > 0;
    if (!linked && (transaction.deleted(inode) || transaction.InUse(inode, inodes_))) continue;
    if (linked) {
      if (result) result = ErrorCode::kCorrupt;
      continue;
    }
    if (!transaction.Delete(inode, data_, std::move(records))) return ErrorCode::kAgain;
    transaction.batch().Delete(keys::Orphan(inode->id));
    gone.push_back(inode->id);
  }
  if (gone.empty()) return result;
  transaction.batch().Put(keys::Store(kInodeCountFact), EncodeFact(inode_count_ - gone.size()));
  RETURN_IF_ERROR(transaction.Commit());
  inode_count_ -= gone.size();
  for (const InodeId ino : gone) {
    inodes_.Erase(ino);
    orphans_.erase(ino);
  }
  return result;
}

Result<std::optional<DeletionRecords>> Namespace::ReadReplaced(const InodePtr& replaced) {
  std::optional<DeletionRecords> records;
  if (replaced == nullptr || inodes_.lookups(replaced->id) > 0) return records;
  {
    MutexLock lock(replaced->mutex);
    // A directory has one name, whatever a damaged record says.
    const bool last = replaced->IsDirectory() || replaced->attributes.links <= 1;
    if (!last || replaced->open_handles > 0) return records;
  }
  ASSIGN_OR_RETURN(records, InodeTransaction::ReadDeletion(catalog_, replaced, data_));
  return records;
}

Result<void> Namespace::CommitLocked(InodeTransaction& transaction, const InodePtr& replaced,
                                     std::optional<DeletionRecords> records, Timestamp now) {
  if (replaced != nullptr) transaction.record(replaced).changed = now;
  if (replaced == nullptr || transaction.record(replaced).links > 0) return transaction.Commit();
  if (transaction.InUse(replaced, inodes_)) {
    transaction.batch().Put(keys::Orphan(replaced->id), "");
    RETURN_IF_ERROR(transaction.Commit());
    orphans_.emplace(replaced->id, replaced);
    return {};
  }
  if (!records || !transaction.Delete(replaced, data_, *std::move(records))) return ErrorCode::kAgain;
  transaction.batch().Put(keys::Store(kInodeCountFact), EncodeFact(inode_count_ - 1));
  RETURN_IF_ERROR(transaction.Commit());
  --inode_count_;
  inodes_.Erase(replaced->id);
  return {};
}

}  // namespace weightfs

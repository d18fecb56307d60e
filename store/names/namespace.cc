// SPDX-License-Identifier: Apache-2.0
// Lookup, attributes of inodes, and the lifetime of inodes without links.
#include "store/names/namespace.h"

#include <fmt/format.h>

#include "common/log.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "store/file/file.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// Returns the count in the catalog, or counts the inodes if it is not `stored`.
Result<uint64_t> CountInodes(KvStore& catalog, bool* stored) {
  const auto fact = ReadFact(catalog, kInodeCountFact);
  *stored = fact && *fact;
  if (*stored) return **fact;
  if (!fact && fact.error().code == ErrorCode::kIo) return fact.error();
  uint64_t count = 0;
  const auto inodes = catalog.NewIterator(keys::KindPrefix(keys::kInode));
  for (; inodes->Valid(); inodes->Next()) ++count;
  RETURN_IF_ERROR(inodes->status());
  return count;
}

}  // namespace

Error Namespace::Damaged(InodeId ino, std::string_view text) {
  spdlog::error("inode {}: {}; run weightfs verify", ino.value, text);
  return {ErrorCode::kCorrupt};
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
  const bool known = bound && *bound && **bound > kRootInode.value;
  bool stored = false;
  const auto count = CountInodes(catalog_, &stored);
  // A read-only mount creates no inodes, so damage of these facts is no reason to serve nothing.
  if (!read_only_) {
    if (!known) {
      return Error{ErrorCode::kCorrupt, "the catalog does not say which inode numbers are used; run weightfs verify"};
    }
    if (!count) return count.error();
  }
  inode_count_ = count.value_or(0);
  {
    MutexLock lock(mutex_);
    count_stored_ = stored;
    next_ino_ = ino_bound_ = known ? **bound : 0;
  }
  if (auto root = GetDirectory(kRootInode); !root) {
    return Error{ErrorCode::kCorrupt, "the root directory is missing or damaged; run weightfs verify"};
  }
  if (read_only_) return {};
  const auto orphans = catalog_.NewIterator(keys::KindPrefix(keys::kOrphan));
  for (; orphans->Valid(); orphans->Next()) {
    if (const auto ino = keys::ParseInode(orphans->key())) {
      RETURN_IF_ERROR(RecoverOrphan(*ino));
    } else {
      spdlog::error("an orphan key is damaged; run weightfs verify");
    }
  }
  RETURN_IF_ERROR(orphans->status());
  const auto publishing = catalog_.NewIterator(keys::Store(kPublishingFact));
  for (; publishing->Valid(); publishing->Next()) {
    if (const auto ino = DecodeFact(publishing->value())) {
      RETURN_IF_ERROR(RecoverPublication(InodeId{*ino}));
    } else {
      spdlog::error("the fact of an interrupted publication is damaged; run weightfs verify");
    }
  }
  return publishing->status();
}

// Leaves damage to fsck and continues; returns only errors of the catalog.
Result<void> Namespace::RecoverOrphan(InodeId ino) {
  const auto inode = inodes_.Get(ino);
  if (!inode && inode.error().code == ErrorCode::kIo) return inode.error();
  if (!inode) {
    spdlog::error("inode {}: listed as deleted, but its record is missing or damaged; run weightfs verify", ino.value);
    return {};
  }
  {
    MutexLock lock(mutex_);
    orphans_.emplace(ino, *inode);
  }
  auto deleted = DeleteGroup({&*inode, 1});
  {
    MutexLock lock(mutex_);
    orphans_.erase(ino);
  }
  const bool damaged =
      !deleted && (deleted.error().code == ErrorCode::kCorrupt || deleted.error().code == ErrorCode::kVersion);
  if (!damaged) return deleted;
  spdlog::error("inode {}: listed as deleted, but it cannot be: its records are damaged; run weightfs verify",
                ino.value);
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

Result<InodePtr> Namespace::Get(InodeId ino) {
  ASSIGN_OR_RETURN(InodePtr inode, inodes_.Get(ino));
  {
    MutexLock lock(inode->mutex);
    if (!inode->deleted) return inode;
  }
  MutexLock lock(mutex_);
  const auto kept = kept_.find(ino);
  if (kept == kept_.end()) {
    MutexLock inode_lock(inode->mutex);
    return inode->deleted ? Result<InodePtr>(ErrorCode::kStale) : inode;  // gone, or back already
  }
  InodeTransaction transaction(catalog_, {inode});
  transaction.Restore(inode, *kept->second.data.restore);
  transaction.batch().Put(keys::Orphan(ino), "");
  RETURN_IF_ERROR(CommitCountLocked(transaction, 1));
  orphans_.emplace(ino, inode);
  kept_.erase(kept);
  return inode;
}

Result<Attributes> Namespace::GetAttributes(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  {
    MutexLock lock(inode->mutex);
    if (!inode->deleted) return inode->Stat();
  }
  MutexLock lock(mutex_);
  MutexLock inode_lock(inode->mutex);
  if (inode->deleted && !kept_.contains(ino)) return ErrorCode::kStale;
  return inode->Stat();
}

Result<Attributes> Namespace::SetAttributes(InodeId ino, const AttributeChange& change) {
  const bool any = change.mode || change.uid || change.gid || change.accessed || change.modified || change.changed;
  if (!any) return GetAttributes(ino);
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kUpdate));
  return WhileStale([&]() -> Result<Attributes> {
    ASSIGN_OR_RETURN(const InodePtr inode, Get(ino));
    // A chmod also changes the ACL.
    ASSIGN_OR_RETURN(const StoredAttribute list, ReadStored(inode, change.mode ? kAccessAclName : std::string_view()));
    InodeTransaction transaction(catalog_, {inode});
    if (transaction.deleted(inode) || transaction.changes(inode) != list.changes) return ErrorCode::kAgain;
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
      transaction.PutAttribute(inode, kAccessAclName, acl->Encode(), list.value);
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

Result<void> Namespace::ListEntries(InodeId ino, std::string_view after,
                                    const std::function<bool(const DirectoryEntry&)>& visit) {
  RETURN_IF_ERROR(GetDirectory(ino));
  // Names contain no zero byte, so this is the least key after that name.
  const std::string first = after.empty() ? std::string() : keys::Entry(ino, after).append(1, '\0');
  const auto iterator = catalog_.NewIterator(keys::EntryPrefix(ino), first, KvScan::kFew);
  DirectoryEntry entry;
  for (; iterator->Valid(); iterator->Next()) {
    const auto key = keys::ParseNamed(iterator->key());
    const auto record = EntryRecord::Decode(iterator->value());
    if (!key || !record) return Damaged(ino, "one of its entries is damaged");
    entry.name = key->name;
    entry.ino = record->ino;
    entry.type = record->type;
    if (!visit(entry)) return {};
  }
  return iterator->status();
}

Result<InodePtr> Namespace::Open(InodeId ino, bool writes) {
  return WhileStale([&]() -> Result<InodePtr> {
    ASSIGN_OR_RETURN(InodePtr inode, Get(ino));
    MutexLock lock(inode->mutex);
    if (inode->deleted) return ErrorCode::kAgain;
    RETURN_IF_ERROR(inode->AddOpen(writes));
    return inode;
  });
}

void Namespace::Close(const InodePtr& inode, bool writes) {
  {
    MutexLock lock(inode->mutex);
    inode->RemoveOpen(writes);
    if (inode->is_open() || inode->attributes.links > 0) return;
  }
  OrphanUnused(inode);
}

// An orphan is in the table, because orphans_ keeps it in memory. It becomes one in a transaction that holds its mutex:
// either this call sees it without links, or the transaction sees it without lookups.
void Namespace::Forget(InodeId ino, uint64_t count) {
  if (inodes_.DropLookups(ino, count) > 0) return;
  const InodePtr inode = inodes_.Find(ino);
  if (inode == nullptr) return;
  {
    MutexLock lock(inode->mutex);
    if (inode->attributes.links > 0 || inode->is_open()) return;
  }
  OrphanUnused(inode);
}

void Namespace::OrphanUnused(const InodePtr& inode) {
  if (unused_) {
    unused_(inode);
  } else {
    DeleteOrphan(inode);
  }
}

bool Namespace::HasOrphans() {
  MutexLock lock(mutex_);
  return !orphans_.empty() || !kept_.empty();
}

void Namespace::DeleteOrphan(const InodePtr& inode) {
  if (read_only_) return;
  if (auto deleted = DeleteGroup({&inode, 1}); !deleted) {
    spdlog::error("inode {}: cannot be deleted ({}); the next mount tries again", inode->id.value,
                  ToString(deleted.error()));
  }
}

void Namespace::DeleteOrphans(std::span<const InodePtr> inodes) {
  if (read_only_) return;
  constexpr size_t kAtOnce = 32;  // per hold of the mutex
  for (size_t at = 0; at < inodes.size(); at += kAtOnce) {
    const auto some = inodes.subspan(at, std::min(kAtOnce, inodes.size() - at));
    if (DeleteGroup(some)) continue;
    for (const InodePtr& inode : some) DeleteOrphan(inode);  // logs the ones that fail
  }
}

// Reads the records without the mutex, because a large file has many. An inode may be there twice: once for its last
// close, and once because the kernel forgot it.
Result<void> Namespace::DeleteGroup(std::span<const InodePtr> inodes) {
  const std::vector<InodePtr> orphans = DropKept({inodes.begin(), inodes.end()});
  return WhileStale([&] {
    OrphanRecords group;
    for (const InodePtr& inode : orphans) {
      group.emplace_back(inode, InodeTransaction::ReadDeletion(catalog_, inode, data_));
    }
    MutexLock lock(mutex_);
    std::erase_if(group, [this](const auto& member) REQUIRES(mutex_) { return !orphans_.contains(member.first->id); });
    return DeleteGroupLocked(std::move(group));
  });
}

std::vector<InodePtr> Namespace::DropKept(const std::set<InodePtr>& inodes) {
  std::vector<InodePtr> others;
  MutexLock lock(mutex_);
  for (const InodePtr& inode : inodes) {
    const auto kept = kept_.find(inode->id);
    if (kept == kept_.end()) {
      others.push_back(inode);
    } else if (inodes_.lookups(inode->id) == 0) {
      MutexLock inode_lock(inode->mutex);
      data_.DropData(inode, kept->second.data);
      inodes_.Erase(inode->id);
      kept_.erase(kept);
    }
  }
  return others;
}

Result<void> Namespace::DeleteGroupLocked(OrphanRecords group) {
  Result<void> result;
  std::vector<InodePtr> inodes;
  for (const auto& [inode, records] : group) inodes.push_back(inode);
  InodeTransaction transaction(catalog_, inodes);
  std::vector<InodeId> gone;
  for (auto& [inode, records] : group) {
    if (!records) {
      if (result) result = records.error();
      continue;
    }
    const bool linked = transaction.record(inode).links > 0;
    const bool used = transaction.is_open(inode) || inodes_.lookups(inode->id) > 0;
    if (!linked && (transaction.deleted(inode) || used)) continue;
    if (linked) {
      if (result) result = ErrorCode::kCorrupt;
      continue;
    }
    if (!transaction.Delete(inode, data_, *records)) return ErrorCode::kAgain;
    transaction.batch().Delete(keys::Orphan(inode->id));
    gone.push_back(inode->id);
  }
  if (gone.empty()) return result;
  RETURN_IF_ERROR(CommitCountLocked(transaction, -static_cast<int64_t>(gone.size())));
  for (const InodeId ino : gone) {
    inodes_.Erase(ino);
    orphans_.erase(ino);
  }
  return result;
}

Result<void> Namespace::CommitCountLocked(InodeTransaction& transaction, int64_t added) {
  if (count_stored_) transaction.batch().Delete(keys::Store(kInodeCountFact));
  RETURN_IF_ERROR(transaction.Commit());
  count_stored_ = false;
  inode_count_ += static_cast<uint64_t>(added);
  return {};
}

Result<void> Namespace::StoreCount() {
  MutexLock lock(mutex_);
  if (read_only_ || count_stored_ || catalog_.failed()) return {};
  KvBatch batch;
  batch.Put(keys::Store(kInodeCountFact), EncodeFact(inode_count_));
  RETURN_IF_ERROR(catalog_.Write(std::move(batch)));
  count_stored_ = true;
  return {};
}

Result<std::optional<DeletionRecords>> Namespace::ReadReplaced(const InodePtr& replaced) {
  if (replaced == nullptr) return std::optional<DeletionRecords>();
  const bool known = inodes_.lookups(replaced->id) > 0;
  {
    MutexLock lock(replaced->mutex);
    // A directory has one name, whatever a damaged record says.
    const bool last = replaced->IsDirectory() || replaced->attributes.links <= 1;
    const bool plain = replaced->IsRegular() && (replaced->attributes.flags & kInodeHasAttributes) == 0;
    if (!last || replaced->is_open() || (known && !plain)) return std::optional<DeletionRecords>();
  }
  auto records = InodeTransaction::ReadDeletion(catalog_, replaced, data_, known);
  if (known && !(records && records->data.restore)) return std::optional<DeletionRecords>();
  if (!records) return records.error();
  return std::optional(*std::move(records));
}

Result<void> Namespace::CommitLocked(InodeTransaction& transaction, const InodePtr& replaced,
                                     std::optional<DeletionRecords> records, Timestamp now) {
  if (replaced != nullptr) transaction.record(replaced).changed = now;
  if (replaced == nullptr || transaction.record(replaced).links > 0) return transaction.Commit();
  const bool known = inodes_.lookups(replaced->id) > 0;
  if (records && !known) records->data.restore.reset();  // Forget has seen the link
  const bool keep = records && records->data.restore;
  if (transaction.is_open(replaced) || (known && !keep)) {
    transaction.batch().Put(keys::Orphan(replaced->id), "");
    RETURN_IF_ERROR(transaction.Commit());
    orphans_.emplace(replaced->id, replaced);
    return {};
  }
  if (!records || !transaction.Delete(replaced, data_, *records)) return ErrorCode::kAgain;
  RETURN_IF_ERROR(CommitCountLocked(transaction, -1));
  if (keep) {
    kept_.emplace(replaced->id, Kept{replaced, std::move(records->data)});
  } else {
    inodes_.Erase(replaced->id);
  }
  return {};
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/names/inode_transaction.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "meta/keys.h"
#include "store/file/file.h"

namespace weightfs {

InodeTransaction::InodeTransaction(KvStore& catalog, const std::vector<InodePtr>& inodes) : catalog_(catalog) {
  std::vector<InodePtr> ordered = inodes;
  std::erase(ordered, nullptr);
  std::sort(ordered.begin(), ordered.end(), [](const InodePtr& a, const InodePtr& b) { return a->id < b->id; });
  ordered.erase(std::unique(ordered.begin(), ordered.end()), ordered.end());
  members_.reserve(ordered.size());
  for (InodePtr& inode : ordered) {
    inode->mutex.lock();
    const InodeRecord& record = inode->attributes;
    const std::optional<AttributeSizes> sizes = inode->attribute_sizes;
    members_.push_back({.inode = std::move(inode), .record = record, .attribute_sizes = sizes});
  }
}

InodeTransaction::~InodeTransaction() {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) member->inode->mutex.unlock();
}

InodeTransaction::Member& InodeTransaction::Find(const InodePtr& inode) {
  const auto found = std::lower_bound(members_.begin(), members_.end(), inode->id,
                                      [](const Member& member, InodeId id) { return member.inode->id < id; });
  WEIGHTFS_ASSERT(found != members_.end() && found->inode == inode);
  return *found;
}

bool InodeTransaction::deleted(const InodePtr& inode) const { return inode->deleted; }

bool InodeTransaction::is_open(const InodePtr& inode) const { return inode->is_open(); }

uint64_t InodeTransaction::changes(const InodePtr& inode) const { return inode->changes; }

void InodeTransaction::PutAttribute(const InodePtr& inode, std::string_view name, std::string value,
                                    const std::optional<std::string>& old) {
  Member& member = Find(inode);
  if (member.attribute_sizes) {
    if (old) member.attribute_sizes->Remove(name, old->size());
    member.attribute_sizes->Add(name, value.size());
  }
  member.record.flags |= kInodeHasAttributes;
  batch_.Put(keys::Attribute(inode->id, name), std::move(value));
}

void InodeTransaction::DeleteAttribute(const InodePtr& inode, std::string_view name,
                                       const std::optional<std::string>& old) {
  if (!old) return;
  Member& member = Find(inode);
  if (member.attribute_sizes) member.attribute_sizes->Remove(name, old->size());
  batch_.Delete(keys::Attribute(inode->id, name));
}

Result<DeletionRecords> InodeTransaction::ReadDeletion(KvStore& catalog, const InodePtr& inode, DataOwner& data,
                                                       bool restorable) {
  DeletionRecords records;
  bool has_attributes, regular;
  {
    MutexLock lock(inode->mutex);
    records.changes = inode->changes;
    has_attributes = (inode->attributes.flags & kInodeHasAttributes) != 0;
    regular = inode->IsRegular();
  }
  if (has_attributes) {
    const auto attributes = catalog.NewIterator(keys::AttributePrefix(inode->id));
    for (; attributes->Valid(); attributes->Next()) records.attributes.emplace_back(attributes->key());
    RETURN_IF_ERROR(attributes->status());
  }
  if (regular) {
    ASSIGN_OR_RETURN(records.data, data.ReadRecords(inode, restorable));
  }
  return records;
}

bool InodeTransaction::Delete(const InodePtr& inode, DataOwner& data, const DeletionRecords& records) {
  Member& member = Find(inode);
  if (inode->changes != records.changes) return false;
  if (S_ISREG(member.record.mode) && !data.DeleteRecords(inode, records.data, &batch_)) return false;
  constexpr size_t kSingleDeletes = 10;  // of names of 255 bytes: see FileIo::DeleteRecords
  if (records.attributes.size() > kSingleDeletes) {
    const std::string prefix = keys::AttributePrefix(inode->id);
    batch_.DeleteRange(prefix, keys::PrefixEnd(prefix));
  } else {
    for (const std::string& key : records.attributes) batch_.Delete(key);
  }
  batch_.Delete(keys::Inode(inode->id));
  member.data = &records.data;
  member.deletes_from = &data;
  return true;
}

void InodeTransaction::Restore(const InodePtr& inode, KvBatch records) {
  batch_.Append(std::move(records));
  Find(inode).restored = true;
}

Result<void> InodeTransaction::Commit() {
  for (const Member& member : members_) {
    if (member.inode->IsImmutable()) return ErrorCode::kPermission;
  }
  return CommitPublication();
}

Result<void> InodeTransaction::CommitPublication() {
  // The inodes encode the records, because they know their committed state. Nobody else can see them yet.
  for (Member& member : members_) {
    std::swap(member.inode->attributes, member.record);
    if (member.deletes_from != nullptr) continue;
    if (member.inode->attributes == member.record && !member.restored) continue;
    batch_.Put(keys::Inode(member.inode->id), member.inode->CatalogRecord().Encode());
  }
  auto written = batch_.empty() ? Result<void>() : catalog_.Write(std::move(batch_));
  for (Member& member : members_) {
    if (!written) std::swap(member.inode->attributes, member.record);
    ++member.inode->changes;
    if (written && member.restored) {
      member.inode->deleted = false;
      member.inode->file->NoteRestored();
    }
    member.inode->NoteUse();
    if (written) member.inode->attribute_sizes = member.attribute_sizes;
    if (!written || member.deletes_from == nullptr) continue;
    member.inode->deleted = true;
    if (!S_ISREG(member.inode->attributes.mode) || member.data->restore) continue;
    member.deletes_from->DropData(member.inode, *member.data);
  }
  return written;
}

Attributes InodeTransaction::Stat(const InodePtr& inode) const { return inode->Stat(); }

}  // namespace weightfs

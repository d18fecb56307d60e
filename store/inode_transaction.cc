#include "store/inode_transaction.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "meta/keys.h"
#include "store/inode_table.h"
#include "store/namespace.h"

namespace weightfs {

InodeTransaction::InodeTransaction(KvStore& catalog, const std::vector<InodePtr>& inodes)
    : catalog_(catalog) {
  for (const InodePtr& inode : inodes) {
    if (inode != nullptr) members_.push_back({inode, {}});
  }
  std::sort(members_.begin(), members_.end(),
            [](const Member& a, const Member& b) { return a.inode->id < b.inode->id; });
  const auto end = std::unique(members_.begin(), members_.end(),
                               [](const Member& a, const Member& b) { return a.inode == b.inode; });
  members_.erase(end, members_.end());
  for (Member& member : members_) {
    member.inode->mutex.lock();
    member.record = member.inode->attributes;
  }
}

InodeTransaction::~InodeTransaction() {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) member->inode->mutex.unlock();
}

InodeTransaction::Member& InodeTransaction::Find(const InodePtr& inode) {
  const auto found = std::lower_bound(members_.begin(), members_.end(), inode->id,
                                      [](const Member& member, InodeId id) { return member.inode->id < id; });
  assert(found != members_.end() && found->inode == inode);
  return *found;
}

bool InodeTransaction::deleted(const InodePtr& inode) const { return inode->deleted; }

bool InodeTransaction::InUse(const InodePtr& inode, const InodeTable& inodes) const {
  return inode->open_handles > 0 || inodes.lookups(inode->id) > 0;
}

Result<void> InodeTransaction::Delete(const InodePtr& inode, DataOwner& data) {
  Member& member = Find(inode);
  if ((member.record.flags & kInodeHasAttributes) != 0) {
    const auto attributes = catalog_.NewIterator(keys::AttributePrefix(inode->id));
    for (; attributes->Valid(); attributes->Next()) batch_.Delete(std::string(attributes->key()));
    RETURN_IF_ERROR(attributes->status());
  }
  if (S_ISREG(member.record.mode)) RETURN_IF_ERROR(data.DeleteData(inode, &batch_));
  batch_.Delete(keys::Inode(inode->id));
  member.deletes = true;
  return {};
}

Result<void> InodeTransaction::Commit() {
  // The records are encoded from the inodes, which know what of theirs is committed; nobody else sees them yet.
  for (Member& member : members_) {
    std::swap(member.inode->attributes, member.record);
    if (member.deletes || member.inode->attributes == member.record) continue;
    batch_.Put(keys::Inode(member.inode->id), member.inode->CatalogRecord().Encode());
  }
  auto written = batch_.empty() ? Result<void>() : catalog_.Write(batch_);
  for (Member& member : members_) {
    if (!written) std::swap(member.inode->attributes, member.record);
    ++member.inode->changes;
    if (written && member.deletes) member.inode->deleted = true;
  }
  return written;
}

Attributes InodeTransaction::Stat(const InodePtr& inode) const { return inode->Stat(); }

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Extended attributes, including ACLs.
#include "meta/keys.h"
#include "store/names/acl.h"
#include "store/names/namespace.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// Follows xattr(7): a missing or overlong name is out of range, and names belong to the namespaces of Linux.
Result<void> CheckAttributeName(std::string_view name) {
  if (name.empty() || name.size() > kMaximumAttributeName) return ErrorCode::kRange;
  if (name.find('\0') != name.npos) return ErrorCode::kInvalid;
  if (IsAcl(name)) return {};
  for (const std::string_view space : {"user.", "trusted.", "security."}) {
    if (!name.starts_with(space)) continue;
    if (name.size() == space.size()) return ErrorCode::kInvalid;
    return {};
  }
  return ErrorCode::kNotSupported;
}

}  // namespace

// Programs and the kernel ask every file for attributes that few files have, so answer these queries from memory.
Result<std::string> Namespace::ReadAttribute(InodeId ino, std::string_view name) {
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  {
    MutexLock lock(inode->mutex);
    if ((inode->attributes.flags & kInodeHasAttributes) == 0) return ErrorCode::kNoAttribute;
    if (inode->deleted) return ErrorCode::kStale;
  }
  ASSIGN_OR_RETURN(auto value, catalog_.Get(keys::Attribute(ino, name)));
  if (!value) return ErrorCode::kNoAttribute;
  return std::move(*value);
}

Result<Namespace::StoredAttribute> Namespace::ReadStored(const InodePtr& inode, std::string_view name) {
  StoredAttribute attribute;
  bool any;
  {
    MutexLock lock(inode->mutex);
    attribute.changes = inode->changes;
    any = (inode->attributes.flags & kInodeHasAttributes) != 0;
  }
  if (any && !name.empty()) {
    ASSIGN_OR_RETURN(attribute.value, catalog_.Get(keys::Attribute(inode->id, name)));
  }
  return attribute;
}

Result<std::string> Namespace::GetExtendedAttribute(InodeId ino, std::string_view name) {
  RETURN_IF_ERROR(CheckAttributeName(name));
  return ReadAttribute(ino, name);
}

Result<std::vector<std::string>> Namespace::ListExtendedAttributes(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  std::vector<std::string> names;
  {
    MutexLock lock(inode->mutex);
    if ((inode->attributes.flags & kInodeHasAttributes) == 0) return names;
    if (inode->deleted) return ErrorCode::kStale;
  }
  const auto attributes = catalog_.NewIterator(keys::AttributePrefix(ino));
  for (; attributes->Valid(); attributes->Next()) {
    const auto key = keys::ParseNamed(attributes->key());
    if (!key) return Damaged(ino, "the name of one of its attributes is damaged");
    if (key->name != kPublicationName) names.emplace_back(key->name);
  }
  RETURN_IF_ERROR(attributes->status());
  return names;
}

Result<AttributeSizes> Namespace::ReadAttributeSizes(const InodePtr& inode, uint64_t changes) {
  AttributeSizes sizes;
  {
    MutexLock lock(inode->mutex);
    if (inode->changes != changes) return ErrorCode::kAgain;
    if (inode->attribute_sizes) return *inode->attribute_sizes;
    if ((inode->attributes.flags & kInodeHasAttributes) == 0) return sizes;
  }
  const auto attributes = catalog_.NewIterator(keys::AttributePrefix(inode->id));
  for (; attributes->Valid(); attributes->Next()) {
    const auto key = keys::ParseNamed(attributes->key());
    if (!key) return Damaged(inode->id, "the name of one of its attributes is damaged");
    sizes.Add(key->name, attributes->value().size());
  }
  RETURN_IF_ERROR(attributes->status());
  MutexLock lock(inode->mutex);
  if (inode->changes != changes) return ErrorCode::kAgain;
  inode->attribute_sizes = sizes;
  return sizes;
}

// A value may be replaced by one that is not longer even where an older version has exceeded the limit.
Result<void> Namespace::CheckAttributeSpace(const InodePtr& inode, std::string_view name, const StoredAttribute& stored,
                                            size_t size) {
  if (stored.value && size <= stored.value->size()) return {};
  ASSIGN_OR_RETURN(AttributeSizes sizes, ReadAttributeSizes(inode, stored.changes));
  if (stored.value) sizes.Remove(name, stored.value->size());
  sizes.Add(name, size);
  if (sizes.bytes > kMaximumAttributeBytes) return ErrorCode::kNoSpace;
  if (!stored.value && sizes.list > kMaximumAttributeList) return ErrorCode::kNoSpace;
  return {};
}

Result<void> Namespace::SetExtendedAttribute(InodeId ino, std::string_view name, std::string_view value,
                                             AttributeWrite mode, bool keeps_set_group_id) {
  RETURN_IF_ERROR(CheckAttributeName(name));
  if (value.size() > kMaximumAttributeValue) return ErrorCode::kTooLarge;
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  // ACLs do not follow the rules of xattr: the flags are meaningless for them.
  if (IsAcl(name)) {
    ASSIGN_OR_RETURN(const Acl acl, Acl::Decode(value));
    return WhileStale([&] { return TrySetAcl(ino, name, acl, keeps_set_group_id); });
  }
  return WhileStale([&] { return TrySetAttribute(ino, name, value, mode); });
}

Result<void> Namespace::TrySetAttribute(InodeId ino, std::string_view name, std::optional<std::string_view> value,
                                        AttributeWrite mode) {
  ASSIGN_OR_RETURN(const InodePtr inode, Get(ino));
  ASSIGN_OR_RETURN(const StoredAttribute stored, ReadStored(inode, name));
  if (stored.value && mode == AttributeWrite::kCreate) return ErrorCode::kExists;
  if (!stored.value && mode == AttributeWrite::kReplace) return ErrorCode::kNoAttribute;
  if (value) RETURN_IF_ERROR(CheckAttributeSpace(inode, name, stored, value->size()));
  InodeTransaction transaction(catalog_, {inode});
  if (transaction.deleted(inode) || transaction.changes(inode) != stored.changes) return ErrorCode::kAgain;
  transaction.record(inode).changed = Timestamp::Now();
  if (value) {
    transaction.PutAttribute(inode, name, std::string(*value), stored.value);
  } else {
    transaction.DeleteAttribute(inode, name, stored.value);
  }
  return transaction.Commit();
}

Result<void> Namespace::TrySetAcl(InodeId ino, std::string_view name, const Acl& acl, bool keeps_set_group_id) {
  ASSIGN_OR_RETURN(const InodePtr inode, Get(ino));
  ASSIGN_OR_RETURN(const StoredAttribute stored, ReadStored(inode, name));
  const bool access = name == kAccessAclName;
  // An access list that expresses no more than the mode is not stored, because it would become stale.
  const bool store = !acl.empty() && !(access && acl.IsMode());
  const std::string encoded = acl.Encode();
  if (store) RETURN_IF_ERROR(CheckAttributeSpace(inode, name, stored, encoded.size()));
  InodeTransaction transaction(catalog_, {inode});
  if (transaction.deleted(inode) || transaction.changes(inode) != stored.changes) return ErrorCode::kAgain;
  InodeRecord& record = transaction.record(inode);
  if (S_ISLNK(record.mode)) return ErrorCode::kNotSupported;
  if (!access && !acl.empty() && !S_ISDIR(record.mode)) return ErrorCode::kAccess;
  if (access) record.mode = acl.ApplyToMode(record.mode);
  // As in chmod(2). Removing a list does not change the permissions of the group.
  if (access && !acl.empty() && !keeps_set_group_id) record.mode &= ~static_cast<uint32_t>(S_ISGID);
  if (store) {
    transaction.PutAttribute(inode, name, encoded, stored.value);
  } else {
    transaction.DeleteAttribute(inode, name, stored.value);
  }
  record.changed = Timestamp::Now();
  return transaction.Commit();
}

Result<bool> Namespace::ClearPrivileges(const InodePtr& inode, bool set_ids) {
  const auto kept = [set_ids](uint32_t mode) {
    if (set_ids) mode &= ~static_cast<uint32_t>((mode & S_IXGRP) != 0 ? S_ISUID | S_ISGID : S_ISUID);
    return mode;
  };
  {
    MutexLock lock(inode->mutex);  // every write calls this, and few files have privileges to lose
    const InodeRecord& now = inode->attributes;
    if ((now.flags & kInodeHasAttributes) == 0 && kept(now.mode) == now.mode) return false;
  }
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kUpdate));
  return WhileStale([&]() -> Result<bool> {
    constexpr std::string_view kCapability = "security.capability";
    ASSIGN_OR_RETURN(const StoredAttribute capability, ReadStored(inode, kCapability));
    if (!capability.value) {
      MutexLock lock(inode->mutex);
      if (inode->changes != capability.changes) return ErrorCode::kAgain;
      if (inode->deleted) return ErrorCode::kStale;
      if (kept(inode->attributes.mode) == inode->attributes.mode) return false;
    }
    InodeTransaction transaction(catalog_, {inode});
    if (transaction.deleted(inode)) return ErrorCode::kStale;
    if (transaction.changes(inode) != capability.changes) return ErrorCode::kAgain;
    InodeRecord& record = transaction.record(inode);
    const bool changes = kept(record.mode) != record.mode;
    transaction.DeleteAttribute(inode, kCapability, capability.value);
    record.mode = kept(record.mode);
    record.changed = Timestamp::Now();
    RETURN_IF_ERROR(transaction.Commit());
    return changes;
  });
}

Result<void> Namespace::RemoveExtendedAttribute(InodeId ino, std::string_view name) {
  RETURN_IF_ERROR(CheckAttributeName(name));
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kRemove));
  // Removing a list that does not exist succeeds, as in the kernel's own filesystems.
  if (IsAcl(name)) return WhileStale([&] { return TrySetAcl(ino, name, Acl(), /*keeps_set_group_id=*/true); });
  return WhileStale([&] { return TrySetAttribute(ino, name, std::nullopt, AttributeWrite::kReplace); });
}

}  // namespace weightfs

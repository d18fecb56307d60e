// SPDX-License-Identifier: Apache-2.0
#include "store/file/inode.h"

#include <cerrno>

#include "store/file/file.h"

namespace weightfs {

Inode::Inode(InodeId ino, InodeRecord record, const FileServices& services)
    : id(ino),
      attributes(std::move(record)),
      committed{attributes.size, attributes.blocks, attributes.data_version} {
  if (S_ISREG(attributes.mode)) file = std::make_unique<File>(id, &attributes, services);
}

Inode::~Inode() = default;

Result<void> Inode::AddOpen(bool writes) {
  if (deleted) return ErrorCode::kStale;
  if (writes && IsImmutable()) return ErrorCode::kPermission;
  ++open_handles_;
  if (writes) ++open_writers_;
  NoteUse();
  return {};
}

void Inode::RemoveOpen(bool writes) {
  --open_handles_;
  if (writes) --open_writers_;
  NoteUse();
}

Result<void> Inode::Freeze() {
  if (frozen_) return ErrorCode::kAgain;
  if (IsImmutable()) return ErrorCode::kBusy;
  if (has_writers()) return ErrorCode{ETXTBSY};
  frozen_ = true;
  return {};
}

Result<void> Inode::FreezePublished(bool in_use) {
  if (frozen_) return ErrorCode::kAgain;
  if (in_use) return ErrorCode{ETXTBSY};
  frozen_ = true;
  return {};
}

void Inode::NoteUse() {
  if (file) file->SetLeaving(attributes.links == 0 && !is_open() && !deleted);
}

InodeRecord Inode::CatalogRecord() const {
  InodeRecord record = attributes;
  if (S_ISREG(record.mode)) {
    record.size = committed.size;
    record.blocks = committed.blocks;
    record.data_version = committed.version;
  }
  return record;
}

Attributes Inode::Stat() const {
  const uint64_t pending = file == nullptr ? 0 : file->WithoutExtent().value;
  return {attributes, id, (attributes.blocks + pending) * (kBlockSize / 512)};
}

}  // namespace weightfs

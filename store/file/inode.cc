// SPDX-License-Identifier: Apache-2.0
#include "store/file/inode.h"

#include "store/file/file.h"

namespace weightfs {

Inode::Inode(InodeId ino, InodeRecord record, const FileServices& services)
    : id(ino),
      attributes(std::move(record)),
      committed_size(attributes.size),
      committed_blocks(attributes.blocks),
      committed_version(attributes.data_version) {
  if (S_ISREG(attributes.mode)) file = std::make_unique<File>(id, &attributes, services);
}

Inode::~Inode() = default;

void Inode::NoteUse() {
  if (file) file->SetLeaving(attributes.links == 0 && open_handles == 0 && !deleted);
}

InodeRecord Inode::CatalogRecord() const {
  InodeRecord record = attributes;
  if (S_ISREG(record.mode)) {
    record.size = committed_size;
    record.blocks = committed_blocks;
    record.data_version = committed_version;
  }
  return record;
}

Attributes Inode::Stat() const {
  Attributes out;
  out.ino = id;
  out.generation = attributes.generation;
  out.mode = attributes.mode;
  out.uid = attributes.uid;
  out.gid = attributes.gid;
  out.links = attributes.links;
  out.device_major = attributes.device_major;
  out.device_minor = attributes.device_minor;
  out.size = attributes.size;
  out.blocks_512 = attributes.blocks * (kBlockSize / 512);
  out.accessed = attributes.accessed;
  out.modified = attributes.modified;
  out.changed = attributes.changed;
  out.created = attributes.created;
  return out;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// An inode in memory.
#pragma once

#include <memory>

#include "common/mutex.h"
#include "common/units.h"
#include "meta/records.h"
#include "store/types.h"

namespace weightfs {

class File;
struct FileServices;

// Shared by everything that works on the inode (open handles, the committer, requests under way); the table keeps one
// for each inode, so a shared_ptr is the inode's identity while anybody holds it.
class Inode {
 public:
  Inode(InodeId ino, InodeRecord record, const FileServices& services);
  ~Inode();
  Inode(const Inode&) = delete;
  Inode& operator=(const Inode&) = delete;

  const InodeId id;
  mutable Mutex mutex{Mutex::Rule::kNoCatalogReads};

  // As stat(2) shows it: ahead of the catalog by the data not yet committed.
  InodeRecord attributes GUARDED_BY(mutex);
  // `size`, `blocks` and `data_version` as the catalog has them. The Committer alone moves them.
  uint64_t committed_size GUARDED_BY(mutex) = 0;
  uint64_t committed_blocks GUARDED_BY(mutex) = 0;
  uint64_t committed_version GUARDED_BY(mutex) = 0;
  // How often it was changed by an InodeTransaction; of a directory that is every change of its entries.
  uint64_t changes GUARDED_BY(mutex) = 0;
  // Open handles; while it is not 0 an inode without links stays.
  uint32_t open_handles GUARDED_BY(mutex) = 0;
  // Its records are gone from the catalog: nothing may be written for it any more.
  bool deleted GUARDED_BY(mutex) = false;
  // The data of a regular file; null for every other type. Its content needs the mutex too.
  std::unique_ptr<File> file GUARDED_BY(mutex);

  bool IsDirectory() const REQUIRES(mutex) { return S_ISDIR(attributes.mode); }
  bool IsRegular() const REQUIRES(mutex) { return S_ISREG(attributes.mode); }

  // The record for the catalog outside a commit of data: the attributes, with the committed size and blocks. Every
  // namespace operation writes this one, under `mutex`, so that records reach the catalog in the order of change.
  InodeRecord CatalogRecord() const REQUIRES(mutex);

  Attributes Stat() const REQUIRES(mutex);
};

using InodePtr = std::shared_ptr<Inode>;

}  // namespace weightfs

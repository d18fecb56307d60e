// SPDX-License-Identifier: Apache-2.0
// An inode in memory.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/mutex.h"
#include "common/units.h"
#include "meta/records.h"
#include "store/types.h"

namespace weightfs {

class File;
struct FileServices;

// The sizes of an inode's extended attributes, ACLs included.
struct AttributeSizes {
  uint64_t list = 0;   // the names, each with a zero byte, as listxattr(2) returns them
  uint64_t bytes = 0;  // names and values

  void Add(std::string_view name, size_t value) {
    list += name.size() + 1;
    bytes += name.size() + value;
  }
  void Remove(std::string_view name, size_t value) {
    list -= name.size() + 1;
    bytes -= name.size() + value;
  }
};

// The data attributes in an inode's record.
struct CommittedData {
  uint64_t size = 0;     // bytes
  uint64_t blocks = 0;
  uint64_t version = 0;  // data_version
};

// Shared by all users of the inode (open handles, the committer, requests in progress). The table keeps one object per
// inode, so the shared_ptr identifies the inode while anybody holds it.
class Inode {
 public:
  Inode(InodeId ino, InodeRecord record, const FileServices& services);
  ~Inode();
  Inode(const Inode&) = delete;
  Inode& operator=(const Inode&) = delete;

  const InodeId id;
  mutable Mutex mutex{Mutex::Rule::kNoCatalogReads};

  // The attributes that stat(2) returns. They include data that is not committed yet.
  InodeRecord attributes GUARDED_BY(mutex);
  // Those of them in the catalog. Only the Committer changes this.
  CommittedData committed GUARDED_BY(mutex);
  // The number of changes by InodeTransactions. For a directory this includes every change of its entries.
  uint64_t changes GUARDED_BY(mutex) = 0;
  // The sizes of its attributes in the catalog as of `changes`; nullopt until something needs them. Only
  // InodeTransactions change attributes, and they keep this current.
  std::optional<AttributeSizes> attribute_sizes GUARDED_BY(mutex);
  // True when the records are gone from the catalog. Nothing may be written for the inode, except by Namespace::Get.
  bool deleted GUARDED_BY(mutex) = false;
  // The data of a regular file; null for other types. The mutex also protects the File itself.
  std::unique_ptr<File> file GUARDED_BY(mutex);

  // Adds or removes an open handle, which may write if `writes`. AddOpen returns kStale for a deleted inode, and
  // kPermission for a writer of an immutable one. An inode without links is kept while it is open.
  Result<void> AddOpen(bool writes) REQUIRES(mutex);
  void RemoveOpen(bool writes) REQUIRES(mutex);
  bool is_open() const REQUIRES(mutex) { return open_handles_ > 0; }
  bool has_writers() const REQUIRES(mutex) { return open_writers_ > 0; }

  // Makes the inode immutable for Namespace::PublishTree, as if it were published, until Thaw. Returns kAgain if it is
  // frozen, kBusy if it is published, and ETXTBSY if it is open for writing.
  Result<void> Freeze() REQUIRES(mutex);
  // The same for Namespace::UnpublishTree and a published inode. `in_use`: by passthrough, which is ETXTBSY.
  Result<void> FreezePublished(bool in_use) REQUIRES(mutex);
  void Thaw() REQUIRES(mutex) { frozen_ = false; }
  bool IsImmutable() const REQUIRES(mutex) { return frozen_ || IsPublished(); }

  // False also while that may change.
  bool StaysPublished() const REQUIRES(mutex) { return !frozen_ && IsPublished(); }
  bool IsPublished() const REQUIRES(mutex) { return (attributes.flags & kInodePublished) != 0; }

  // Call this after a change of the links. A file without both is deleted when the kernel forgets
  // it, some time after the unlink; its blocks count as free until then.
  void NoteUse() REQUIRES(mutex);

  bool IsDirectory() const REQUIRES(mutex) { return S_ISDIR(attributes.mode); }
  bool IsRegular() const REQUIRES(mutex) { return S_ISREG(attributes.mode); }

  // The record to write outside a data commit: the current attributes with the committed size and blocks. Every
  // namespace operation writes this record under `mutex`, so that records reach the catalog in the order of the
  // changes.
  InodeRecord CatalogRecord() const REQUIRES(mutex);

  Attributes Stat() const REQUIRES(mutex);

 private:
  uint32_t open_handles_ GUARDED_BY(mutex) = 0, open_writers_ GUARDED_BY(mutex) = 0;
  bool frozen_ GUARDED_BY(mutex) = false;
};

using InodePtr = std::shared_ptr<Inode>;

// Loads the extents of a regular file unless they are loaded. A failed write may unload them at any time, so check
// again under the mutex. Returns kIsDirectory or kInvalid for an inode that is not a regular file, kStale for a deleted
// one, or kCorrupt. Thread-safe; called without the inode's mutex.
Result<void> LoadFile(KvStore& catalog, const InodePtr& inode);

}  // namespace weightfs

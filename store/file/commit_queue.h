// SPDX-License-Identifier: Apache-2.0
// The interface through which operations on files request commits (commit/committer.h).
#pragma once

#include <vector>

#include "engine/extent_allocator.h"
#include "store/file/inode.h"
#include "store/types.h"

namespace weightfs {

enum class CommitLevel : unsigned char {
  kOrdered,  // in the catalog: no later catalog write survives a crash without it
  kDurable,
};

struct CommitOptions {
  bool kept = false;     // the file's error stays pending for others
  bool settled = false;  // leaves the file out while it is being replaced; its error stays pending
};

// Thread-safe.
class CommitQueue {
 public:
  // Records that the file now differs from the catalog (CommitState). It is committed within the interval.
  virtual void NoteChanged(const InodePtr& inode) REQUIRES(inode->mutex) = 0;
  // Commits the file now, and with kDurable also everything written to the catalog before. `done` gets the file's
  // error, and the error then counts as reported unless it is kept. `done` may be null.
  virtual void Commit(const InodePtr& inode, CommitLevel level, Done done, CommitOptions options = {}) = 0;
  // Same with kOrdered, on the calling thread, without waking another one, because somebody waits for it. Call it
  // without locks.
  virtual Result<void> CommitHere(const InodePtr& inode, CommitOptions options) = 0;
  // Commits every file that differs from the catalog, except files being replaced (O_TRUNC and not closed yet by their
  // writers), so that a crash leaves their old content or their new content.
  virtual void CommitAll(CommitLevel level, Done done) = 0;
  // Returns the files that were changed, or whose writes failed, since their last commit. It may include others.
  virtual std::vector<InodePtr> Uncommitted() = 0;
  // Call this when the error of a failed write was reported. Until then the queue keeps the file in memory.
  virtual void ForgetError(const InodePtr& inode) REQUIRES(inode->mutex) = 0;
  // Reports that the deletion of a file is in the catalog. Its space is freed when the deletion is durable and no write
  // of the file is in progress.
  virtual void AddDeleted(const InodePtr& inode, std::vector<DeviceRun> runs) = 0;
  // Retires now what durable commits have freed, instead of soon. For callers that wait for space; call it without
  // locks.
  virtual void ReleaseFreed() = 0;
  // Stays true after a failed device flush or catalog write: nothing can be made durable any more.
  virtual bool failed() const = 0;

 protected:
  ~CommitQueue() = default;
};

}  // namespace weightfs

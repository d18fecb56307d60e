// SPDX-License-Identifier: Apache-2.0
// What operations on files ask of the committer (commit/committer.h).
#pragma once

#include <vector>

#include "engine/extent_allocator.h"
#include "store/file/inode.h"
#include "store/types.h"

namespace weightfs {

enum class CommitLevel : unsigned char {
  kOrdered,  // in the catalog: whatever is written to the catalog later cannot survive a crash without it
  kDurable,
};

// Which changed files a commit of all files takes. kSettled leaves out those that are being replaced (O_TRUNC and not
// closed yet): a crash shall find the old content or the new.
enum class CommitScope : unsigned char { kNone, kSettled, kEverything };

// Thread-safe.
class CommitQueue {
 public:
  // The file differs from the catalog since now (CommitState): it is committed within the interval.
  virtual void NoteChanged(const InodePtr& inode) REQUIRES(inode->mutex) = 0;
  // Commits the file now, and with kDurable everything that was written to the catalog before. `done` gets the file's
  // error, which thereby counts as reported unless it is `kept` for others. Null: nobody waits.
  virtual void Commit(const InodePtr& inode, CommitLevel level, Done done, bool kept = false) = 0;
  // Commits every file of the scope that differs from the catalog.
  virtual void CommitAll(CommitScope scope, CommitLevel level, Done done) = 0;
  // The files that were changed, or whose writes failed, since their last commit; others may be among them.
  virtual std::vector<InodePtr> Uncommitted() = 0;
  // The catalog has the deletion of a file: its space is free once that is durable and no write of it is under way.
  virtual void AddDeleted(const InodePtr& inode, std::vector<DeviceRun> runs) = 0;
  // True for good after a failed device flush or catalog write: nothing can be made durable any more.
  virtual bool failed() const = 0;

 protected:
  ~CommitQueue() = default;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The state that all operations of a mount share. Private to fs/.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fs/directory_listing.h"
#include "fs/executor.h"
#include "fs/fuse_api.h"
#include "fs/handles.h"
#include "fs/kernel_features.h"
#include "fs/lease_tickets.h"
#include "fs/mount_options.h"
#include "fs/page_cache.h"
#include "fs/read_history.h"
#include "fs/receive_buffer.h"
#include "fs/reply.h"
#include "fs/user_limit.h"
#include "store/store.h"

namespace weightfs {

class LeaseServer;

constexpr ByteRange kWholeFile{0, uint64_t{1} << 63};

// Thread-safe once the session has negotiated with the kernel. Only the negotiation sets `features` and `session`.
class Filesystem {
 public:
  Filesystem(Store& store, const MountOptions& options);
  ~Filesystem();
  // Starts the threads; call it once, before the store is used.
  Result<void> Start();

  Store& store() { return store_; }
  Namespace& names() { return store_.names(); }
  const MountOptions& options() const { return options_; }
  // True when nothing may be changed: since the mount, after an error, or after a remount. The kernel rejects most
  // changes itself; this check is for changes through leases.
  bool read_only() const { return options_.read_only || store_.read_only() || remounted_read_only_; }
  void SetReadOnly(bool read_only) { remounted_read_only_ = read_only; }
  // Leased commits in progress. Each one checks read_only() after it is counted here. After SetReadOnly(true) and
  // WaitForNone(), no lease changes the store.
  RequestCounter& commits() { return commits_; }
  double cache_seconds() const { return options_.cache_seconds; }
  HandleRegistry<FileHandle>& files() { return files_; }
  HandleRegistry<DirectoryHandle>& directories() { return directories_; }
  std::atomic<uint64_t>& listing_memory() { return listing_memory_; }
  RemovedNames& removed_names() { return removed_names_; }
  PageCacheTracker& page_cache() { return page_cache_; }
  ReadHistory& read_history() { return read_history_; }
  RequestCounter& requests() { return requests_; }
  Reply MakeReply(fuse_req_t request) { return {request, requests_, metrics_, activity_}; }
  RequestMetrics& metrics() { return metrics_; }
  Activity& activity() { return activity_; }
  // Releases and forgets in progress. The last one of a deleted file frees its space.
  RequestCounter& ends() { return ends_; }

  UsedFeatures features;
  fuse_session* session = nullptr;
  ReceiveBuffers* buffers = nullptr;  // for statistics

  // Runs `operation(reply)` on a thread that may wait, but not for pages of the kernel. Users take turns. The number of
  // requests that the kernel has in flight, one for each thread of the users, bounds the number of operations.
  template <typename Operation>
  void RunOnPool(Reply reply, Operation operation) {
    const uint32_t user = reply.caller().uid;
    RunOnPool(user, std::move(reply), std::move(operation));
  }
  // Same, in the turns of another user than the caller.
  template <typename Operation>
  void RunOnPool(uint32_t user, Reply reply, Operation operation) {
    RunOn(executor_, user, std::chrono::milliseconds(0), std::move(reply), std::move(operation));
  }

  // Same for an operation that waits for other programs: it gives its thread back and is called again after a pause.
  // Without a pause once ending().
  template <typename Operation>
  void RunAfter(std::chrono::milliseconds pause, Reply reply, Operation operation) {
    const uint32_t user = reply.caller().uid;
    RunOn(executor_, user, pause, std::move(reply), std::move(operation));
  }
  // True when the mount ends: nobody is waited for any more.
  bool ending() const { return ending_.load(); }
  // One check of the catalog at a time, because each reads all of it. False if another one runs.
  bool BeginCatalogCheck() { return !checking_catalog_.exchange(true); }
  void EndCatalogCheck() { checking_catalog_ = false; }

  // Same for operations that are usually quick, but may take long: they scan or change the catalog. Runs them on the
  // calling receiver if another one stays free for look-ups, because handing over costs as much as a quick operation.
  template <typename Operation>
  void RunOnReceiverOrPool(Reply reply, Operation operation) {
    if (const BusyReceiver busy(*this); busy.admitted()) {
      operation(std::move(reply));
    } else {
      RunOnPool(std::move(reply), std::move(operation));
    }
  }

  // Same as RunOnPool for operations that wait for pages (DropPages). They have a pool of their own because dropping
  // pages may wait for a reply of RunOnPool: the kernel writes no page of a file while it truncates that file.
  template <typename Operation>
  void RunOnPagePool(Reply reply, Operation operation) {
    const uint32_t user = reply.caller().uid;
    RunOn(page_executor_, user, std::chrono::milliseconds(0), std::move(reply), std::move(operation));
  }

  // The files and directories that each user may have open at a time.
  UserLimit& opens() { return opens_; }
  // The bytes of attribute values of each user that wait to be stored.
  UserLimit& waiting_values() { return waiting_values_; }
  // The bytes of each user's writes that wait for space.
  UserLimit& waiting_writes() { return waiting_writes_; }
  // The publications of each user that are made at a time.
  UserLimit& publications() { return publications_; }

  // Replies with an entry or the error. Counts the kernel's reference to the inode.
  void ReplyEntry(Reply reply, const Result<Attributes>& entry);

  // The counters and gauges of WEIGHTFS_IOC_STATS, also for -o metrics=.
  weightfs_stats Stats() const;

  // Adds a handle for the caller of `reply` with its share of opens(), stores it in `file` and returns what the reply
  // says besides.
  OpenCompletion AddHandle(const InodePtr& inode, fuse_file_info& file, UserLimit::Share share, const Reply& reply);
  OpenMode ChooseMode(const InodePtr& inode, int flags);
  // Reverts AddHandle. Also used for a release.
  void DropHandle(uint64_t number);
  // Records the close of a descriptor by the caller. `owner` is the lock owner of the request.
  void NoteClose(const std::shared_ptr<FileHandle>& file, uint64_t owner, const Reply& reply) EXCLUDES(closed_mutex_);
  // Records a change through the handle; `owner` as above, 0: unknown.
  void NoteChange(FileHandle& file, uint64_t owner) EXCLUDES(closed_mutex_) {
    if (file.closes.Changed(owner)) NotifyReleaseWaiters();
  }
  // Waits for the releases of files being replaced whose close has returned, so that they are complete. The kernel has
  // sent them, but other threads may not have served them yet.
  void WaitForReleases() EXCLUDES(closed_mutex_);

  // Called before a write or truncation: removes the file's capabilities and, if the caller has no right to them
  // (`set_ids`), the set-id bits, and notifies the kernel, which leaves this to us for direct I/O. If it fails, nothing
  // may be written.
  Result<void> ClearPrivileges(const InodePtr& inode, bool set_ids);

  // Makes the kernel drop the pages of a range, and its attributes of the inode. On success the kernel has none from
  // before the call. Waits for reads of these pages in progress, so never call it on a receiver.
  Result<void> DropPages(InodeId ino, const ByteRange& range);
  // Same for the pages of a direct write that must drop them.
  Result<void> DropPages(const Inode& inode, InodePages::DirectWrite& write);
  // Waits for these calls and makes later ones do nothing. A drop may make the kernel write dirty pages first, and soon
  // no receiver serves those. Call it once, before the receivers end.
  void EndDropping();
  // True if a shared mapping may have changed the inode since the store got its changes.
  bool MayHaveMappedChanges(InodeId ino);
  // Fetches the changes that shared mappings made to the inode; they are in the store on return. Waits like DropPages.
  Result<void> TakeMappedChanges(InodeId ino);
  // Same for every open file, because closing the connection would lose pages that the kernel has not written yet. Uses
  // no path: the mount point may be gone while other mounts of the filesystem remain. The receivers must still run.
  void TakeAllMappedChanges();

  // Makes the kernel drop everything it has cached of an inode whose data and size changed without it. Waits like
  // DropPages, and takes none of our locks.
  void ChangedPastKernel(InodeId ino);
  // A program puts files into a directory past the kernel, which may have other inodes by their names until Drop, and
  // old attributes of these. What a rename moves from the directory meanwhile gets, in the kernel, the wrong inode by
  // its new name, until this object ends.
  class ReplacedEntries {
   public:
    ReplacedEntries(Filesystem& filesystem, InodeId directory);
    ~ReplacedEntries();
    ReplacedEntries(const ReplacedEntries&) = delete;
    ReplacedEntries& operator=(const ReplacedEntries&) = delete;
    void Drop(std::span<const DirectFile> entries, std::span<const InodeId> replaced);

   private:
    Filesystem& filesystem_;
    const InodeId directory_;
  };
  // Call this between a rename and its reply: something other than a directory has this name now.
  void NoteMoved(InodeId directory, std::string_view name) EXCLUDES(moved_mutex_);
  void DropAttributes(InodeId ino);

  // Also with direct=off: a ticket is the key of WEIGHTFS_CHANGE_ATTRIBUTE, too.
  LeaseTickets& tickets() { return tickets_; }
  // The direct path; null with direct=off.
  LeaseServer* leases() { return leases_.get(); }
  Result<void> StartLeases();
  // Ends every lease while the receivers still run. Call it once, before Finish.
  void EndLeases();

  // Waits for every reply, then closes the handles that the kernel left open. `ended`: no request was received after
  // that time. Call it once, at the end.
  void Finish(CloseTracker::Clock::time_point ended = CloseTracker::Clock::now());

 private:
  template <typename Operation>
  static void RunOn(Executor& executor, uint32_t user, std::chrono::milliseconds pause, Reply reply,
                    Operation operation) {
    auto kept = std::make_shared<Reply>(std::move(reply));
    auto task = [kept, operation = std::move(operation)]() mutable { operation(std::move(*kept)); };
    pause.count() == 0 ? executor.Run(user, std::move(task)) : executor.RunAfter(pause, user, std::move(task));
  }

  // The calling receiver runs an operation that may take long. Not admitted when no other receiver would stay free.
  class BusyReceiver {
   public:
    explicit BusyReceiver(Filesystem& filesystem) : spare_(filesystem.spare_receivers_) {
      admitted_ = spare_.fetch_sub(1) > 0;
      if (!admitted_) ++spare_;
    }
    ~BusyReceiver() {
      if (admitted_) ++spare_;
    }
    BusyReceiver(const BusyReceiver&) = delete;
    BusyReceiver& operator=(const BusyReceiver&) = delete;
    bool admitted() const { return admitted_; }

   private:
    std::atomic<int>& spare_;
    bool admitted_ = false;
  };

  // Deletes an unlinked inode that is no longer used. A quick deletion runs on the calling receiver, because handing
  // over costs more. If the catalog is slow, one deletion in five seconds may delay look-ups.
  void DeleteUnused(const InodePtr& inode);
  // Waits for releases and forgets of deleted files that have not arrived yet, and for the deletions that have begun.
  void WaitForOrphans();
  void WaitForDeletions();
  // The process of a request; 0: unknown.
  uint64_t ProcessOf(const Reply& reply) { return owners_.Of(reply.caller().pid).process; }
  void NotifyReleaseWaiters() EXCLUDES(closed_mutex_);
  int DropEntry(InodeId directory, std::string_view name) const;

  Store& store_;
  const MountOptions& options_;
  std::atomic<uint64_t> listing_memory_{0};  // of all open directories
  RemovedNames removed_names_;
  Mutex moved_mutex_;
  int replacing_ GUARDED_BY(moved_mutex_) = 0;  // objects of ReplacedEntries
  std::vector<std::pair<InodeId, std::string>> moved_ GUARDED_BY(moved_mutex_);
  int moved_dropping_ GUARDED_BY(moved_mutex_) = 0;  // calls that drop what was in moved_
  std::condition_variable moved_dropped_;
  UserLimit opens_, waiting_values_, waiting_writes_, publications_;
  Mutex unused_mutex_;
  std::vector<InodePtr> unused_ GUARDED_BY(unused_mutex_);  // for the deleter
  std::atomic<int> spare_receivers_;                        // that may run long operations while one more stays free
  HandleRegistry<FileHandle> files_;
  HandleRegistry<DirectoryHandle> directories_;
  ThreadOwners owners_;
  Mutex closed_mutex_;
  // The handles whose releases may be on the way. The value is the number of the last close in the order of all.
  std::unordered_map<std::shared_ptr<FileHandle>, uint64_t> closed_ GUARDED_BY(closed_mutex_);
  uint64_t closes_ GUARDED_BY(closed_mutex_) = 0;
  std::condition_variable released_;  // a handle has left closed_, or was changed
  LeaseTickets tickets_;
  PageCacheTracker page_cache_;
  ReadHistory read_history_;
  RequestMetrics metrics_;
  Activity activity_;
  RequestCounter requests_, ends_, dropping_, commits_;
  std::atomic<bool> remounted_read_only_{false}, checking_catalog_{false};
  std::atomic<bool> ending_{false};                                       // no page is dropped, no program waited for
  std::atomic<std::chrono::steady_clock::time_point> slow_deletion_{{}};  // last deletion that took long
  std::atomic<std::chrono::steady_clock::time_point> last_timeout_{{}};   // last timeout of WaitForOrphans
  Executor executor_;                                                     // its threads use the members above
  Executor page_executor_;                                                // same, and may wait for replies of executor_
  Executor deleter_;                                                      // one thread; waits for none of the others
  std::unique_ptr<LeaseServer> leases_;                                   // same
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The write protocol: data written → one batch per file in the catalog → catalog synced, which flushes the devices →
// space freed. Only data that others wrote (lease holders) is flushed before its batch, because nobody has checked
// their checksums (wal/log_writer.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <set>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/commit_queue.h"
#include "store/file/file.h"
#include "store/file/inode.h"
#include "store/file/write_back.h"
#include "store/types.h"

namespace weightfs {

// Thread-safe. One thread runs the commit cycles. All requests that wait when a cycle begins share its flush and sync.
// CommitHere is a cycle of one file on the thread of its caller. A file is in one cycle at a time.
class Committer final : public CommitQueue {
 public:
  struct Options {
    std::chrono::milliseconds interval{5000};  // maximum time that changed data stays uncommitted
    std::chrono::milliseconds close_delay{1000};
    std::chrono::milliseconds replace_delay{30000};  // same, for a file that writers are replacing
    // Frees blocks that batches in the catalog have freed, once that is safe.
    std::function<void(std::vector<DeviceRun> runs)> retire;
    std::function<void()> release_freed = nullptr;  // CommitQueue::ReleaseFreed; null: nothing to do
    // Runs after a cycle, on its thread, which has freed the changes and the runs of so many extents.
    std::function<void(size_t extents)> freed = nullptr;
  };

  Committer(KvStore& catalog, DeviceSet& devices, SpaceManager& space, WriteBack& write_back, const Options& options);
  ~Committer();
  // Starts the thread; call it once, before the others. kAgain: there is no thread.
  Result<void> Start();

  void NoteChanged(const InodePtr& inode) override EXCLUDES(mutex_);
  void Commit(const InodePtr& inode, CommitLevel level, Done done, CommitOptions options = {}) override
      EXCLUDES(mutex_);
  Result<void> CommitHere(const InodePtr& inode, CommitOptions options) override EXCLUDES(mutex_);
  // Call this without locks before Commit: if a cycle is running, the writes of a few dirty blocks begin meanwhile.
  void StartEarly(const InodePtr& inode);
  void CommitAll(CommitLevel level, Done done) override EXCLUDES(mutex_);
  std::vector<InodePtr> Uncommitted() override EXCLUDES(mutex_);
  void ForgetError(const InodePtr& inode) override REQUIRES(inode->mutex) EXCLUDES(mutex_);
  void AddDeleted(const InodePtr& inode, std::vector<DeviceRun> runs) override EXCLUDES(mutex_);
  void ReleaseFreed() override {
    if (options_.release_freed) options_.release_freed();
  }
  bool failed() const override { return failed_.load() || catalog_.failed(); }

  // Call this when the file was closed; `last`: by its last writer. It is committed within the close delay. Its writes
  // begin at once if it probably gets a new name next (CommitHere), as other files did.
  void CommitSoon(const InodePtr& inode, bool last = true) EXCLUDES(mutex_);
  // Flushes the devices. When `done` runs, everything that others wrote to them before the call (DeviceSet::NoteWrite)
  // is on stable storage.
  void FlushDevices(Done done) EXCLUDES(mutex_);

  // `notify` runs on the thread of a cycle for each file that a failed write has reverted to its last commit, so that
  // callers drop what they cached of its data and size. It runs with notify_mutex_ and no other lock held. It must not
  // wait for the store or call this function. Null disables it; when the call returns, no notification is running.
  void OnReverted(std::function<void(InodeId)> notify) EXCLUDES(notify_mutex_);

  // Commits everything except the files that are being replaced, which keep their old content, and stops the thread.
  // Returns the first error, also of files whose failed writes were never reported. Later requests get kShutdown. Call
  // it when no CommitHere is running.
  Result<void> Stop();

  uint64_t commits() const { return commits_.load(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Request {
    InodePtr inode;  // null: only the catalog, or everything
    CommitLevel level;
    Done done;
    bool flush = false;  // flush the devices only
    CommitOptions options = {};
  };
  struct Deletion {
    InodePtr inode;
    std::vector<DeviceRun> runs;
  };
  struct Sealed;
  struct FileError;
  struct Cycle;

  void Add(Request request, bool all) EXCLUDES(mutex_);
  void Run();
  bool TakeWorkLocked(Cycle* cycle) REQUIRES(mutex_);
  // Returns of how many extents the cycle had changes or runs.
  size_t RunCycle(Cycle cycle);
  void Seal(Cycle* cycle);
  bool LeavesOut(const Inode& inode, bool urgent) const REQUIRES(inode.mutex);
  void StartWrites(const InodePtr& inode, bool urgent, bool waits = false) EXCLUDES(mutex_);
  void SealFile(const InodePtr& inode, bool urgent, std::vector<Sealed>* sealed) EXCLUDES(mutex_);
  void WaitForWrites(Cycle* cycle);
  // Notes the file's pending error, if it has one, for the callers of the cycle, and keeps the file in memory until the
  // error is reported.
  void NoteError(Cycle* cycle, const InodePtr& inode) REQUIRES(inode->mutex) EXCLUDES(mutex_);
  Result<void> FlushFirst(const Cycle& cycle);
  void WriteCatalog(Cycle* cycle);
  Result<void> WriteOne(Cycle* cycle, Sealed* sealed);
  static void AppendExtents(InodeId ino, const SealedFile& content, KvBatch* batch);
  Result<void> WriteBatch(Sealed* sealed, KvBatch batch) REQUIRES(sealed->inode->mutex);
  Result<bool> BuildBatch(const Sealed& sealed, ChecksumSegments& loaded, std::vector<uint64_t>* missing,
                          KvBatch* batch) REQUIRES(sealed.inode->mutex);
  void Finish(Cycle* cycle, CommitLevel level);
  static bool MayRevert(const Sealed& sealed) REQUIRES(sealed.inode->mutex);
  // `lock` holds the file's mutex, and not afterwards. Blocks that a device has failed to write stay unused until the
  // next mount, so that no other file gets them; `written`: there are none.
  void Revert(Sealed* sealed, bool written, MutexLock& lock) EXCLUDES(notify_mutex_);
  Error Fail(const Error& error, const char* what);
  static void WakeAll(const Cycle& cycle);

  KvStore& catalog_;
  DeviceSet& devices_;
  SpaceManager& space_;
  WriteBack& write_back_;
  const Options options_;
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> commits_{0};
  std::atomic<int> cycles_{0};    // that are running
  std::atomic<int> expected_{0};  // closed files that CommitHere will probably get
  Mutex mutex_;
  std::condition_variable wake_;
  std::set<std::pair<Clock::time_point, InodePtr>> changed_ GUARDED_BY(mutex_);  // by due time
  std::vector<InodePtr> closed_ GUARDED_BY(mutex_);
  std::unordered_multiset<InodePtr> in_cycles_ GUARDED_BY(mutex_);  // perhaps in no other list, nor in the catalog yet
  std::unordered_set<InodePtr> failed_files_ GUARDED_BY(mutex_);  // their errors have not been reported
  Clock::time_point closed_due_ GUARDED_BY(mutex_);
  std::vector<Request> requests_ GUARDED_BY(mutex_);
  std::vector<Deletion> deletions_ GUARDED_BY(mutex_);
  Clock::time_point deletions_due_ GUARDED_BY(mutex_);
  bool all_ GUARDED_BY(mutex_) = false;  // a request is for all files
  bool stopping_ GUARDED_BY(mutex_) = false;
  Mutex notify_mutex_;  // held during a notification, so that none is running after OnReverted(nullptr)
  std::function<void(InodeId)> reverted_ GUARDED_BY(notify_mutex_);
  std::thread thread_;
};

}  // namespace weightfs

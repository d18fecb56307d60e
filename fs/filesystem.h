// SPDX-License-Identifier: Apache-2.0
// What the operations of a mount share. Private to fs/.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "fs/executor.h"
#include "fs/fuse_api.h"
#include "fs/handles.h"
#include "fs/kernel_features.h"
#include "fs/mount_options.h"
#include "fs/page_cache.h"
#include "fs/read_history.h"
#include "fs/receive_buffer.h"
#include "fs/reply.h"
#include "store/store.h"

namespace weightfs {

class LeaseServer;

constexpr ByteRange kWholeFile{0, uint64_t{1} << 63};

// Thread-safe once the session has agreed with the kernel, which alone sets `features` and `session`.
class Filesystem {
 public:
  Filesystem(Store& store, const MountOptions& options);
  ~Filesystem();

  Store& store() { return store_; }
  Namespace& names() { return store_.names(); }
  const MountOptions& options() const { return options_; }
  // Nothing may be changed: since the start, since an error, or since a remount. The kernel refuses most changes
  // itself; this is for those that come by leases.
  bool read_only() const { return options_.read_only || store_.read_only() || remounted_read_only_; }
  void SetReadOnly(bool read_only) { remounted_read_only_ = read_only; }
  // Leased commits under way: each looks at read_only() after it is counted here. After SetReadOnly(true) and
  // WaitForNone() no lease changes the store any more.
  RequestCounter& commits() { return commits_; }
  double cache_seconds() const { return options_.cache_seconds; }
  HandleRegistry<FileHandle>& files() { return files_; }
  HandleRegistry<DirectoryHandle>& directories() { return directories_; }
  PageCacheTracker& page_cache() { return page_cache_; }
  ReadHistory& read_history() { return read_history_; }
  RequestCounter& requests() { return requests_; }
  // Releases and forgets that receivers are at: the last of a deleted file's gives its space back.
  RequestCounter& ends() { return ends_; }

  UsedFeatures features;
  fuse_session* session = nullptr;
  ReceiveBuffers* buffers = nullptr;  // for statistics

  // Runs `operation(reply)` on a thread that may wait, but not for pages of the kernel.
  template <typename Operation>
  void RunLater(Reply reply, Operation operation) {
    auto kept = std::make_shared<Reply>(std::move(reply));
    executor_.Run([kept, operation = std::move(operation)]() mutable { operation(std::move(*kept)); });
  }

  // The same for what waits for pages (DropPages); never on the calling thread. There are as many at once as the kernel
  // has requests under way. Pages may wait for an answer of RunLater: the kernel writes none of a file that it
  // truncates.
  template <typename Operation>
  void RunElsewhere(Reply reply, Operation operation) {
    auto kept = std::make_shared<Reply>(std::move(reply));
    page_executor_.RunElsewhere([kept, operation = std::move(operation)]() mutable { operation(std::move(*kept)); });
  }

  // Answers with an entry, or the error, and counts that the kernel knows the inode now.
  void ReplyEntry(Reply reply, const Result<Attributes>& entry);

  // Opens for the kernel: the answer's flags, and the handle in `file`.
  uint32_t AddHandle(const InodePtr& inode, fuse_file_info& file);
  OpenMode ChooseMode(const InodePtr& inode, int flags);
  // Undoes AddHandle, also for a release.
  void DropHandle(uint64_t number);

  // Before somebody writes to a file or truncates it: takes away its capabilities and, where he has no right to them
  // (`set_ids`), the set-id bits, and tells the kernel, which leaves all of it to us for direct I/O. Where this fails
  // nothing may be written.
  Result<void> ClearPrivileges(const InodePtr& inode, bool set_ids);

  // Makes the kernel drop pages, and its attributes of the inode; on success it has none that it had before. Waits for
  // reads of them under way, so never on a receiving thread.
  Result<void> DropPages(InodeId ino, const ByteRange& range);
  // The same for the pages of a direct write that must drop them.
  Result<void> DropPages(const Inode& inode, InodePages::DirectWrite& write);
  // Waits for those calls, and lets later ones do nothing: the kernel may send changed pages first, and soon nobody
  // serves it. Once, before the receivers end.
  void EndDropping();
  // What shared mappings of the inode had changed is in the store on return. Waits like DropPages.
  Result<void> TakeMappedChanges(InodeId ino);
  // The same for every open file: closing the connection would lose what the kernel has not sent yet. Asks for no path,
  // for the directory of the mount may be free while other mounts of it are not. The receivers still serve.
  void TakeAllMappedChanges();

  // The data and the size of an inode were changed by others than the kernel: it shall know nothing of them any more.
  // Waits like DropPages, and takes none of our locks.
  void ChangedPastKernel(InodeId ino);
  // The same for entries of a directory, and for the attributes of the inodes that they led to.
  void DropEntries(InodeId directory, std::span<const DirectFile> entries, std::span<const InodeId> replaced);
  void DropAttributes(InodeId ino);

  // The direct path; null where the option direct= is off.
  LeaseServer* leases() { return leases_.get(); }
  Result<void> StartLeases();
  // Ends every lease, while the receivers still serve. Once, before Finish.
  void EndLeases();

  // Waits for every answer, then closes what the kernel left open. Once, at the end.
  void Finish();

 private:
  // For deleted files whose end is under way.
  void WaitForOrphans();

  Store& store_;
  const MountOptions& options_;
  HandleRegistry<FileHandle> files_;
  HandleRegistry<DirectoryHandle> directories_;
  PageCacheTracker page_cache_;
  ReadHistory read_history_;
  RequestCounter requests_, ends_, dropping_, commits_;
  std::atomic<bool> remounted_read_only_{false};
  std::atomic<bool> ending_{false};                                      // no pages are dropped any more
  std::atomic<std::chrono::steady_clock::time_point> last_timeout_{{}};  // for orphans, the last time
  Executor executor_;                                                    // its threads use the rest
  Executor page_executor_;               // likewise, and may wait for what executor_ answers
  std::unique_ptr<LeaseServer> leases_;  // likewise
};

}  // namespace weightfs

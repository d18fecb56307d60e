// SPDX-License-Identifier: Apache-2.0
#include "fs/filesystem.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <utility>

#include "common/log.h"
#include "fs/backing.h"
#include "fs/lease_server.h"
#include "store/file/file.h"

namespace weightfs {
namespace {

// Of each user.
constexpr unsigned kExecutorThreads = 4, kPageThreads = 2;
constexpr uint64_t kMostOpens = 65536;              // of a user
constexpr uint64_t kMostWaiting = 16 * kMiB;        // of values, and of writes, of a user
constexpr uint64_t kMostPublications = 2;           // of a user
// The deletion of a larger file takes longer than a receiver may be busy.
constexpr uint64_t kQuickDeletion = 64 * kMiB / kBlockSize;
// After a deletion that took longer, the deleter has the work for a while: the catalog is busy.
constexpr std::chrono::milliseconds kQuickly{4};
constexpr std::chrono::seconds kSlowCatalog{5};
// One request reads a smaller file either way, so even its first read fills the page cache.
constexpr uint64_t kSmallFile = 128 * kKiB;
constexpr uint32_t kNobody = UINT32_MAX;  // a user of the executors, for the work of no user
// The maximum wait for a release or forget that has not arrived yet: on a busy machine, and soon after such a wait
// timed out, because somebody may just have a deleted file open.
constexpr std::chrono::milliseconds kUnservedEnds{250}, kUnservedEndsAgain{5};
constexpr std::chrono::seconds kSoon{5};

// `error`: 0, or one below it.
void LogKeptEntries(int error) {
  if (error != 0) spdlog::error("the kernel did not forget what replaced entries were (error {})", -error);
}

bool IsReplacing(Inode& inode) {
  MutexLock lock(inode.mutex);
  return inode.file && inode.file->commit().replacing();
}

}  // namespace

Filesystem::Filesystem(Store& store, const MountOptions& options)
    : store_(store),
      options_(options),
      opens_(kMostOpens),
      waiting_values_(kMostWaiting),
      waiting_writes_(kMostWaiting),
      publications_(kMostPublications),
      spare_receivers_(static_cast<int>(options.threads) - 1),
      executor_(kExecutorThreads),
      page_executor_(kPageThreads),
      deleter_(1) {
  names().OnOrphan([this](const InodePtr& inode) { DeleteUnused(inode); });
  // The kernel may have cached pages and a size that a failed write has reverted.
  store_.OnReverted([this](InodeId ino) {
    requests_.Begin();  // Finish waits for it
    page_executor_.Run(kNobody, [this, ino] {
      ChangedPastKernel(ino);
      requests_.End();
    });
  });
  // The kernel does not wait until the last close of a deleted file has freed its space. An operation that needs space
  // waits for it, also for a close that another thread has received but not begun to serve.
  store_.files().WaitForCloses([this] {
    WaitForOrphans();
    ends_.WaitForNone();
    WaitForDeletions();
  });
}

Result<void> Filesystem::Start() {
  for (Executor* executor : {&executor_, &page_executor_, &deleter_}) RETURN_IF_ERROR(executor->Start());
  return {};
}

Filesystem::~Filesystem() {
  store_.OnReverted(nullptr);
  store_.files().WaitForCloses(nullptr);
  names().OnOrphan(nullptr);
}

void Filesystem::DeleteUnused(const InodePtr& inode) {
  bool quick;
  {
    MutexLock lock(inode->mutex);
    quick = inode->attributes.blocks <= kQuickDeletion;
  }
  using Clock = std::chrono::steady_clock;
  if (const auto begin = Clock::now(); quick && begin - slow_deletion_.load() > kSlowCatalog) {
    names().DeleteOrphan(inode);
    if (const auto end = Clock::now(); end - begin > kQuickly) slow_deletion_ = end;
    return;
  }
  {
    MutexLock lock(unused_mutex_);
    unused_.push_back(inode);
    if (unused_.size() > 1) return;  // a task is queued
  }
  requests_.Begin();  // Finish waits for it
  deleter_.Run(kNobody, [this] {
    std::vector<InodePtr> unused;
    {
      MutexLock lock(unused_mutex_);
      std::swap(unused, unused_);
    }
    // Together they need the namespace's mutex less often than their creation and removal does.
    names().DeleteOrphans(unused);
    requests_.End();
  });
}

// The deleter runs its tasks in order.
void Filesystem::WaitForDeletions() {
  std::promise<void> reached;
  deleter_.Run(kNobody, [&reached] { reached.set_value(); });
  reached.get_future().wait();
}

void Filesystem::WaitForOrphans() {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const bool again = begin - last_timeout_.load() < kSoon;
  const auto end = begin + (again ? kUnservedEndsAgain : kUnservedEnds);
  while (names().HasOrphans()) {
    if (Clock::now() >= end) {
      if (!again) last_timeout_ = end;
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Filesystem::ReplyEntry(Reply reply, const Result<Attributes>& entry) {
  if (!entry.has_value()) return reply.Fail(entry.error());
  // Count it first: the kernel may forget the inode before this thread continues after the reply.
  store_.inodes().AddLookups(entry->ino, 1);
  if (!reply.Entry(*entry, cache_seconds())) names().Forget(entry->ino, 1);
}

OpenCompletion Filesystem::AddHandle(const InodePtr& inode, fuse_file_info& file, UserLimit::Share share,
                                     const Reply& reply) {
  auto handle = std::make_shared<FileHandle>();
  handle->share = std::move(share);
  handle->inode = inode;
  handle->flags = file.flags;
  handle->user = reply.caller().uid;
  handle->mode = ChooseMode(inode, file.flags);
  std::shared_ptr<Backing> backing;
  const auto others = page_cache_.Find(inode->id);
  if (!handle->writable() && (others == nullptr || !others->is_open())) {
    backing = Backing::Make(store_, inode, fuse_session_fd(session));
  }
  PageCacheTracker::Opened opened =
      page_cache_.Open(inode->id, handle->mode, handle->mappable(), std::move(backing));
  handle->pages = std::move(opened.pages);
  OpenCompletion open;
  if (opened.backing != nullptr) {
    handle->mode = OpenMode::kPassthrough;
    open.backing_id = opened.backing->id();
  } else if (handle->mode == OpenMode::kDirect) {
    file.direct_io = 1;
    if (features.parallel_direct_writes) open.flags = kOpenParallelDirectWrites;
  } else {
    // Pages of a hot file are valid, because direct writes drop the pages that they make stale.
    file.keep_cache = handle->mode == OpenMode::kHot || opened.keep ? 1 : 0;
  }
  // A close of a handle that cannot write has nothing to report (Flush), so the kernel need not send it.
  file.noflush = handle->writable() ? 0 : 1;
  if (handle->writable()) handle->closes.Opened(ProcessOf(reply));
  file.fh = files_.Add(std::move(handle));
  return open;
}

OpenMode Filesystem::ChooseMode(const InodePtr& inode, int flags) {
  const OpenMode mode = ChooseOpenMode(flags, features.direct_io_allow_mmap);
  if (mode != OpenMode::kDirect || !features.direct_io_allow_mmap || !options_.page_cache) return mode;
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_DIRECT) != 0) return mode;
  const uint64_t size = SizeOf(*inode);
  return size <= kSmallFile || read_history_.IsHot(inode->id, size) ? OpenMode::kHot : mode;
}

void Filesystem::DropHandle(uint64_t number) {
  const std::shared_ptr<FileHandle> handle = files_.Remove(number);
  if (handle == nullptr) return;
  tickets_.Forget(handle.get());
  const bool counted = handle->mode == OpenMode::kDirect || handle->mode == OpenMode::kHot;
  if (!handle->writable() && counted && (handle->flags & O_DIRECT) == 0) {
    read_history_.Closed(handle->inode->id, SizeOf(*handle->inode), handle->read_bytes.load(),
                         handle->mode == OpenMode::kHot);
  }
  page_cache_.Close(handle->inode->id, handle->mode, handle->mappable());
  store_.CloseFile(handle->inode, handle->reported_failure.load(), handle->writable());
  MutexLock lock(closed_mutex_);
  if (closed_.erase(handle) > 0) released_.notify_all();
}

void Filesystem::NoteClose(const std::shared_ptr<FileHandle>& file, uint64_t owner, const Reply& reply) {
  const uint64_t process = file->closes.opener() == 0 ? 0 : ProcessOf(reply);
  const auto now = CloseTracker::Clock::now();
  file->closes.Closed(owner, process, now);
  if (!IsReplacing(*file->inode)) return;
  MutexLock lock(closed_mutex_);
  if (file->closes.IsClosed(now)) closed_[file] = ++closes_;
}

void Filesystem::NotifyReleaseWaiters() {
  MutexLock lock(closed_mutex_);
  released_.notify_all();
}

void Filesystem::WaitForReleases() {
  const auto since = CloseTracker::Clock::now() - options_.release_delay;
  MutexLock lock(closed_mutex_);
  const uint64_t last = closes_;
  const auto waits = [&](const auto& entry) {
    const auto& [file, number] = entry;
    return number <= last && file->closes.IsClosed(since);
  };
  released_.wait_for(lock.native(), options_.release_wait, [&]() REQUIRES(closed_mutex_) {
    return std::none_of(closed_.begin(), closed_.end(), waits);
  });
  // No release has followed, so those closes were of copies. Later ones may not be.
  std::erase_if(closed_, [last](const auto& entry) { return entry.second <= last; });
}

Result<void> Filesystem::ClearPrivileges(const InodePtr& inode, bool set_ids) {
  ASSIGN_OR_RETURN(const bool changed, names().ClearPrivileges(inode, set_ids));
  if (changed) DropAttributes(inode->id);
  return {};
}

void Filesystem::DropAttributes(InodeId ino) {
  constexpr off_t kAttributesOnly = -1;
  const int status = fuse_lowlevel_notify_inval_inode(session, ino.value, kAttributesOnly, 0);
  if (status != 0 && status != -ENOENT)
    spdlog::error("the kernel did not forget the attributes of inode {} (error {})", ino.value, -status);
}

Result<void> Filesystem::DropPages(InodeId ino, const ByteRange& range) {
  // A size of 0 means the rest of the file.
  const uint64_t size = range.end == kWholeFile.end ? 0 : range.end - range.begin;
  dropping_.Begin();
  int status = 0;
  if (!ending_.load()) {
    status =
        fuse_lowlevel_notify_inval_inode(session, ino.value, static_cast<off_t>(range.begin), static_cast<off_t>(size));
  }
  dropping_.End();
  if (status == 0 || status == -ENOENT) return {};  // ENOENT: the kernel has neither the inode nor its pages
  spdlog::error("the kernel did not drop cached pages of inode {}: {}", ino.value, std::strerror(-status));
  return ErrorCode::kIo;
}

Result<void> Filesystem::DropPages(const Inode& inode, InodePages::DirectWrite& write) {
  return write.DropPages([&](const ByteRange& range) { return DropPages(inode.id, range); });
}

void Filesystem::EndDropping() {
  ending_.store(true);  // set it before waiting: every later call sees it
  dropping_.WaitForNone();
}

bool Filesystem::MayHaveMappedChanges(InodeId ino) {
  const auto pages = page_cache_.Find(ino);
  return pages != nullptr && pages->MayHoldChanges();
}

Result<void> Filesystem::TakeMappedChanges(InodeId ino) {
  if (!MayHaveMappedChanges(ino)) return {};
  return DropPages(ino, kWholeFile);  // the kernel writes dirty pages back first
}

// A mapping keeps its file open. syncfs(2) is not an alternative: since Linux 6.18 it does not wait for a FUSE server.
void Filesystem::TakeAllMappedChanges() {
  for (const InodeId ino : page_cache_.AllThatMayHoldChanges()) (void)TakeMappedChanges(ino);  // logged
}

void Filesystem::ChangedPastKernel(InodeId ino) {
  read_history_.Forget(ino);
  (void)DropPages(ino, kWholeFile);  // logged
}

Filesystem::ReplacedEntries::ReplacedEntries(Filesystem& filesystem, InodeId directory)
    : filesystem_(filesystem), directory_(directory) {
  MutexLock lock(filesystem_.moved_mutex_);
  ++filesystem_.replacing_;
}

void Filesystem::ReplacedEntries::Drop(std::span<const DirectFile> entries, std::span<const InodeId> replaced) {
  int error = 0;
  for (const DirectFile& entry : entries) error = std::min(error, filesystem_.DropEntry(directory_, entry.name));
  LogKeptEntries(error);
  (void)filesystem_.DropPages(directory_, kWholeFile);  // logged
  // Some replaced inodes have other names or are open.
  for (const InodeId ino : replaced) {
    if (filesystem_.store_.inodes().lookups(ino) > 0) filesystem_.DropAttributes(ino);
  }
}

// A rename that the kernel has begun before Drop is in the list: Drop waits for the lock of its directory.
Filesystem::ReplacedEntries::~ReplacedEntries() {
  MutexLock lock(filesystem_.moved_mutex_);
  while (!filesystem_.moved_.empty() || filesystem_.moved_dropping_ > 0) {
    if (filesystem_.moved_.empty()) {  // another one has them
      filesystem_.moved_dropped_.wait(lock.native());
      continue;
    }
    const auto moved = std::exchange(filesystem_.moved_, {});
    ++filesystem_.moved_dropping_;
    lock.Unlock();
    int error = 0;
    for (const auto& [directory, name] : moved) error = std::min(error, filesystem_.DropEntry(directory, name));
    LogKeptEntries(error);
    lock.Lock();
    --filesystem_.moved_dropping_;
    filesystem_.moved_dropped_.notify_all();
  }
  --filesystem_.replacing_;
}

// Also what was moved before counts, and may be moved again.
void Filesystem::NoteMoved(InodeId directory, std::string_view name) {
  MutexLock lock(moved_mutex_);
  if (replacing_ > 0) moved_.emplace_back(directory, name);
}

// Returns 0, or an error below it.
int Filesystem::DropEntry(InodeId directory, std::string_view name) const {
  const int status = fuse_lowlevel_notify_inval_entry(session, directory.value, name.data(), name.size());
  return status == -ENOENT ? 0 : status;  // ENOENT: the kernel does not have it
}

weightfs_stats Filesystem::Stats() const {
  const StoreStatistics store = store_.statistics();
  const SpaceStatistics space = store_.Space();
  weightfs_stats out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.read_only = read_only() ? 1 : 0;
  out.read_bytes = store.read_bytes;
  out.written_bytes = store.written_bytes;
  out.device_read_bytes = store.device_read_bytes;
  out.device_written_bytes = store.device_written_bytes;
  out.commits = store.commits;
  out.flushes = store.flushes;
  out.checksum_errors = store.checksum_errors;
  out.buffer_capacity = store.buffer_capacity;
  out.buffer_in_use = store.buffer_in_use;
  out.dirty_bytes = store.dirty_bytes;
  out.resident_inodes = store.resident_inodes;
  out.total_bytes = ToBytes(space.total).value;
  out.free_bytes = ToBytes(space.free).value;
  out.available_bytes = ToBytes(space.available).value;
  if (leases_ != nullptr) out.leases = leases_->leases();
  out.pinned_bytes = store.pinned_bytes;
  out.granted_bytes = store.granted_bytes;
  out.leased_read_bytes = store.leased_read_bytes;
  out.leased_written_bytes = store.leased_written_bytes;
  out.device_requests = store.device_requests;
  out.log_bytes = store.log.bytes;
  out.log_intact = store.log.intact ? 1 : 0;
  out.requests = requests_.begun();
  if (buffers != nullptr) {
    const BufferPool& pool = buffers->shared();
    out.write_buffers = pool.capacity() * pool.buffer_size().value;
    out.write_buffers_in_use = pool.in_use() * pool.buffer_size().value;
  }
  return out;
}

Result<void> Filesystem::StartLeases() {
  if (options_.direct == DirectAccess::kOff) return {};
  ASSIGN_OR_RETURN(leases_, LeaseServer::Start(*this));
  return {};
}

void Filesystem::EndLeases() {
  if (leases_ != nullptr) leases_->Stop();
}

void Filesystem::Finish(CloseTracker::Clock::time_point ended) {
  ending_.store(true);
  EndLeases();
  store_.OnReverted(nullptr);
  requests_.WaitForNone();
  {
    MutexLock lock(closed_mutex_);
    closed_.clear();
  }
  auto files = files_.RemoveAll();
  // Those first: a writer that has not closed a file keeps its replacement from being complete.
  const auto is_closed = [since = ended - options_.release_delay](const auto& handle) {
    return !handle->writable() || handle->closes.IsClosed(since);
  };
  std::partition(files.begin(), files.end(), is_closed);
  for (const auto& handle : files) {
    page_cache_.Close(handle->inode->id, handle->mode, handle->mappable());
    if (is_closed(handle)) {
      store_.CloseFile(handle->inode, handle->reported_failure.load(), handle->writable());
    } else {
      names().Close(handle->inode, /*writes=*/true);  // a file that it was replacing keeps its old content
    }
  }
  for (const auto& handle : directories_.RemoveAll()) names().Close(handle->inode);
  requests_.WaitForNone();  // the deletions that these closes began
}

}  // namespace weightfs

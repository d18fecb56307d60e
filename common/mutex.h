// SPDX-License-Identifier: Apache-2.0
// Mutex with clang's thread-safety annotations; plain std::mutex elsewhere.
//
// The lock order of a mount, outermost first. A thread holds at most one lock of each line at a time:
//   Committer::notify_mutex_, LeaseServer::mutex_, LeaseRequests::mutex_ (each taken with no other lock held)
//   Namespace::mutex_
//   Inode::mutex (of several only in an InodeTransaction, by number; under Namespace::mutex_ unless all are immutable)
//   LoggedKvStore::order_
//   LogWriter::io_ (held over writes and flushes of the devices)
//   Committer::mutex_, WriteBack::mutex_, InodeTable::mutex_
//   SpaceManager::collecting_
//   SpaceManager::mutex_
//   ExtentAllocator's groups
//   ReadCache::mutex_
//   ReadChunk::mutex_, BufferPool::mutex_
//   ThreadedRing::mutex_ and the other locks of a device queue
//   IoRing::mutex_
// All other locks of store/, meta/ and fs/ (Executor::mutex_, under notify_mutex_, included) are leaves, except
// PageCacheTracker::mutex_ → InodePages::mutex_. In client/ and s3/ all are leaves, except Operation::mutex_ → its
// handle's tracker. No lock but LogWriter::io_ and DeviceSet::flushing_ is held over device I/O, durable commits or
// replies.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WEIGHTFS_TSA(x) __attribute__((x))
#else
#define WEIGHTFS_TSA(x)
#endif
#define CAPABILITY(x) WEIGHTFS_TSA(capability(x))
#define SCOPED_CAPABILITY WEIGHTFS_TSA(scoped_lockable)
#define GUARDED_BY(x) WEIGHTFS_TSA(guarded_by(x))
#define REQUIRES(...) WEIGHTFS_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) WEIGHTFS_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) WEIGHTFS_TSA(acquire_capability(__VA_ARGS__))
#define RELEASE(...) WEIGHTFS_TSA(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS WEIGHTFS_TSA(no_thread_safety_analysis)

namespace weightfs {

class CAPABILITY("mutex") Mutex {
 public:
  // A restriction on a thread that holds the mutex.
  enum class Rule : unsigned char { kNone, kNoCatalogReads };

  explicit Mutex(Rule rule = Rule::kNone) : rule_(rule) {}
  void lock() ACQUIRE() {
    mutex_.lock();
    Note(1);
  }
  void unlock() RELEASE() {
    Note(-1);
    mutex_.unlock();
  }
  std::mutex& native() { return mutex_; }

  // False while the current thread holds a mutex under which the catalog must not be read.
  static bool MayReadCatalog() { return no_catalog_reads_ == 0; }

 private:
  void Note(int locks) {
    if (rule_ == Rule::kNoCatalogReads) no_catalog_reads_ += locks;
  }

  static inline thread_local int no_catalog_reads_ = 0;
  std::mutex mutex_;
  const Rule rule_;
};

// A scoped lock that can wait on a condition and can be released early.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { Lock(); }
  ~MutexLock() RELEASE() {
    if (lock_.owns_lock()) Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  void Unlock() RELEASE() {
    lock_.release();
    mutex_.unlock();
  }
  void Lock() ACQUIRE() {
    mutex_.lock();
    lock_ = std::unique_lock(mutex_.native(), std::adopt_lock);
  }
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  Mutex& mutex_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace weightfs

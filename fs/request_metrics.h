// SPDX-License-Identifier: Apache-2.0
// Numbers and latencies of the requests of a mount, by kind, and the activity of processes and files.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "lease/ioctl.h"

namespace weightfs {

// In the order of weightfs_metrics::kinds.
enum class RequestKind : unsigned char {
  kLookup,
  kGetAttributes,
  kSetAttributes,
  kCreate,  // of files, directories, links
  kOpen,
  kRead,
  kWrite,
  kSync,
  kClose,
  kList,
  kRemove,
  kRename,
  kExtendedAttributes,
  kOther,
  kLease,  // requests for leases; their latency includes that of a durable commit
};
inline constexpr size_t kRequestKinds = 15;
static_assert(kRequestKinds <= WEIGHTFS_METRICS_KINDS);

// "lookup", "getattr", …
std::string_view RequestKindName(RequestKind kind);

// A request as it arrived.
struct RequestOrigin {
  using Clock = std::chrono::steady_clock;
  RequestKind kind = RequestKind::kOther;
  Clock::time_point begin;
  uint64_t inode = 0;
  int32_t process = 0;
};

// Reads the header of a FUSE request (struct fuse_in_header), which has at least 40 bytes.
RequestOrigin OriginOf(const void* header);

// The request that this thread is processing; Reply copies it.
RequestOrigin& CurrentRequest();

// Thread-safe and lock-free.
class RequestMetrics {
 public:
  // `bytes` that the request read or wrote.
  void Record(const RequestOrigin& origin, uint64_t bytes, bool failed);
  weightfs_metrics Snapshot() const;

  // The bucket of a latency. Buckets double every WEIGHTFS_METRICS_STEPS and begin at 1 microsecond; the first also
  // holds everything below, the last everything above.
  static size_t BucketOf(std::chrono::nanoseconds latency);
  // The upper bound of a bucket; the last has none.
  static std::chrono::nanoseconds BoundOf(size_t bucket);

 private:
  struct Kind {
    std::atomic<uint64_t> count{0}, errors{0}, bytes{0}, nanoseconds{0};
    std::array<std::atomic<uint64_t>, WEIGHTFS_METRICS_BUCKETS> buckets{};
  };
  std::array<Kind, kRequestKinds> kinds_;
};

// What each process and each file has done since somebody began to look, for `weightfs top`. Costs one look at an
// atomic while nobody does. Thread-safe.
class Activity {
 public:
  using Clock = std::chrono::steady_clock;
  void Record(const RequestOrigin& origin, uint64_t bytes) {
    if (origin.begin < watched_until_.load(std::memory_order_relaxed)) Add(origin, bytes, false);
  }
  // Bytes that a lease covers: read when it begins, or written when it is committed. The kind is kRead or kWrite.
  void RecordLease(const RequestOrigin& origin, uint64_t bytes) {
    if (origin.begin < watched_until_.load(std::memory_order_relaxed)) Add(origin, bytes, true);
  }
  // Returns the busiest entries, and watches for some seconds from now on. Counts begin with the first call.
  weightfs_top Look() EXCLUDES(mutex_);

 private:
  using Table = std::map<uint64_t, weightfs_top_entry>;
  static constexpr size_t kMostEntries = 4096;  // of a table; what comes later is counted as entry 0

  void Add(const RequestOrigin& origin, uint64_t bytes, bool leased) EXCLUDES(mutex_);
  static weightfs_top_entry& Find(Table& table, uint64_t id);

  std::atomic<Clock::time_point> watched_until_{};
  Mutex mutex_;
  Clock::time_point watching_since_ GUARDED_BY(mutex_);
  Table processes_ GUARDED_BY(mutex_), files_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

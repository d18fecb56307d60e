// SPDX-License-Identifier: Apache-2.0
// Numbers and latencies of the requests of a mount, by kind.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>

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

// When this thread last recorded a request. Reading the clock costs as much as the rest of the recording.
RequestOrigin::Clock::time_point& LastRecord();

// Of one kind, since the mount. As in weightfs_kind_metrics, but the buckets do not wrap around.
struct RequestTotals {
  uint64_t count = 0, errors = 0, bytes = 0, nanoseconds = 0;
  std::array<uint64_t, WEIGHTFS_METRICS_BUCKETS> buckets{};
};

// Thread-safe and lock-free. Each receiver has counters of its own, because several processors that change the same
// ones would wait for each other.
class RequestMetrics {
 public:
  // `bytes` that the request read or wrote.
  void Record(const RequestOrigin& origin, uint64_t bytes, bool failed);
  std::array<RequestTotals, kRequestKinds> Totals() const;
  weightfs_metrics Snapshot() const;

  // The bucket of a latency. Buckets double every WEIGHTFS_METRICS_STEPS and begin at 1 microsecond; the first also
  // holds everything below, the last everything above.
  static size_t BucketOf(std::chrono::nanoseconds latency);
  // The upper bound of a bucket; the last has none.
  static std::chrono::nanoseconds BoundOf(size_t bucket);

 private:
  // The number of requests is the sum of the buckets.
  struct Kind {
    std::atomic<uint64_t> errors{0}, bytes{0}, nanoseconds{0};
    std::array<std::atomic<uint64_t>, WEIGHTFS_METRICS_BUCKETS> buckets{};
  };
  struct alignas(64) Shard {
    std::array<Kind, kRequestKinds> kinds;
  };
  static constexpr size_t kShards = 4;

  Shard& OwnShard();

  std::array<Shard, kShards> shards_;
};

}  // namespace weightfs

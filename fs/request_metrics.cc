// SPDX-License-Identifier: Apache-2.0
#include "fs/request_metrics.h"

#include <linux/fuse.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace weightfs {
namespace {

// Newer than the headers of some distributions.
constexpr uint32_t kTmpfile = 51, kStatx = 52;
constexpr size_t kSteps = WEIGHTFS_METRICS_STEPS, kBuckets = WEIGHTFS_METRICS_BUCKETS;

RequestKind KindOf(uint32_t opcode) {
  switch (opcode) {
    case FUSE_LOOKUP: return RequestKind::kLookup;
    case FUSE_GETATTR:
    case kStatx: return RequestKind::kGetAttributes;
    case FUSE_SETATTR: return RequestKind::kSetAttributes;
    case FUSE_CREATE:
    case kTmpfile:
    case FUSE_MKNOD:
    case FUSE_MKDIR:
    case FUSE_SYMLINK:
    case FUSE_LINK: return RequestKind::kCreate;
    case FUSE_OPEN:
    case FUSE_OPENDIR: return RequestKind::kOpen;
    case FUSE_READ: return RequestKind::kRead;
    case FUSE_WRITE: return RequestKind::kWrite;
    case FUSE_FSYNC:
    case FUSE_FSYNCDIR:
    case FUSE_SYNCFS: return RequestKind::kSync;
    case FUSE_FLUSH:
    case FUSE_RELEASE:
    case FUSE_RELEASEDIR: return RequestKind::kClose;
    case FUSE_READDIR:
    case FUSE_READDIRPLUS: return RequestKind::kList;
    case FUSE_UNLINK:
    case FUSE_RMDIR: return RequestKind::kRemove;
    case FUSE_RENAME:
    case FUSE_RENAME2: return RequestKind::kRename;
    case FUSE_GETXATTR:
    case FUSE_SETXATTR:
    case FUSE_LISTXATTR:
    case FUSE_REMOVEXATTR: return RequestKind::kExtendedAttributes;
    default: return RequestKind::kOther;
  }
}

// The bound of each bucket in nanoseconds.
constexpr auto kBounds = [] {
  constexpr double kWithinOctave[kSteps] = {1, 1.189207115002721, 1.4142135623730951, 1.681792830507429};
  std::array<int64_t, kBuckets> bounds{};
  for (size_t i = 0; i < kBuckets; ++i) {
    bounds[i] = static_cast<int64_t>(1000 * kWithinOctave[i % kSteps] * static_cast<double>(uint64_t{1} << i / kSteps));
  }
  return bounds;
}();

}  // namespace

std::string_view RequestKindName(RequestKind kind) {
  constexpr std::array<std::string_view, kRequestKinds> kNames = {"lookup", "getattr", "setattr", "create", "open",
                                                                  "read",   "write",   "sync",    "close",  "list",
                                                                  "remove", "rename",  "xattr",   "other",  "lease"};
  return kNames[static_cast<size_t>(kind)];
}

RequestOrigin OriginOf(const void* header) {
  fuse_in_header in{};
  std::memcpy(&in, header, sizeof(in));
  return {KindOf(in.opcode), RequestOrigin::Clock::now(), in.nodeid, static_cast<int32_t>(in.pid)};
}

RequestOrigin& CurrentRequest() {
  thread_local RequestOrigin current;
  return current;
}

RequestOrigin::Clock::time_point& LastRecord() {
  thread_local RequestOrigin::Clock::time_point last;
  return last;
}

size_t RequestMetrics::BucketOf(std::chrono::nanoseconds latency) {
  const int64_t value = latency.count();
  if (value <= kBounds[0]) return 0;
  // The first bucket whose bound is not below the value: its power of two, then the step within it.
  const auto octave = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(value) / 1000)) - 1;
  size_t bucket = std::min(octave * kSteps, kBuckets - 1);
  while (bucket < kBuckets - 1 && kBounds[bucket] < value) ++bucket;
  return bucket;
}

std::chrono::nanoseconds RequestMetrics::BoundOf(size_t bucket) { return std::chrono::nanoseconds(kBounds[bucket]); }

RequestMetrics::Shard& RequestMetrics::OwnShard() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed);
  return shards_[number % kShards];
}

void RequestMetrics::Record(const RequestOrigin& origin, uint64_t bytes, bool failed) {
  constexpr auto kOrder = std::memory_order_relaxed;
  const auto now = RequestOrigin::Clock::now();
  LastRecord() = now;
  const std::chrono::nanoseconds latency = now - origin.begin;
  Kind& kind = OwnShard().kinds[static_cast<size_t>(origin.kind)];
  kind.nanoseconds.fetch_add(static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0)), kOrder);
  if (bytes > 0) kind.bytes.fetch_add(bytes, kOrder);
  if (failed) kind.errors.fetch_add(1, kOrder);
  kind.buckets[BucketOf(latency)].fetch_add(1, kOrder);
}

std::array<RequestTotals, kRequestKinds> RequestMetrics::Totals() const {
  constexpr auto kOrder = std::memory_order_relaxed;
  std::array<RequestTotals, kRequestKinds> out;
  for (const Shard& shard : shards_) {
    for (size_t index = 0; index < kRequestKinds; ++index) {
      const Kind& kind = shard.kinds[index];
      RequestTotals& to = out[index];
      to.errors += kind.errors.load(kOrder);
      to.bytes += kind.bytes.load(kOrder);
      to.nanoseconds += kind.nanoseconds.load(kOrder);
      for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
        const uint64_t count = kind.buckets[bucket].load(kOrder);
        to.buckets[bucket] += count;
        to.count += count;
      }
    }
  }
  return out;
}

weightfs_metrics RequestMetrics::Snapshot() const {
  weightfs_metrics out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.count = kRequestKinds;
  const auto totals = Totals();
  for (size_t index = 0; index < kRequestKinds; ++index) {
    const RequestTotals& kind = totals[index];
    weightfs_kind_metrics& to = out.kinds[index];
    to.count = kind.count;
    to.errors = kind.errors;
    to.bytes = kind.bytes;
    to.nanoseconds = kind.nanoseconds;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      to.buckets[bucket] = static_cast<uint32_t>(kind.buckets[bucket]);
    }
  }
  return out;
}

}  // namespace weightfs

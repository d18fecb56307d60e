// SPDX-License-Identifier: Apache-2.0
#include "fs/request_metrics.h"

#include <linux/fuse.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

namespace weightfs {
namespace {

constexpr std::chrono::seconds kWatch{10};  // after a look
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

// The busiest entries: by bytes, then by time.
uint32_t TakeBusiest(const std::map<uint64_t, weightfs_top_entry>& table, weightfs_top_entry* out) {
  std::vector<const weightfs_top_entry*> entries;
  entries.reserve(table.size());
  for (const auto& [id, entry] : table) entries.push_back(&entry);
  const auto bytes = [](const weightfs_top_entry& entry) {
    return entry.read_bytes + entry.written_bytes + entry.leased_read_bytes + entry.leased_written_bytes;
  };
  const auto busier = [&](const weightfs_top_entry* a, const weightfs_top_entry* b) {
    return std::pair(bytes(*a), a->nanoseconds) > std::pair(bytes(*b), b->nanoseconds);
  };
  const size_t count = std::min<size_t>(entries.size(), WEIGHTFS_TOP_MAX);
  std::partial_sort(entries.begin(), entries.begin() + static_cast<long>(count), entries.end(), busier);
  for (size_t i = 0; i < count; ++i) out[i] = *entries[i];
  return static_cast<uint32_t>(count);
}

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

size_t RequestMetrics::BucketOf(std::chrono::nanoseconds latency) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0)) / 1000;  // microseconds
  if (value <= 1) return 0;
  // The first bucket whose bound is not below the value: its power of two, then the step within it.
  const double steps = std::log2(static_cast<double>(value)) * kSteps;
  return std::min(static_cast<size_t>(std::ceil(steps - 1e-9)), kBuckets - 1);
}

std::chrono::nanoseconds RequestMetrics::BoundOf(size_t bucket) {
  return std::chrono::nanoseconds(
      static_cast<int64_t>(1000 * std::exp2(static_cast<double>(bucket) / static_cast<double>(kSteps))));
}

void RequestMetrics::Record(const RequestOrigin& origin, uint64_t bytes, bool failed) {
  constexpr auto kOrder = std::memory_order_relaxed;
  const std::chrono::nanoseconds latency = RequestOrigin::Clock::now() - origin.begin;
  Kind& kind = kinds_[static_cast<size_t>(origin.kind)];
  kind.count.fetch_add(1, kOrder);
  kind.nanoseconds.fetch_add(static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0)), kOrder);
  if (bytes > 0) kind.bytes.fetch_add(bytes, kOrder);
  if (failed) kind.errors.fetch_add(1, kOrder);
  kind.buckets[BucketOf(latency)].fetch_add(1, kOrder);
}

weightfs_metrics RequestMetrics::Snapshot() const {
  weightfs_metrics out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.count = kRequestKinds;
  for (size_t index = 0; index < kRequestKinds; ++index) {
    const Kind& kind = kinds_[index];
    weightfs_kind_metrics& to = out.kinds[index];
    to.count = kind.count;
    to.errors = kind.errors;
    to.bytes = kind.bytes;
    to.nanoseconds = kind.nanoseconds;
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      to.buckets[bucket] = static_cast<uint32_t>(kind.buckets[bucket].load(std::memory_order_relaxed));
    }
  }
  return out;
}

weightfs_top_entry& Activity::Find(Table& table, uint64_t id) {
  if (table.size() >= kMostEntries && !table.contains(id)) id = 0;
  weightfs_top_entry& entry = table[id];
  entry.id = id;
  return entry;
}

void Activity::Add(const RequestOrigin& origin, uint64_t bytes, bool leased) {
  const auto latency = static_cast<uint64_t>(
      std::max<int64_t>(std::chrono::nanoseconds(RequestOrigin::Clock::now() - origin.begin).count(), 0));
  MutexLock lock(mutex_);
  for (weightfs_top_entry* entry :
       {&Find(processes_, static_cast<uint64_t>(origin.process)), &Find(files_, origin.inode)}) {
    ++entry->requests;
    entry->nanoseconds += latency;
    if (origin.kind == RequestKind::kRead) (leased ? entry->leased_read_bytes : entry->read_bytes) += bytes;
    if (origin.kind == RequestKind::kWrite) (leased ? entry->leased_written_bytes : entry->written_bytes) += bytes;
  }
}

weightfs_top Activity::Look() {
  weightfs_top out{};
  out.version = WEIGHTFS_IOC_VERSION;
  const auto now = Clock::now();
  MutexLock lock(mutex_);
  if (watched_until_.load() < now) {
    processes_.clear();
    files_.clear();
    watching_since_ = now;
  }
  watched_until_ = now + kWatch;
  out.watched_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now - watching_since_).count());
  out.processes = TakeBusiest(processes_, out.process);
  out.files = TakeBusiest(files_, out.file);
  return out;
}

}  // namespace weightfs

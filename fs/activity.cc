// SPDX-License-Identifier: Apache-2.0
#include "fs/activity.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace weightfs {
namespace {

constexpr std::chrono::seconds kWatch{10};  // after a look

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

void Activity::AddTo(Table& table, uint64_t id, const weightfs_top_entry& entry) {
  if (table.size() >= kMostEntries && !table.contains(id)) id = WEIGHTFS_TOP_OTHERS;
  weightfs_top_entry& sum = table[id];
  sum.id = id;
  sum.read_bytes += entry.read_bytes;
  sum.written_bytes += entry.written_bytes;
  sum.leased_read_bytes += entry.leased_read_bytes;
  sum.leased_written_bytes += entry.leased_written_bytes;
  sum.requests += entry.requests;
  sum.nanoseconds += entry.nanoseconds;
  if (id != WEIGHTFS_TOP_OTHERS) std::memcpy(sum.name, entry.name, sizeof(sum.name));
}

void Activity::Add(const RequestOrigin& origin, uint64_t bytes, bool leased) {
  const auto latency = std::chrono::nanoseconds(RequestOrigin::Clock::now() - origin.begin).count();
  const ThreadOwner owner = owners_.Of(origin.process);  // before the lock, because it may read /proc
  weightfs_top_entry entry{};
  entry.requests = 1;
  entry.nanoseconds = static_cast<uint64_t>(std::max<int64_t>(latency, 0));
  if (origin.kind == RequestKind::kRead) (leased ? entry.leased_read_bytes : entry.read_bytes) = bytes;
  if (origin.kind == RequestKind::kWrite) (leased ? entry.leased_written_bytes : entry.written_bytes) = bytes;
  MutexLock lock(mutex_);
  if (intervals_.empty() || viewers_.contains(owner.process)) return;
  AddTo(intervals_.back().files, origin.inode, entry);
  std::copy(owner.name.begin(), owner.name.end(), entry.name);
  AddTo(intervals_.back().processes, owner.process, entry);
}

void Activity::Merge(const Table& from, Table* to) {
  for (const auto& [id, entry] : from) AddTo(*to, id, entry);
}

// Drops what ended before anybody who still looks has begun, and joins the oldest of too many intervals.
void Activity::DropOld(Clock::time_point now) {
  while (intervals_.size() > 1 && intervals_[1].begin + kWatch < now) intervals_.pop_front();
  while (intervals_.size() > kMostIntervals) {
    Interval& next = intervals_[1];
    Merge(intervals_[0].processes, &next.processes);
    Merge(intervals_[0].files, &next.files);
    next.begin = intervals_[0].begin;
    intervals_.pop_front();
  }
}

weightfs_top Activity::Look(uint64_t since, int32_t viewer) {
  weightfs_top out{};
  out.version = WEIGHTFS_IOC_VERSION;
  const uint64_t process = owners_.Of(viewer).process;
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  std::erase_if(viewers_, [now](const auto& known) { return known.second < now; });
  if (process != 0) viewers_[process] = now + kWatch;
  if (watched_until_.load() < now) intervals_.clear();
  Table processes, files;
  auto begin = now;
  for (const Interval& interval : intervals_) {
    if (since == 0 || interval.number < since) continue;
    begin = std::min(begin, interval.begin);
    Merge(interval.processes, &processes);
    Merge(interval.files, &files);
  }
  out.watched_ns = static_cast<uint64_t>(std::chrono::nanoseconds(now - begin).count());
  out.next = ++last_number_;
  intervals_.push_back({.number = last_number_, .begin = now, .processes = {}, .files = {}});
  DropOld(now);
  watched_until_ = now + kWatch;
  out.processes = TakeBusiest(processes, out.process);
  out.files = TakeBusiest(files, out.file);
  return out;
}

}  // namespace weightfs

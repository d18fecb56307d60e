// SPDX-License-Identifier: Apache-2.0
#include "client/pending_ranges.h"

#include <algorithm>
#include <utility>

namespace weightfs::client {
namespace {

std::atomic<uint64_t> next_number{0};
thread_local std::vector<uint64_t> turns_of_thread;

void AddOnce(std::vector<uint64_t>& numbers, uint64_t number) {
  if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) numbers.push_back(number);
}

}  // namespace

std::shared_ptr<PendingRanges::Registration> PendingRanges::AddEntry(std::span<const FileRange> ranges, bool renames,
                                                                     bool is_turn) {
  auto entry = std::make_shared<Entry>();
  entry->renames = renames;
  entry->is_turn = is_turn;
  entry->listings.reserve(ranges.size());
  for (const FileRange& range : ranges) entry->listings.push_back({.range = range, .entry = entry.get()});
  auto registration = std::make_shared<Registration>(shared_from_this(), entry);
  const MutexLock lock(mutex_);
  AddLocked(entry);
  registration->waits_ = entry->before > 0;
  return registration;
}

bool PendingRanges::AreOfThisThread(std::span<const uint64_t> turns) {
  return std::find_first_of(turns.begin(), turns.end(), turns_of_thread.begin(), turns_of_thread.end()) != turns.end();
}

bool PendingRanges::WaitForThisThread() const {
  if (turns_of_thread.empty()) return false;
  const MutexLock lock(mutex_);
  return std::any_of(waiting_.begin(), waiting_.end(), [](const auto& entry) { return AreOfThisThread(entry->turns); });
}

std::unique_ptr<PendingRanges::Turn> PendingRanges::AddTurn(std::span<const FileRange> ranges, bool renames) {
  return std::make_unique<Turn>(AddEntry(ranges, renames, /*is_turn=*/true));
}

PendingRanges::Turn::Turn(std::shared_ptr<Registration> registration) : registration_(std::move(registration)) {
  turns_of_thread.push_back(registration_->entry_->number);
}

PendingRanges::Turn::~Turn() { std::erase(turns_of_thread, registration_->entry_->number); }

void PendingRanges::AddLocked(const std::shared_ptr<Entry>& entry) {
  entry->number = next_number++;
  for (Listing& listing : entry->listings) {
    const FileRange& range = listing.range;
    File& file = files_[range.file];
    PutBehind(entry, range, file.longest, file.writes);
    if (range.writes) PutBehind(entry, range, file.longest, file.reads);
    listing.self = (range.writes ? file.writes : file.reads).emplace(range.begin, &listing);
    listing.listed = true;
    file.longest = std::max(file.longest, range.end - range.begin);
  }
}

void PendingRanges::PutBehind(const std::shared_ptr<Entry>& entry, const FileRange& range, uint64_t longest,
                              const Listings& others) {
  const uint64_t from = range.begin > longest ? range.begin - longest : 0;
  for (auto at = others.lower_bound(from); at != others.end() && at->first < range.end; ++at) {
    if (at->second->range.end <= range.begin || at->second->entry == entry.get()) continue;
    Entry& other = *at->second->entry;
    other.behind.push_back(entry);
    ++entry->before;
    if (other.is_turn) AddOnce(entry->turns, other.number);
    for (const uint64_t turn : other.turns) AddOnce(entry->turns, turn);
  }
}

// Any range that overlaps an earlier operation inside a write also overlaps that write, which waits for the earlier
// operation. So only the write needs to be listed.
void PendingRanges::ForgetCovered(const Listing& listing, Listings& others) {
  const FileRange& range = listing.range;
  for (auto at = others.lower_bound(range.begin); at != others.end() && at->first < range.end;) {
    Listing& other = *at->second;
    const auto next = std::next(at);
    if (other.entry->number < listing.entry->number && other.range.end <= range.end) {
      other.listed = false;
      others.erase(at);
    }
    at = next;
  }
}

bool PendingRanges::Wait(const std::shared_ptr<Registration>& registration, Begin begin) {
  const MutexLock lock(mutex_);
  const auto& entry = registration->entry_;
  if (entry->before == 0 || stopping_) return false;
  entry->begin = std::move(begin);
  waiting_.insert(entry);
  for (const Listing& listing : entry->listings) {
    if (!listing.listed || !listing.range.writes) continue;
    File& file = files_[listing.range.file];
    ForgetCovered(listing, file.writes);
    ForgetCovered(listing, file.reads);
  }
  return true;
}

void PendingRanges::End(Entry& entry) {
  MutexLock lock(mutex_);
  if (entry.renames) ++renames_;
  for (Listing& listing : entry.listings) {
    if (!listing.listed) continue;
    const auto file = files_.find(listing.range.file);
    (listing.range.writes ? file->second.writes : file->second.reads).erase(listing.self);
    listing.listed = false;
    if (file->second.writes.empty() && file->second.reads.empty()) files_.erase(file);
  }
  for (const auto& next : std::exchange(entry.behind, {})) {
    if (--next->before > 0 || waiting_.erase(next) == 0) continue;
    ++beginning_;
    lock.Unlock();
    std::exchange(next->begin, nullptr)();
    lock.Lock();
    --beginning_;
    changed_.notify_all();
  }
}

bool PendingRanges::contains(const FileId& file) const {
  const MutexLock lock(mutex_);
  return files_.contains(file);
}

bool PendingRanges::empty() const {
  const MutexLock lock(mutex_);
  return files_.empty();
}

void PendingRanges::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  const auto waiting = std::exchange(waiting_, {});
  lock.Unlock();
  for (const auto& entry : waiting) std::exchange(entry->begin, nullptr)();
  lock.Lock();
  while (beginning_ > 0) changed_.wait(lock.native());
}

}  // namespace weightfs::client

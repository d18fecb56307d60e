// SPDX-License-Identifier: Apache-2.0
// The ranges of files that the operations of a handle are going to read or write: one that overlaps an earlier one,
// where either writes, begins when that is done. What is started last is what a file holds in the end.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "client/target.h"
#include "common/mutex.h"

namespace weightfs::client {

struct FileRange {
  FileId file;
  uint64_t begin = 0;
  uint64_t end = 0;  // behind the last byte
  bool writes = false;
};

// Thread-safe; made by make_shared.
class PendingRanges : public std::enable_shared_from_this<PendingRanges> {
 public:
  class Registration;
  // Hands the operation to its rings; `stopping`: to be cancelled. Must not wait for others, nor call back.
  using Begin = std::function<void(bool stopping)>;

  // Those of one operation. From now on others wait for it, until the last reference goes: this begins, on its thread,
  // those that waited for it alone. `renames`: at its end a path names another file.
  std::shared_ptr<Registration> Add(std::span<const FileRange> ranges, bool renames = false) EXCLUDES(mutex_);
  // How many of those have ended. An operation that opened a file before the last of them ended, and had nothing to
  // wait for afterwards, may have the file that was there before.
  uint64_t renames() const { return renames_.load(); }
  // False when nothing before it is pending any more. Otherwise `begin` is called, once, when that is so.
  bool Wait(const std::shared_ptr<Registration>& registration, Begin begin) EXCLUDES(mutex_);
  // True when something is pending on this file.
  bool contains(const FileId& file) const EXCLUDES(mutex_);
  // True when nothing is pending.
  bool empty() const EXCLUDES(mutex_);
  // Begins all that wait, to be cancelled. No `begin` runs afterwards.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Entry;
  struct Listing;
  using Listings = std::multimap<uint64_t, Listing*>;  // by the first byte
  struct File {
    Listings reads;
    Listings writes;
    uint64_t longest = 0;  // of those that were in here
  };
  struct Listing {
    FileRange range;
    Entry* entry = nullptr;
    bool listed = false;
    Listings::iterator self = {};
  };
  struct Entry {
    std::vector<Listing> listings;  // stay where they are
    uint64_t number = 0;            // in the order of their start
    size_t before = 0;              // listings that it waits for
    bool renames = false;
    std::vector<std::shared_ptr<Entry>> behind;  // that wait for it, each once for every listing that it waits for
    Begin begin;
  };

  void AddLocked(const std::shared_ptr<Entry>& entry) REQUIRES(mutex_);
  static void PutBehind(const std::shared_ptr<Entry>& entry, const FileRange& range, uint64_t longest,
                        const Listings& others);
  static void ForgetCovered(const Listing& listing, Listings& others);
  void End(Entry& entry) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> renames_{0};
  std::map<FileId, File> files_ GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Entry>> waiting_ GUARDED_BY(mutex_);  // with a `begin`
  size_t beginning_ GUARDED_BY(mutex_) = 0;                      // in a `begin` now
  bool stopping_ GUARDED_BY(mutex_) = false;
};

// The registration of one operation, as long as it is pending.
class PendingRanges::Registration {
 public:
  Registration(std::shared_ptr<PendingRanges> ranges, std::shared_ptr<Entry> entry)
      : ranges_(std::move(ranges)), entry_(std::move(entry)) {}
  ~Registration() { ranges_->End(*entry_); }
  // True when something was pending before it when it was added.
  bool waits() const { return waits_; }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  friend class PendingRanges;
  const std::shared_ptr<PendingRanges> ranges_;
  const std::shared_ptr<Entry> entry_;
  bool waits_ = false;
};

}  // namespace weightfs::client

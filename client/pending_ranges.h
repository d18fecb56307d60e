// SPDX-License-Identifier: Apache-2.0
// Orders the operations of a handle that overlap. If two operations access overlapping ranges of one file and either of
// them writes, the later one begins when the earlier one is done. So the operation started last determines the file's
// final content.
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
  uint64_t end = 0;  // exclusive
  bool writes = false;
};

// Thread-safe. Must be created by make_shared.
class PendingRanges : public std::enable_shared_from_this<PendingRanges> {
 public:
  class Registration;
  class Turn;
  // Lets another thread begin the operation. It must neither wait nor call back.
  using Begin = std::function<void()>;

  // Registers the ranges of one operation. Later operations wait for it until the last reference to the registration is
  // released; the releasing thread then begins those that waited for it alone. `renames`: when the operation ends, a
  // path may name another file.
  std::shared_ptr<Registration> Add(std::span<const FileRange> ranges, bool renames = false) EXCLUDES(mutex_) {
    return AddEntry(ranges, renames, /*is_turn=*/false);
  }
  // Likewise for a call that does the work on its own thread and keeps the registration until it returns.
  std::unique_ptr<Turn> AddTurn(std::span<const FileRange> ranges, bool renames) EXCLUDES(mutex_);
  // True if one of these turns is of the calling thread: it ends when this thread goes on.
  static bool AreOfThisThread(std::span<const uint64_t> turns);
  // True if an operation waits for a turn of the calling thread, which must then not wait for it.
  bool WaitForThisThread() const EXCLUDES(mutex_);
  // Number of ended operations that had `renames` set. An operation that opened its file before this number last
  // changed, and had nothing to wait for afterwards, may have opened a file that has been replaced since.
  uint64_t renames() const { return renames_.load(); }
  // Returns false if no earlier operation is pending any more. Otherwise calls `begin` once, when that becomes true.
  bool Wait(const std::shared_ptr<Registration>& registration, Begin begin) EXCLUDES(mutex_);
  // True if an operation on this file is pending.
  bool contains(const FileId& file) const EXCLUDES(mutex_);
  // True if nothing is pending.
  bool empty() const EXCLUDES(mutex_);
  // Begins all waiting operations. No `begin` runs afterwards.
  void Stop() EXCLUDES(mutex_);

 private:
  struct Entry;
  struct Listing;
  using Listings = std::multimap<uint64_t, Listing*>;  // keyed by the first byte
  struct File {
    Listings reads;
    Listings writes;
    uint64_t longest = 0;  // length of the longest range ever in this file
  };
  struct Listing {
    FileRange range;
    Entry* entry = nullptr;
    bool listed = false;
    Listings::iterator self = {};
  };
  struct Entry {
    std::vector<Listing> listings;  // stable addresses: Listings point here
    uint64_t number = 0;            // in order of start; no other entry of this process has it
    size_t before = 0;              // number of listings that it waits for
    bool renames = false;
    bool is_turn = false;
    std::vector<uint64_t> turns;    // see Registration; does not change once the entry is listed
    std::vector<std::shared_ptr<Entry>> behind;  // entries that wait for this one, once per listing that they wait for
    Begin begin;
  };

  std::shared_ptr<Registration> AddEntry(std::span<const FileRange> ranges, bool renames, bool is_turn)
      EXCLUDES(mutex_);
  void AddLocked(const std::shared_ptr<Entry>& entry) REQUIRES(mutex_);
  static void PutBehind(const std::shared_ptr<Entry>& entry, const FileRange& range, uint64_t longest,
                        const Listings& others);
  static void ForgetCovered(const Listing& listing, Listings& others);
  void End(Entry& entry) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> renames_{0};
  std::map<FileId, File> files_ GUARDED_BY(mutex_);
  std::set<std::shared_ptr<Entry>> waiting_ GUARDED_BY(mutex_);  // entries that have a `begin`
  size_t beginning_ GUARDED_BY(mutex_) = 0;                      // number of running `begin` calls
  bool stopping_ GUARDED_BY(mutex_) = false;
};

// The registration of one operation, for as long as it is pending.
class PendingRanges::Registration {
 public:
  Registration(std::shared_ptr<PendingRanges> ranges, std::shared_ptr<Entry> entry)
      : ranges_(std::move(ranges)), entry_(std::move(entry)) {}
  ~Registration() { ranges_->End(*entry_); }
  // True if an earlier operation was pending when this one was added.
  bool waits() const { return waits_; }
  // Numbers of the turns that it waits for, perhaps through others that wait.
  const std::vector<uint64_t>& turns() const { return entry_->turns; }
  // True if the calling thread must not wait for it.
  bool deadlocks() const { return AreOfThisThread(turns()); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  friend class PendingRanges;
  const std::shared_ptr<PendingRanges> ranges_;
  const std::shared_ptr<Entry> entry_;
  bool waits_ = false;
};

// Created and destroyed on one thread.
class PendingRanges::Turn {
 public:
  explicit Turn(std::shared_ptr<Registration> registration);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  const std::shared_ptr<Registration>& registration() const { return registration_; }

 private:
  const std::shared_ptr<Registration> registration_;
};

}  // namespace weightfs::client

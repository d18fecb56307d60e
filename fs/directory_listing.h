// SPDX-License-Identifier: Apache-2.0
// The places in the listing of an open directory from which the kernel may go on. Private to fs/.
//
// The position of FUSE is the ordinal of the next entry in the listing of one handle; "." and ".." are the entries 0
// and 1. Entries are listed in the byte order of their names, so the name of the last entry before a position says
// where to go on, whatever was created and deleted meanwhile: an entry that exists during the whole listing is listed
// exactly once. A listing keeps these names:
//
//   - of the entries of the last reply, because the program's buffer may be smaller than the reply. The kernel then
//     asks again from one of its entries;
//   - of a few earlier replies, for seekdir(3). From there on, the entries up to a position are counted, which is exact
//     as long as nobody changes the part of the directory in between.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"

namespace weightfs {

// Bounds of one listing and of all listings of a mount together. Beyond the second one, a listing keeps no names of its
// last reply, and counts instead.
inline constexpr size_t kLargestListing = 64 * 1024;  // bytes of one reply, which bound its names
inline constexpr size_t kListingCheckpoints = 16;
inline constexpr uint64_t kListingMemory = 16 * 1024 * 1024;

// Thread-safe.
class DirectoryListing {
 public:
  // `kept` counts the bytes of the names that all listings keep; it must outlive this object.
  explicit DirectoryListing(std::atomic<uint64_t>& kept) : kept_(kept) {}
  ~DirectoryListing() { kept_ -= counted_; }
  DirectoryListing(const DirectoryListing&) = delete;
  DirectoryListing& operator=(const DirectoryListing&) = delete;

  // The listing goes on after the name `after` (empty: at the first name) and `skip` more.
  struct Cursor {
    std::string after;
    uint64_t skip = 0;
    bool operator==(const Cursor&) const = default;
  };
  // Returns where `position` is. Positions 0, 1 and 2 are the beginning of the names.
  Cursor Find(uint64_t position) const EXCLUDES(mutex_);

  // Notes a reply with the entries `names`, the first one of which has the ordinal `position` (at least 2) and follows
  // the name `after`. An empty reply is the end.
  void Record(uint64_t position, std::string after, const std::vector<std::string_view>& names) EXCLUDES(mutex_);

  // The memory of this listing in bytes.
  size_t memory() const EXCLUDES(mutex_);

 private:
  struct Checkpoint {
    uint64_t position;
    std::string after;
  };
  void AddCheckpointLocked(uint64_t position, const std::string& after) REQUIRES(mutex_);
  void KeepNamesLocked(const std::vector<std::string_view>& names) REQUIRES(mutex_);

  std::atomic<uint64_t>& kept_;
  mutable Mutex mutex_;
  uint64_t first_ GUARDED_BY(mutex_) = 2;       // the ordinal of the first entry of the last reply
  uint64_t next_ GUARDED_BY(mutex_) = 2;        // and of the entry after it
  std::string after_ GUARDED_BY(mutex_);        // the name before the first entry of the last reply
  std::string last_ GUARDED_BY(mutex_);         // the name of its last entry, or after_
  std::string names_ GUARDED_BY(mutex_);        // the names of its entries, each after its length; may be absent
  uint64_t counted_ GUARDED_BY(mutex_) = 0;     // of kept_, for names_
  uint64_t stride_ GUARDED_BY(mutex_) = 1;      // the distance of the checkpoints, at least
  std::vector<Checkpoint> checkpoints_ GUARDED_BY(mutex_);  // begins of replies, in order
};

}  // namespace weightfs

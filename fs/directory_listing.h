// SPDX-License-Identifier: Apache-2.0
// The positions in directories from which the kernel goes on with a listing. Private to fs/.
//
// Entries are listed in the byte order of their names. The position behind an entry says which name it was, by a hash,
// so it leads to the same place whatever was created and deleted meanwhile, and in the listing of every handle: the
// kernel caches a listing with its positions for all of them. The name is looked for
//
//   - among those of the handle's last reply. The kernel asks again from one of its entries, because the program's
//     buffer may be smaller than the reply;
//   - among names that were removed lately;
//   - in the directory, from the beginning.
//
// So an entry that exists during a whole listing is listed exactly once. Only if the entry before the position was
// removed long ago, the position is counted instead.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/units.h"

namespace weightfs {

// Bounds of one listing and of all listings of a mount together. Beyond the second one, a listing keeps no names of its
// last reply, and looks for them in the directory.
inline constexpr size_t kLargestListing = 64 * 1024;  // bytes of one reply, which bound its names
inline constexpr uint64_t kListingMemory = 16 * 1024 * 1024;
inline constexpr size_t kRemovedNames = 4096;  // of a mount

// The positions of "." and ".." are 1 and 2; the names begin behind them.
inline constexpr uint64_t kDots = 2;

// The position behind the entry `name`, which is the next one after `before`.
uint64_t PositionBehind(uint64_t before, std::string_view name);
// Whether `position` is behind an entry of that name.
bool IsBehind(uint64_t position, std::string_view name);
// The number of names up to `position` when it was given; exact up to 16 million.
uint64_t NamesBefore(uint64_t position);

// The names of the last reply of an open directory. Thread-safe.
class DirectoryListing {
 public:
  // `kept` counts the bytes of the names that all listings keep; it must outlive this object.
  explicit DirectoryListing(std::atomic<uint64_t>& kept) : kept_(kept) {}
  ~DirectoryListing() { kept_ -= counted_; }
  DirectoryListing(const DirectoryListing&) = delete;
  DirectoryListing& operator=(const DirectoryListing&) = delete;

  // Returns the name before `position`, if it is known here.
  std::optional<std::string> Find(uint64_t position) const EXCLUDES(mutex_);

  // Notes a reply with the entries `names`, which follow the name `after`. An empty reply is the end.
  void Record(std::string after, const std::vector<std::string_view>& names) EXCLUDES(mutex_);

 private:
  void KeepNamesLocked(const std::vector<std::string_view>& names) REQUIRES(mutex_);

  std::atomic<uint64_t>& kept_;
  mutable Mutex mutex_;
  std::string after_ GUARDED_BY(mutex_);     // the name before the first entry of the last reply
  std::string last_ GUARDED_BY(mutex_);      // the name of its last entry, or after_
  std::string names_ GUARDED_BY(mutex_);     // the names of its entries, each after its length; may be absent
  uint64_t counted_ GUARDED_BY(mutex_) = 0;  // of kept_, for names_
};

// Names that were removed lately from any directory; each replaces an older one. Thread-safe.
class RemovedNames {
 public:
  void Add(InodeId directory, std::string_view name) EXCLUDES(mutex_);
  std::optional<std::string> Find(InodeId directory, uint64_t position) const EXCLUDES(mutex_);

 private:
  struct Removed {
    InodeId directory;
    std::string name;
  };
  mutable Mutex mutex_;
  std::vector<Removed> slots_ GUARDED_BY(mutex_) = std::vector<Removed>(kRemovedNames);
};

}  // namespace weightfs

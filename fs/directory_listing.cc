// SPDX-License-Identifier: Apache-2.0
#include "fs/directory_listing.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace weightfs {
namespace {

// A position is an offset of the kernel, which has 63 bits: the number of names, and a hash of the last one.
constexpr int kHashBits = 39;
constexpr uint64_t kHashMask = (uint64_t{1} << kHashBits) - 1;
constexpr uint64_t kMostNames = (uint64_t{1} << (63 - kHashBits)) - 1;

uint64_t HashOf(std::string_view name) { return std::hash<std::string_view>()(name) & kHashMask; }

size_t SlotOf(InodeId directory, uint64_t hash) { return (directory.value * 31 + hash) % kRemovedNames; }

}  // namespace

uint64_t PositionBehind(uint64_t before, std::string_view name) {
  return std::min(NamesBefore(before) + 1, kMostNames) << kHashBits | HashOf(name);
}

bool IsBehind(uint64_t position, std::string_view name) { return (position & kHashMask) == HashOf(name); }

uint64_t NamesBefore(uint64_t position) { return position >> kHashBits; }

std::optional<std::string> DirectoryListing::Find(uint64_t position) const {
  MutexLock lock(mutex_);
  for (const std::string& name : {std::cref(last_), std::cref(after_)}) {
    if (!name.empty() && IsBehind(position, name)) return name;
  }
  for (std::string_view rest = names_; !rest.empty();) {
    const auto size = static_cast<unsigned char>(rest.front());
    const std::string_view name = rest.substr(1, size);
    if (IsBehind(position, name)) return std::string(name);
    rest.remove_prefix(1 + size);
  }
  return std::nullopt;
}

void DirectoryListing::Record(std::string after, const std::vector<std::string_view>& names) {
  MutexLock lock(mutex_);
  last_ = names.empty() ? after : std::string(names.back());
  after_ = std::move(after);
  KeepNamesLocked(names);
}

void DirectoryListing::KeepNamesLocked(const std::vector<std::string_view>& names) {
  kept_ -= std::exchange(counted_, 0);
  names_ = std::string();  // a new string, because clear() keeps the memory
  size_t size = 0;
  for (const std::string_view name : names) size += 1 + name.size();
  if (size == 0) return;
  if (kept_.fetch_add(size) > kListingMemory - size) {
    kept_ -= size;
    return;
  }
  counted_ = size;
  names_.reserve(size);
  for (const std::string_view name : names) names_.append(1, static_cast<char>(name.size())).append(name);
}

void RemovedNames::Add(InodeId directory, std::string_view name) {
  MutexLock lock(mutex_);
  slots_[SlotOf(directory, HashOf(name))] = {directory, std::string(name)};
}

std::optional<std::string> RemovedNames::Find(InodeId directory, uint64_t position) const {
  MutexLock lock(mutex_);
  const Removed& removed = slots_[SlotOf(directory, position & kHashMask)];
  if (removed.directory != directory || !IsBehind(position, removed.name)) return std::nullopt;
  return removed.name;
}

}  // namespace weightfs

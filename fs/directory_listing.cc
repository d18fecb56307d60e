// SPDX-License-Identifier: Apache-2.0
#include "fs/directory_listing.h"

#include <algorithm>
#include <utility>

namespace weightfs {
namespace {

constexpr uint64_t kFirstName = 2;  // the ordinal after those of "." and ".."

}  // namespace

DirectoryListing::Cursor DirectoryListing::Find(uint64_t position) const {
  if (position <= kFirstName) return {};
  MutexLock lock(mutex_);
  if (position == first_) return {after_};
  if (position == next_) return {last_};
  if (position > first_ && position < next_ && !names_.empty()) {
    std::string_view rest = names_;
    for (uint64_t at = first_;; ++at) {
      const auto size = static_cast<unsigned char>(rest.front());
      if (at + 1 == position) return {std::string(rest.substr(1, size))};
      rest.remove_prefix(1 + size);
    }
  }
  const auto beyond = std::upper_bound(checkpoints_.begin(), checkpoints_.end(), position,
                                       [](uint64_t wanted, const Checkpoint& at) { return wanted < at.position; });
  if (beyond == checkpoints_.begin()) return {{}, position - kFirstName};
  const Checkpoint& checkpoint = *std::prev(beyond);
  return {checkpoint.after, position - checkpoint.position};
}

void DirectoryListing::Record(uint64_t position, std::string after, const std::vector<std::string_view>& names) {
  MutexLock lock(mutex_);
  first_ = position;
  next_ = position + names.size();
  last_ = names.empty() ? after : std::string(names.back());
  KeepNamesLocked(names);
  if (position == kFirstName) {
    checkpoints_.clear();
    stride_ = 1;
  }
  if (!names.empty()) AddCheckpointLocked(position, after);
  after_ = std::move(after);
}

// Doubles the distance of the checkpoints when there are too many.
void DirectoryListing::AddCheckpointLocked(uint64_t position, const std::string& after) {
  if (!checkpoints_.empty() && position < checkpoints_.back().position + stride_) return;
  if (checkpoints_.size() == kListingCheckpoints) {
    for (size_t index = 1; 2 * index < checkpoints_.size(); ++index) {
      checkpoints_[index] = std::move(checkpoints_[2 * index]);
    }
    checkpoints_.resize(kListingCheckpoints / 2);
    stride_ = checkpoints_[1].position - checkpoints_[0].position;
    if (position < checkpoints_.back().position + stride_) return;
  }
  checkpoints_.push_back({position, after});
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

size_t DirectoryListing::memory() const {
  MutexLock lock(mutex_);
  size_t size = names_.capacity() + after_.capacity() + last_.capacity() + checkpoints_.capacity() * sizeof(Checkpoint);
  for (const Checkpoint& checkpoint : checkpoints_) size += checkpoint.after.capacity();
  return size;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "remote/checksum_slices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/checksum.h"

namespace weightfs::remote {
namespace {

// Several parts are under way, and files are downloaded in the order of their checksums.
constexpr size_t kKeptSlices = 4;
// The first one included.
constexpr int kFetches = 4;

}  // namespace

Result<std::optional<size_t>> ChecksumSlices::FindDamage(uint64_t first, std::span<const std::byte> blocks) {
  std::vector<uint32_t> sums(blocks.size() / kBlockSize);
  Crc32cBlocks(blocks, sums.data());
  for (size_t at = 0; at < sums.size();) {
    const uint64_t block = first + at;
    ASSIGN_OR_RETURN(const auto slice, Get(block / kSliceBlocks));
    const size_t in_slice = block % kSliceBlocks;
    if (in_slice >= slice->size()) return Error{ErrorCode::kInvalid, "the block is not in the version"};
    const size_t count = std::min(sums.size() - at, slice->size() - in_slice);
    const auto begin = sums.begin() + static_cast<ptrdiff_t>(at);
    const auto [differs, _] =
        std::mismatch(begin, begin + static_cast<ptrdiff_t>(count), slice->begin() + static_cast<ptrdiff_t>(in_slice));
    at = static_cast<size_t>(differs - sums.begin());
    if (differs != begin + static_cast<ptrdiff_t>(count)) return at;
  }
  return std::optional<size_t>();
}

Result<std::shared_ptr<const ChecksumSlices::Slice>> ChecksumSlices::Get(size_t index) {
  {
    MutexLock lock(mutex_);
    for (;;) {
      const auto found = FindLocked(index);
      if (found == entries_.end()) break;
      if (found->slice != nullptr) {
        entries_.splice(entries_.begin(), entries_, found);
        return found->slice;
      }
      fetched_.wait(lock.native());
    }
    entries_.push_front({index});
    EvictLocked();
  }
  auto slice = Fetch(index);
  MutexLock lock(mutex_);
  const auto entry = FindLocked(index);
  if (slice) {
    entry->slice = *slice;
  } else {
    entries_.erase(entry);
  }
  fetched_.notify_all();
  return slice;
}

std::list<ChecksumSlices::Entry>::iterator ChecksumSlices::FindLocked(size_t index) {
  return std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.index == index; });
}

void ChecksumSlices::EvictLocked() {
  while (entries_.size() > kKeptSlices) {
    const auto idle =
        std::find_if(entries_.rbegin(), entries_.rend(), [](const Entry& entry) { return entry.slice != nullptr; });
    if (idle == entries_.rend()) return;
    entries_.erase(std::prev(idle.base()));
  }
}

Result<std::shared_ptr<const ChecksumSlices::Slice>> ChecksumSlices::Fetch(size_t index) const {
  const std::string key = series_.SliceKey(manifest_.version, index);
  const uint64_t blocks = std::min(kSliceBlocks, manifest_.blocks() - index * kSliceBlocks);
  for (int fetch = 1; fetch <= kFetches; ++fetch) {
    auto bytes = bucket_.GetObject(key, kSliceBytes);
    if (!bytes && bytes.error().code != ErrorCode::kTooLarge) {
      return Error{bytes.error().code, bytes.error().what, key};
    }
    if (!bytes || bytes->size() != blocks * kSumBytes || Sha256Of(*bytes) != manifest_.slices.at(index)) continue;
    auto slice = std::make_shared<Slice>(blocks);
    std::memcpy(slice->data(), bytes->data(), bytes->size());
    return std::shared_ptr<const Slice>(std::move(slice));
  }
  return Error{
      ErrorCode::kCorrupt,
      fmt::format("{}: these checksums differ from their SHA-256 in the manifest in each of {} downloads, from "
                  "offset 0: use another version, or push this one again",
                  s3::ToString({bucket_.name(), key}), kFetches),
      key, 0};
}

}  // namespace weightfs::remote

// SPDX-License-Identifier: Apache-2.0
// The reads of File.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "common/assert.h"
#include "common/result.h"
#include "common/system_calls.h"
#include "common/units.h"
#include "hdf5/file.h"
#include "hdf5/gpu_memory.h"

namespace weightfs::hdf5 {
namespace {

constexpr uint64_t kMetadataPage = 16 * kKiB;    // minimum bytes that a metadata read loads
constexpr uint64_t kLongestMetadata = 1 * kMiB;  // maximum, for consecutive reads
// The filesystem reads ahead for longer sequential reads: a mount of weightfs as fast as its devices.
constexpr uint64_t kShortRead = 128 * kKiB;
constexpr uint64_t kFirstWindow = 128 * kKiB;

}  // namespace

Result<void> File::Read(Content content, uint64_t offset, std::span<std::byte> out) {
  RETURN_IF_ERROR(CheckRange("read", offset, out.size()));
  if (out.empty()) return {};
  if (content == Content::kRaw && IsGpuMemory(out.data())) return ReadDevice(offset, out);
  const bool large = out.size() >= settings_.direct_size;
  // For an SWMR reader: the current content of the file.
  if (options_.shared_reader) return large ? ReadByHandle(offset, out) : PositionalRead(offset, out);
  // Bytes beyond the end read as zeros.
  const uint64_t end = offset + out.size();
  if (end > size_) {
    const uint64_t available = size_ > offset ? size_ - offset : 0;
    std::memset(out.data() + available, 0, out.size() - available);
    out = out.first(available);
    if (out.empty()) return {};
  }
  const bool sequential = content == Content::kRaw && offset == next_read_;
  if (content == Content::kRaw) next_read_ = offset + out.size();
  if (out.size() < settings_.direct_size) return ReadCached(content, offset, out, sequential);
  RETURN_IF_ERROR(ReadExactly(offset, out));
  writes_.Overlay(offset, out);
  return {};
}

Result<void> File::ReadByHandle(uint64_t offset, std::span<std::byte> out) {
  ASSIGN_OR_RETURN(const auto handle, GetHandle());
  const auto read = handle->Read(TransferDescriptor(), client::MemoryView(out), {.offset = offset});
  // The file ends within the range, or another program has truncated it; the rest is zeros.
  if (!read.has_value() && read.error().error_number() == ENODATA) return PositionalRead(offset, out);
  return WithPath(read);
}

// Reads the file without buffered writes. Bytes beyond its end are zeros.
Result<void> File::ReadExactly(uint64_t offset, std::span<std::byte> out) {
  const uint64_t available = std::min<uint64_t>(out.size(), file_size_ > offset ? file_size_ - offset : 0);
  std::memset(out.data() + available, 0, out.size() - available);
  out = out.first(available);
  if (out.empty()) return {};
  // The page cache is faster than the device.
  if (out.size() < settings_.direct_size || IsInPageCache(offset, out.size())) return PositionalRead(offset, out);
  return ReadByHandle(offset, out);
}

Result<void> File::ReadDevice(uint64_t offset, std::span<std::byte> out) {
  // The handle reads only the file, so the file needs all buffered bytes and its full size.
  RETURN_IF_ERROR(WriteOut(false));
  const uint64_t end = offset + out.size();
  if (end > file_size_ && options_.write) {
    if (ftruncate(descriptor_.get(), static_cast<off_t>(end)) != 0) {
      return Failed("ftruncate for a GPU read", offset, out.size(), errno);
    }
    unsynced_ = true;
    RETURN_IF_ERROR(NoteWrite({}, end));
  }
  ASSIGN_OR_RETURN(const auto handle, GetHandle());
  const auto memory = client::MemoryView::OnDevice(reinterpret_cast<uintptr_t>(out.data()), out.size(), kLegacyStream);
  return WithPath(handle->Read(TransferDescriptor(), memory, {.offset = offset}));
}

Result<void> File::PositionalRead(uint64_t offset, std::span<std::byte> out) {
  const ssize_t got = ReadFully(descriptor_.get(), out, offset);
  // ENODATA: a damaged sector of a disk. A handle reports the end of a file so.
  if (got < 0) return Failed("read", offset, out.size(), errno == ENODATA ? EIO : errno);
  std::fill(out.begin() + got, out.end(), std::byte{0});
  return {};
}

Result<void> File::ReadCached(Content content, uint64_t offset, std::span<std::byte> out, bool sequential) {
  while (!out.empty()) {
    const auto next = cache_.FirstFrom(offset);
    if (next != cache_.end() && next->first <= offset) {
      const auto& [begin, extent] = *next;
      const size_t count = std::min<uint64_t>(out.size(), begin + extent.size - offset);
      std::memcpy(out.data(), extent.buffer.data() + (offset - begin), count);
      cache_.Touch(next);
      offset += count;
      out = out.subspan(count);
      continue;
    }
    const uint64_t limit = next == cache_.end() ? UINT64_MAX : next->first;
    const auto gap = out.first(std::min<uint64_t>(out.size(), limit - offset));
    bool loaded = false;
    if (content == Content::kMetadata) {
      const uint64_t page = RoundDown(offset, kMetadataPage);
      const auto before = page == 0 ? cache_.end() : cache_.Find(page - 1);
      const uint64_t length = before == cache_.end() ? 0 : std::min(2 * before->second.size, kLongestMetadata);
      const uint64_t end = std::max(RoundUp(offset + gap.size(), kMetadataPage), page + length);
      ASSIGN_OR_RETURN(loaded, Load(page, end, offset));
    } else if (sequential && gap.size() < kShortRead) {
      // Windows double while the reads stay sequential.
      const auto before = offset == 0 ? cache_.end() : cache_.Find(offset - 1);
      const uint64_t window = before == cache_.end() ? kFirstWindow : 2 * before->second.size;
      const uint64_t ahead = std::min(window, settings_.read_ahead);
      if (ahead > gap.size()) {
        ASSIGN_OR_RETURN(loaded, Load(offset, offset + ahead, offset));
      }
    }
    if (loaded) continue;
    RETURN_IF_ERROR(ReadExactly(offset, gap));
    writes_.Overlay(offset, gap);
    offset += gap.size();
    out = out.subspan(gap.size());
  }
  return {};
}

// Loads the uncached part of [begin, end) around `offset` into the cache, up to the end of the file. False: no memory.
Result<bool> File::Load(uint64_t begin, uint64_t end, uint64_t offset) {
  begin = std::max(begin, cache_.EndBefore(offset));
  end = std::min(end, size_);
  const auto next = cache_.FirstFrom(offset);
  if (next != cache_.end()) end = std::min(end, next->first);
  ReadCache::Extent extent{.buffer = pool_.Take(end - begin), .size = end - begin};
  if (extent.buffer.data() == nullptr) return false;
  const std::span bytes(extent.buffer.data(), extent.size);
  RETURN_IF_ERROR(ReadExactly(begin, bytes));
  writes_.Overlay(begin, bytes);
  cache_.Add(begin, std::move(extent));
  return true;
}

// True if at least 15/16 of the range is in the page cache. Always false before Linux 6.5.
bool File::IsInPageCache(uint64_t offset, uint64_t size) const {
  constexpr long kCachestat = 451;  // the same on every architecture
  struct {
    uint64_t offset, length;
  } const range{.offset = offset, .length = size};
  struct {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
  } found{};
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (syscall(kCachestat, descriptor_.get(), &range, &found, 0) != 0) return false;
  return found.cached * page >= size - size / 16;
}

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// The reads of File.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/result.h"
#include "common/units.h"
#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "hdf5/gpu_memory.h"

namespace weightfs::hdf5 {
namespace {

constexpr uint64_t kMetadataPage = 16 * kKiB;    // the least that a read of metadata loads
constexpr uint64_t kLongestMetadata = 1 * kMiB;  // the most, where reads follow each other
constexpr uint64_t kShortRead = 128 * kKiB;      // sequential reads below this are loaded ahead by the calling thread
constexpr uint64_t kShortWindow = 1 * kMiB;      // as far as that goes
constexpr uint64_t kWindowsInCache = 8;

}  // namespace

Result<void> File::Read(Content content, uint64_t offset, std::span<std::byte> out) {
  RETURN_IF_ERROR(CheckRange("read", offset, out.size()));
  if (out.empty()) return {};
  if (content == Content::kRaw && GpuMemory::Shared().Holds(out.data())) return ReadDevice(offset, out);
  if (options_.shared_reader) return ReadThrough(offset, out);
  // What nobody has written reads as zeros.
  const uint64_t end = offset + out.size();
  if (end > size_) {
    const uint64_t there = size_ > offset ? size_ - offset : 0;
    std::memset(out.data() + there, 0, out.size() - there);
    out = out.first(there);
    if (out.empty()) return {};
  }
  if (out.size() >= settings_.direct_size) return ReadLarge(offset, out);
  const bool sequential = content == Content::kRaw && offset == reads_.next;
  RETURN_IF_ERROR(ReadCached(content, offset, out, sequential));
  if (content == Content::kMetadata) return {};
  if (!sequential) {
    reads_ = {.next = end, .ahead = end};
    return {};
  }
  reads_.next = end;
  ReadAhead();
  return {};
}

// Of a reader beside a writer: what the file holds now.
Result<void> File::ReadThrough(uint64_t offset, std::span<std::byte> out) {
  if (out.size() < settings_.direct_size) return PositionalRead(offset, out);
  ASSIGN_OR_RETURN(const auto handle, Engine::Shared().Get(settings_));
  const auto read = handle->Read(FastDescriptor(), client::MemoryView(out), {.offset = offset});
  // It ends before; the rest is zeros.
  if (!read.has_value() && read.error().error_number() == ENODATA) return PositionalRead(offset, out);
  return Named(read);
}

Result<void> File::ReadLarge(uint64_t offset, std::span<std::byte> out) {
  reads_ = {.next = offset + out.size(), .ahead = offset + out.size()};
  RETURN_IF_ERROR(ReadExactly(offset, out));
  writes_.Overlay(offset, out);
  return {};
}

// What the file itself holds, and zeros behind its end.
Result<void> File::ReadExactly(uint64_t offset, std::span<std::byte> out) {
  const uint64_t there = std::min<uint64_t>(out.size(), file_size_ > offset ? file_size_ - offset : 0);
  std::memset(out.data() + there, 0, out.size() - there);
  out = out.first(there);
  if (out.empty()) return {};
  // The kernel's copy is faster than the device.
  if (out.size() < settings_.direct_size || IsInPageCache(offset, out.size())) return PositionalRead(offset, out);
  ASSIGN_OR_RETURN(const auto handle, Engine::Shared().Get(settings_));
  const auto read = handle->Read(FastDescriptor(), client::MemoryView(out), {.offset = offset});
  // Others have cut it since it was opened.
  if (!read.has_value() && read.error().error_number() == ENODATA) return PositionalRead(offset, out);
  return Named(read);
}

Result<void> File::ReadDevice(uint64_t offset, std::span<std::byte> out) {
  // The handle knows the file alone, so everything must be there, its length too.
  RETURN_IF_ERROR(WriteOut(false));
  if (offset + out.size() > file_size_ && options_.write) {
    if (ftruncate(descriptor_.get(), static_cast<off_t>(offset + out.size())) != 0) {
      return Failed("read into memory of a GPU: lengthening the file", offset, out.size(), errno);
    }
    file_size_ = size_ = offset + out.size();
  }
  ASSIGN_OR_RETURN(const auto handle, Engine::Shared().Get(settings_));
  const auto memory = client::MemoryView::OnDevice(reinterpret_cast<uintptr_t>(out.data()), out.size(), std::nullopt);
  return Named(handle->Read(FastDescriptor(), memory, {.offset = offset}));
}

Result<void> File::PositionalRead(uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t count = pread(descriptor_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("read", offset, out.size(), errno);
    if (count == 0) {
      std::memset(out.data(), 0, out.size());
      return {};
    }
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
  return {};
}

Result<void> File::ReadCached(Content content, uint64_t offset, std::span<std::byte> out, bool sequential) {
  while (!out.empty()) {
    const auto next = cache_.FirstFrom(offset);
    if (next != cache_.end() && next->first <= offset) {
      auto& [begin, extent] = *next;
      if (!Await(next)) continue;  // It is gone; the read below reports what is wrong with the file.
      const size_t count = std::min<uint64_t>(out.size(), begin + extent.size - offset);
      std::memcpy(out.data(), extent.buffer.data() + (offset - begin), count);
      cache_.Touch(next);
      offset += count;
      out = out.subspan(count);
      continue;
    }
    const uint64_t border = next == cache_.end() ? UINT64_MAX : next->first;
    const auto gap = out.first(std::min<uint64_t>(out.size(), border - offset));
    bool loaded = false;
    if (content == Content::kMetadata) {
      const uint64_t page = RoundDown(offset, kMetadataPage);
      const auto before = page == 0 ? cache_.end() : cache_.Find(page - 1);
      const uint64_t length = before == cache_.end() ? 0 : std::min(2 * before->second.size, kLongestMetadata);
      const uint64_t end = std::max(RoundUp(offset + gap.size(), kMetadataPage), page + length);
      ASSIGN_OR_RETURN(loaded, Load(page, end, offset));
    } else if (sequential && gap.size() < kShortRead && settings_.read_ahead > 0) {
      const uint64_t ahead = std::clamp<uint64_t>(reads_.window, gap.size(), kShortWindow);
      ASSIGN_OR_RETURN(loaded,
                       Load(offset, offset + std::max(std::min(ahead, settings_.read_ahead), gap.size()), offset));
    }
    if (loaded) continue;
    RETURN_IF_ERROR(ReadExactly(offset, gap));
    writes_.Overlay(offset, gap);
    offset += gap.size();
    out = out.subspan(gap.size());
  }
  return {};
}

// Reads what is not in the cache of [begin, end) around the byte at `offset`, as far as the file reaches. False: there
// is no memory.
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

// Waits for read-ahead. False: that failed, and the extent is gone.
bool File::Await(ReadCache::Extents::iterator at) {
  auto& [begin, extent] = *at;
  if (extent.operation == nullptr) return true;
  extent.operation->Wait();
  const bool failed = extent.operation->error().has_value();
  extent.operation.reset();
  if (failed) {
    cache_.Remove(at);
    return false;
  }
  writes_.Overlay(begin, std::span(extent.buffer.data(), extent.size));
  return true;
}

// Keeps a window on its way beyond a sequential read.
void File::ReadAhead() {
  const uint64_t most = std::min(settings_.read_ahead, settings_.cache / 2 / kWindowsInCache * 2);
  if (most == 0) return;
  reads_.ahead = std::max(reads_.ahead, reads_.next);
  reads_.window = std::clamp<uint64_t>(2 * reads_.window, kShortRead, most);
  // Below this the calling thread reads ahead itself, or the kernel does.
  if (reads_.window < settings_.direct_size) return;
  while (reads_.ahead < reads_.next + reads_.window) {
    uint64_t end = std::min(reads_.ahead + reads_.window, file_size_);
    const auto next = cache_.FirstFrom(reads_.ahead);
    if (next != cache_.end() && next->first <= reads_.ahead) {
      reads_.ahead = next->first + next->second.size;
      continue;
    }
    if (next != cache_.end()) end = std::min(end, next->first);
    if (end < reads_.ahead + kShortRead || IsInPageCache(reads_.ahead, end - reads_.ahead)) return;
    const auto handle = Engine::Shared().Get(settings_);
    if (!handle.has_value()) return;  // Reads do without; those that need the handle report it.
    ReadCache::Extent extent{.buffer = pool_.Take(end - reads_.ahead), .size = end - reads_.ahead};
    if (extent.buffer.data() == nullptr) return;
    auto started =
        (*handle)->StartRead(FastDescriptor(), client::MemoryView(std::span(extent.buffer.data(), extent.size)),
                             {.offset = reads_.ahead, .own_errors = true});
    if (!started.has_value()) return;
    extent.operation = *std::move(started);
    cache_.Add(reads_.ahead, std::move(extent));
    reads_.ahead = end;
  }
}

// True when the kernel has the range in memory. Linux 6.5; before that nobody can say.
bool File::IsInPageCache(uint64_t offset, uint64_t size) const {
  constexpr long kCachestat = 451;  // its number on every architecture
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

// SPDX-License-Identifier: Apache-2.0
// The writes of File.
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <iterator>

#include "common/result.h"
#include "common/sync_directory.h"
#include "common/system_calls.h"
#include "common/units.h"
#include "hdf5/file.h"
#include "hdf5/gpu_memory.h"
#include "hdf5/superblock.h"

namespace weightfs::hdf5 {
namespace {

// A raw write of at least this size that is neither sequential nor large goes to the file at once, because it cannot be
// merged.
constexpr size_t kLoneWrite = 256 * kKiB;
constexpr size_t kMostBuffers = 512;  // per pwritev

// Buffered writes of at least this many contiguous bytes are sent by the handle.
uint64_t LeastByHandle(const Settings& settings) { return std::min(settings.direct_size, client::kLeaseFrom); }

}  // namespace

bool File::StartsSwmr(Content content, std::span<const std::byte> bytes) {
  if (content != Content::kMetadata) return false;
  const auto superblock = ParseSuperblock(bytes);
  return superblock && superblock->swmr;
}

// Before a write: whether the next durable flush must sync it, and whether it starts or ends SWMR.
Result<void> File::NoteChange(Content content, std::span<const std::byte> bytes) {
  const auto superblock = content == Content::kMetadata ? ParseSuperblock(bytes) : std::nullopt;
  if (!superblock || bytes.size() > superblock->size) unsynced_ = true;
  if (!superblock) return {};
  superblock_unsynced_ = true;
  // A reader that sees this superblock must find the metadata that it refers to.
  if (superblock->swmr != write_through_) RETURN_IF_ERROR(WriteOut(false));
  write_through_ = superblock->swmr;
  return {};
}

Result<void> File::Write(Content content, uint64_t offset, std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckRange("write", offset, bytes.size()));
  if (bytes.empty()) return {};
  if (!options_.write) return Failed("write to a file that is open for reading", offset, bytes.size(), EBADF);
  if (IsForked()) return {};
  RETURN_IF_ERROR(NoteChange(content, bytes));
  if (content == Content::kRaw && IsGpuMemory(bytes.data())) {
    const auto address = reinterpret_cast<uintptr_t>(bytes.data());
    return WriteLarge(offset, client::MemoryView::OnDevice(address, bytes.size(), kLegacyStream));
  }
  const uint64_t end = offset + bytes.size();
  const bool sequential = offset == next_write_;
  if (content == Content::kRaw) next_write_ = end;
  // A buffered write overlaps with the program, so it pays for moderately large requests, too.
  const bool buffered = content == Content::kRaw && !write_through_ && bytes.size() < settings_.cache / 4;
  if (bytes.size() >= settings_.direct_size && !buffered) return WriteLarge(offset, client::MemoryView(bytes));
  const bool medium = bytes.size() >= kLoneWrite && bytes.size() < settings_.direct_size;
  const bool lone = content == Content::kRaw && medium && !sequential;
  if (!write_through_ && !lone) return WriteBuffered(content, offset, bytes);
  RETURN_IF_ERROR(DiscardBuffered(offset, end));
  if (auto written = NoteWrite(PositionalWrite(offset, bytes), end); !written.has_value()) {
    cache_.Drop(offset, end);
    return written;
  }
  cache_.Patch(offset, bytes);
  return {};
}

// Discards the buffered bytes of a range before it is overwritten.
Result<void> File::DiscardBuffered(uint64_t begin, uint64_t end) {
  RETURN_IF_ERROR(AwaitWrites(begin, end));
  return WithPath(writes_.Discard(begin, end));
}

// Updates the sizes after a write, or after several that end at or before `end`. A failed write may have changed the
// file, so its size is queried.
Result<void> File::NoteWrite(Result<void> written, uint64_t end) {
  if (!written.has_value()) {
    struct stat status {};
    end = fstat(descriptor_.get(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : file_size_;
  }
  file_size_ = std::max(file_size_, end);
  size_ = std::max(size_, end);
  return WithPath(std::move(written));
}

Result<void> File::WriteLarge(uint64_t offset, const client::MemoryView& memory) {
  const uint64_t end = offset + memory.size();
  ASSIGN_OR_RETURN(const auto handle, GetHandle());
  RETURN_IF_ERROR(DiscardBuffered(offset, end));
  cache_.Drop(offset, end);
  return NoteWrite(handle->Write(TransferDescriptor(), memory, {.offset = offset}), end);
}

Result<void> File::WriteBuffered(Content content, uint64_t offset, std::span<const std::byte> bytes) {
  // In parts, so that the device begins with the first one while the next one is copied.
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), writes_.segment_size()));
    const uint64_t end = offset + part.size();
    RETURN_IF_ERROR(AwaitWrites(offset, end));
    if (auto put = writes_.Put(offset, part, content == Content::kRaw); !put.has_value()) {
      // Some of the bytes may be buffered.
      size_ = std::max(size_, writes_.end());
      cache_.Drop(offset, end);
      return WithPath(std::move(put));
    }
    size_ = std::max(size_, end);
    cache_.Patch(offset, part);
    RETURN_IF_ERROR(LimitBufferedBytes());
    offset = end;
    bytes = bytes.subspan(part.size());
  }
  return {};
}

Result<void> File::PositionalWrite(uint64_t offset, std::span<const std::byte> bytes) {
  if (!WriteFully(descriptor_.get(), bytes, offset)) return Failed("write", offset, bytes.size(), errno);
  return {};
}

// Waits for the write-back in the range. Removes the segments that were written; those that failed stay.
Result<void> File::AwaitWrites(uint64_t begin, uint64_t end) {
  if (!writes_.IsBusy(begin, end)) return {};
  std::optional<Error> first;
  auto& segments = writes_.segments();
  for (auto at = segments.begin(); at != segments.end() && at->first < end;) {
    auto& [from, segment] = *at;
    if (segment.operation == nullptr || from + segment.size <= begin) {
      ++at;
      continue;
    }
    segment.operation->Wait();
    auto error = segment.operation->error();
    segment.operation.reset();
    auto written = NoteWrite(error ? Result<void>(*std::move(error)) : Result<void>(), from + segment.size);
    if (!written.has_value()) {
      if (!first) first = std::move(written).error();
      ++at;
      continue;
    }
    at = writes_.Remove(at);
  }
  if (first) return *std::move(first);
  return {};
}

// Starts to write the full segments in the background.
Result<void> File::StartWriteBack() {
  for (auto& [begin, segment] : writes_.segments()) {
    if (segment.operation != nullptr || !segment.raw || !writes_.IsFull(begin, segment)) continue;
    if (segment.size < LeastByHandle(settings_)) continue;
    ASSIGN_OR_RETURN(const auto handle, GetHandle());
    const client::MemoryView memory(std::span<const std::byte>(segment.data(), segment.size));
    auto started =
        handle->StartWrite(TransferDescriptor(), memory, {.offset = begin, .own_errors = true, .stable = true});
    if (!started.has_value()) return WithPath(std::move(started).error());
    segment.operation = *std::move(started);
  }
  return {};
}

Result<void> File::LimitBufferedBytes() {
  const size_t limit = settings_.cache / 2;
  if (writes_.TakeFilled()) RETURN_IF_ERROR(StartWriteBack());
  if (writes_.bytes() <= limit) return {};
  // In the order of offsets. The wait for a completed operation returns at once. The other operations go on, so that
  // the device stays busy.
  auto& segments = writes_.segments();
  for (auto at = segments.begin(); at != segments.end() && writes_.bytes() > limit;) {
    const auto [begin, size, busy] = std::tuple(at->first, at->second.size, at->second.operation != nullptr);
    if (busy) RETURN_IF_ERROR(AwaitWrites(begin, begin + size));
    at = busy ? segments.lower_bound(begin + size) : std::next(at);
  }
  if (writes_.bytes() > limit) RETURN_IF_ERROR(WriteOut(true));
  if (writes_.bytes() > limit) RETURN_IF_ERROR(WriteOut(false));
  return {};
}

Result<void> File::WriteOut(bool raw_only) {
  RETURN_IF_ERROR(AwaitWrites(0, UINT64_MAX));
  // Data first, then metadata in descending order: metadata that refers to other metadata, such as the superblock,
  // usually has a lower offset.
  for (const bool raw : {true, false}) {
    if (!raw && raw_only) break;
    std::vector<WriteBuffer::Segments::iterator> all;
    auto& segments = writes_.segments();
    for (auto at = segments.begin(); at != segments.end(); ++at) {
      if (at->second.raw == raw) all.push_back(at);
    }
    size_t end = all.size();
    while (end > 0) {
      size_t begin = end - 1;
      while (begin > 0 && all[begin - 1]->first + all[begin - 1]->second.size == all[begin]->first) --begin;
      RETURN_IF_ERROR(WriteRun(Run(all).subspan(begin, end - begin)));
      end = begin;
    }
  }
  return {};
}

// Writes contiguous segments in one operation.
Result<void> File::WriteRun(Run run) {
  const uint64_t begin = run.front()->first;
  const uint64_t end = run.back()->first + run.back()->second.size;
  const bool large = end - begin >= LeastByHandle(settings_);
  RETURN_IF_ERROR(NoteWrite(large ? WriteRunByHandle(run) : WriteRunByCalls(run), end));
  for (const auto& segment : run) writes_.Remove(segment);
  return {};
}

Result<void> File::WriteRunByHandle(Run run) {
  const uint64_t begin = run.front()->first;
  const uint64_t end = run.back()->first + run.back()->second.size;
  std::vector<client::MemoryView::Part> parts;
  for (const auto& segment : run) {
    const std::span<const std::byte> bytes(segment->second.data(), segment->second.size);
    parts.push_back({.at = segment->first - begin, .view = client::MemoryView(bytes)});
  }
  const auto memory = parts.size() == 1 ? parts[0].view : client::MemoryView::Joined(std::move(parts), end - begin);
  ASSIGN_OR_RETURN(const auto handle, GetHandle());
  return handle->Write(TransferDescriptor(), memory, {.offset = begin, .stable = true});
}

Result<void> File::WriteRunByCalls(Run run) {
  std::vector<iovec> buffers;
  uint64_t offset = run.front()->first;
  for (const auto& segment : run) buffers.push_back({segment->second.data(), segment->second.size});
  for (std::span<iovec> left(buffers); !left.empty();) {
    const auto most = static_cast<int>(std::min(left.size(), kMostBuffers));
    const ssize_t count = pwritev(descriptor_.get(), left.data(), most, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Failed("write", offset, left.front().iov_len, count == 0 ? EIO : errno);
    offset += static_cast<uint64_t>(count);
    auto done = static_cast<size_t>(count);
    while (!left.empty() && done >= left.front().iov_len) {
      done -= left.front().iov_len;
      left = left.subspan(1);
    }
    if (done > 0) {
      left.front().iov_base = static_cast<std::byte*>(left.front().iov_base) + done;
      left.front().iov_len -= done;
    }
  }
  return {};
}

Result<void> File::Flush(bool durable) {
  if (!options_.write || IsForked()) return {};
  RETURN_IF_ERROR(WriteOut(false));
  if (!durable || !unsynced_ || incomplete_) return {};
  return MakeDurable();
}

Result<void> File::MakeDurable() {
  if (fdatasync(descriptor_.get()) != 0) return SystemError(path_, "fdatasync failed");
  if (name_is_new_) {
    RETURN_IF_ERROR(SyncParentDirectory(path_));
    name_is_new_ = false;
  }
  unsynced_ = superblock_unsynced_ = false;
  return {};
}

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
#include "client/random_reader.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/handle_impl.h"
#include "client/lease/lease_windows.h"
#include "client/open/opened_file.h"
#include "client/operation_plan.h"
#include "client/plan/gathered.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/start_thread.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Transfers of at most this size: small enough that the pipeline handles small rows in groups.
constexpr uint64_t kTransfer = 128 * kKiB;

// The most rows of one operation by leases. Each row takes about 120 bytes while it is read.
constexpr size_t kMostRows = 65'536;

// A thread that reads many parts behind the caller.
struct Background {
  std::thread thread;
  std::shared_ptr<std::atomic<bool>> ended;  // the thread uses the reader no more
};

// An open file, with its leases if there are any. Immutable; operations keep it open.
struct ReadFile {
  OpenedFile::Options where;  // what was opened
  std::string path;
  std::shared_ptr<const Access> file;
  std::shared_ptr<LeaseWindows> leases;  // null: read the file itself
  std::optional<Error> no_lease;
  uint64_t size = 0;     // bytes
  bool has_size = true;  // false for a device, whose end only a read finds
};
using ReadFilePtr = std::shared_ptr<const ReadFile>;

// Transfers bytes of a file that stays open.
class SharedFile final : public Access {
 public:
  explicit SharedFile(ReadFilePtr opened) : opened_(std::move(opened)) {}
  const std::string& path() const override { return opened_->path; }
  const Layout& layout() const override { return opened_->file->layout(); }
  int any() const override { return opened_->file->any(); }
  int Buffered(int* error_number) const override { return opened_->file->Buffered(error_number); }
  Result<uint64_t> Size() const override { return opened_->file->Size(); }
  Result<void> Finish(bool /*success*/) override {
    opened_.reset();  // a kept operation keeps no lease
    return {};
  }
  bool FinishesAtOnce() const override { return opened_->leases == nullptr; }

 private:
  ReadFilePtr opened_;
};

OpenedFile::Options WhereIs(const FileName& file) {
  return {.path = file.path, .where = FromTheRoot(file.path), .descriptor = file.descriptor, .size = kBlockSize};
}

// Returns the file, opened by its path or, if `descriptor` is not -1, by that.
Result<ReadFilePtr> OpenFile(const OpenedFile::Options& where, const RandomReaderOptions& options,
                               const std::shared_ptr<LeaseConnections>& connections) {
  auto opened = std::make_shared<ReadFile>();
  opened->where = where;
  ASSIGN_OR_RETURN(opened->file, OpenedFile::Open(where));
  opened->path = opened->file->path();
  if (options.direct != Direct::kNever) {
    auto leases = LeaseWindows::Open(opened->file, connections, options.memory);
    if (leases.has_value()) {
      opened->leases = std::move(*leases);
      opened->size = opened->leases->file_size();
      return ReadFilePtr(std::move(opened));
    }
    opened->no_lease = std::move(leases).error();
    opened->no_lease->path = opened->path;
    if (options.direct == Direct::kRequire) {
      Error error = *opened->no_lease;
      error.what = fmt::format("reader of {}: {}", opened->path, error.what);
      return error;
    }
  }
  int ignored = 0;
  opened->file->Buffered(&ignored);  // for parts of blocks; if it cannot be opened, they fail
  ASSIGN_OR_RETURN(opened->size, opened->file->Size());
  struct stat status {};
  opened->has_size = fstat(opened->file->any(), &status) == 0 && S_ISREG(status.st_mode);
  return ReadFilePtr(std::move(opened));
}

// The rows of one call.
struct Rows {
  ReadFilePtr opened;
  std::span<const uint64_t> offsets;
  uint64_t length = 0;  // of each row, in bytes
  MemoryView memory;
};

Result<void> Check(const Rows& rows) {
  const auto& [opened, offsets, length, memory] = rows;
  const auto wrong = [&opened = *opened](std::string what) {
    return Error{ErrorCode::kInvalid, fmt::format("read of {}: {}", opened.path, what), opened.path};
  };
  if (memory.on_device()) return wrong("rows are read into host memory only");
  if (const char* why = memory.WhyNotReadable(); why != nullptr) return wrong(why);
  uint64_t total = 0;
  if (__builtin_mul_overflow(length, offsets.size(), &total) || total != memory.size()) {
    return wrong(
        fmt::format("{} rows of {} bytes do not fill a memory of {} bytes", offsets.size(), length, memory.size()));
  }
  if (length == 0) return {};
  const bool contiguous = memory.Direct(0, total) != nullptr;
  for (size_t at = 0; !contiguous && at < total; at += length) {
    if (memory.Direct(at, length) == nullptr) return wrong("the bytes of a row are not contiguous in memory");
  }
  uint64_t size = opened->has_size ? opened->size : INT64_MAX;
  for (const uint64_t offset : offsets) {
    if (offset <= size && length <= size - offset) continue;
    // Without a lease the file may have grown.
    if (opened->leases == nullptr && opened->has_size) {
      ASSIGN_OR_RETURN(size, opened->file->Size());
    }
    if (offset > size || length > size - offset) return PastTheEnd(opened->path, length, offset, size);
  }
  return {};
}

// An operation that reads these parts of the file one behind the other, or nothing.
Handle::Impl::Request MakeRequest(std::unique_ptr<Access> access, std::vector<GatheredLayout::Part> parts,
                                  MemoryView memory) {
  Handle::Impl::Request request;
  request.file.direction = Operation::Direction::kRead;
  request.file.path = access->path();
  request.target.access = std::move(access);
  if (!parts.empty()) {
    request.target.ranges = std::make_unique<GatheredLayout>(request.target.access->layout(), std::move(parts));
  }
  request.memory = std::move(memory);
  return request;
}

// Reads the rows of these indices, in any order; empty: all rows. The blocks of the rows follow each other. If the rows
// consist of whole blocks, the memory is used as it is.
Result<Handle::Impl::Request> MakeLeasedRequest(const Rows& rows, std::span<const size_t> chosen,
                                                std::span<const uint64_t> windows) {
  const auto& [opened, offsets, length, memory] = rows;
  ASSIGN_OR_RETURN(auto access, opened->leases->Pin(windows));
  const size_t count = chosen.empty() ? offsets.size() : chosen.size();
  const auto row = [&chosen = chosen](size_t i) { return chosen.empty() ? i : chosen[i]; };
  std::vector<GatheredLayout::Part> blocks;
  blocks.reserve(count);
  uint64_t end = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t first = RoundDown(offsets[row(i)], kBlockSize);
    blocks.push_back({.at = end, .offset = first, .length = RoundUp(offsets[row(i)] + length, kBlockSize) - first});
    end += blocks.back().length;
  }
  MemoryView view = memory;
  if (!chosen.empty() || end != memory.size()) {
    std::vector<MemoryView::Part> parts;
    parts.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      std::byte* data = memory.Direct(row(i) * length, length);
      parts.push_back({blocks[i].at + offsets[row(i)] % kBlockSize, MemoryView(std::span(data, length))});
    }
    view = MemoryView::Joined(std::move(parts), end);
  }
  return MakeRequest(std::move(access), std::move(blocks), std::move(view));
}

// The windows that the rows are in; ascending.
std::vector<uint64_t> WindowsOf(const Rows& rows) {
  const uint64_t window = rows.opened->leases->window_size();
  std::vector<uint64_t> windows;
  for (const uint64_t offset : rows.offsets) {
    for (uint64_t index = offset / window; index <= (offset + rows.length - 1) / window; ++index) {
      if (windows.empty() || windows.back() != index) windows.push_back(index);
    }
  }
  std::sort(windows.begin(), windows.end());
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

// The operation for checked rows that need one alone; otherwise none.
Result<std::optional<Handle::Impl::Request>> MakeOnlyRequest(const Rows& rows) {
  const auto& [opened, offsets, length, memory] = rows;
  std::optional<Handle::Impl::Request> request;
  if (memory.size() == 0 || opened->leases == nullptr) {
    std::vector<GatheredLayout::Part> parts;
    parts.reserve(offsets.size());
    for (size_t i = 0; i < offsets.size() && length > 0; ++i) parts.push_back({i * length, offsets[i], length});
    request = MakeRequest(std::make_unique<SharedFile>(opened), std::move(parts), memory);
  } else if (offsets.size() <= kMostRows) {
    const auto windows = WindowsOf(rows);
    if (windows.size() > LeaseWindows::kMost) return request;
    ASSIGN_OR_RETURN(request, MakeLeasedRequest(rows, {}, windows));
  }
  return request;
}

}  // namespace

// Shared by the reader and its background threads.
class __attribute__((visibility("hidden"))) RandomReader::Impl : public std::enable_shared_from_this<Impl> {
 public:
  // Each transfer is submitted alone: a disk that completes a batch as a whole would be idle between batches.
  explicit Impl(const RandomReaderOptions& options)
      : handle_(HandleOptions{.block_size = kTransfer,
                              .queue_depth = options.queue_depth,
                              .single_submit = true,
                              .overlap_events = true,
                              .direct = options.direct}),
        options_(options) {}
  // Cancels the reads in the background. Waits for their threads, except in a callback, for which they may be waiting.
  void EndBackground() EXCLUDES(mutex_);
  Result<void> Start(const FileName& file);
  Result<void> Open(const OpenedFile::Options& where) EXCLUDES(mutex_);
  // Takes no lock, which another thread may have held during the fork.
  Result<void> CheckProcess() const;
  Result<void> Run(Handle::Impl::Request request, const Interrupted& interrupted);
  // Reads checked rows in several operations, one after the other.
  Result<void> ReadParts(const Rows& rows, const Interrupted& interrupted);
  // Starts that, on a thread of its own, because each of them may have to wait for leases.
  Result<std::shared_ptr<Operation>> StartParts(Rows rows) EXCLUDES(mutex_);
  Handle::Impl& handle() { return handle_; }
  bool forked() const { return handle_.forked(); }
  ReadFilePtr opened() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return opened_;
  }

 private:
  Handle::Impl handle_;
  const RandomReaderOptions options_;
  mutable Mutex mutex_;
  ReadFilePtr opened_ GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::vector<Background> background_ GUARDED_BY(mutex_);
};

void RandomReader::Impl::EndBackground() {
  stopping_ = true;
  std::vector<Background> all;
  {
    const MutexLock lock(mutex_);
    all.swap(background_);
  }
  for (Background& one : all) {
    if (Operation::CallbackScope::active()) {
      one.thread.detach();  // it keeps what it uses
    } else {
      one.thread.join();
    }
  }
}

Result<void> RandomReader::Impl::Start(const FileName& file) {
  RETURN_IF_ERROR(handle_.Start());
  return Open(WhereIs(file));
}

Result<void> RandomReader::Impl::Open(const OpenedFile::Options& where) {
  ASSIGN_OR_RETURN(auto opened, OpenFile(where, options_, handle_.connections()));
  MutexLock lock(mutex_);
  opened_ = std::move(opened);
  return {};
}

Result<void> RandomReader::Impl::CheckProcess() const {
  if (!forked()) return {};
  return Error{ErrorCode::kPermission,
               "this reader belongs to the process that forked this one; open another reader here"};
}

// In the order of the offsets, so that each window is leased for one part, or for several that follow each other.
Result<void> RandomReader::Impl::ReadParts(const Rows& rows, const Interrupted& interrupted) {
  const auto& [opened, offsets, length, memory] = rows;
  const std::string& path = opened->path;
  const uint64_t window = opened->leases->window_size();
  if ((length - 1) / window + 2 > LeaseWindows::kMost) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("read of {}: a row of {} bytes is more than the reader may lease at once: give it more "
                             "memory, or read the row in parts",
                             path, length),
                 path};
  }
  std::vector<size_t> order(offsets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&all = offsets](size_t a, size_t b) { return all[a] < all[b]; });
  for (size_t begin = 0; begin < order.size();) {
    std::vector<uint64_t> windows;
    size_t end = begin;
    for (; end < std::min(order.size(), begin + kMostRows); ++end) {
      const uint64_t first = offsets[order[end]] / window, last = (offsets[order[end]] + length - 1) / window;
      const uint64_t next = windows.empty() ? first : std::max(first, windows.back() + 1);
      if (windows.size() + (last + 1 - std::min(next, last + 1)) > LeaseWindows::kMost) break;
      for (uint64_t index = next; index <= last; ++index) windows.push_back(index);
    }
    // A part may end before the next look at the interrupt.
    if (interrupted && interrupted()) {
      return Error{ErrorCode::kCancelled, fmt::format("read of {}: interrupted", path), path};
    }
    const auto chosen = std::span<const size_t>(order).subspan(begin, end - begin);
    ASSIGN_OR_RETURN(auto request, MakeLeasedRequest(rows, chosen, windows));
    RETURN_IF_ERROR(Run(std::move(request), interrupted));
    begin = end;
  }
  return {};
}

Result<void> RandomReader::Impl::Run(Handle::Impl::Request request, const Interrupted& interrupted) {
  request.interrupted = interrupted;
  return handle_.BeginAndHelp(std::move(request));
}

Result<std::shared_ptr<Operation>> RandomReader::Impl::StartParts(Rows rows) {
  const auto operation =
      std::make_shared<Operation>(Operation::Plan{.direction = Operation::Direction::kRead,
                                                  .target = {.access = std::make_unique<SharedFile>(rows.opened)},
                                                  .memory = rows.memory});
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  auto read = [self = shared_from_this(), ended, operation, rows,
               copied = std::vector<uint64_t>(rows.offsets.begin(), rows.offsets.end())]() mutable {
    rows.offsets = copied;
    const auto done = self->ReadParts(rows, [&] { return operation->stopped() || self->stopping_; });
    if (done.has_value()) {
      [[maybe_unused]] const bool unreported = operation->AddTransferred(operation->size());
    } else {
      operation->Fail(done.error());
    }
    if (operation->Complete()) operation->RunCallbacks();
    *ended = true;
  };
  ASSIGN_OR_RETURN(auto thread, StartThread("weightfs-rows", std::move(read)));
  std::vector<Background> others;
  {
    const MutexLock lock(mutex_);
    const auto first = std::partition(background_.begin(), background_.end(), [](auto& one) { return !*one.ended; });
    others.assign(std::make_move_iterator(first), std::make_move_iterator(background_.end()));
    background_.erase(first, background_.end());
    background_.push_back({std::move(thread), ended});
  }
  for (Background& one : others) one.thread.join();
  return operation;
}

RandomReader::RandomReader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

RandomReader::~RandomReader() {
  // A forked child has neither the threads nor the aio contexts, and the leases are its parent's.
  if (impl_->forked()) {
    [[maybe_unused]] auto* left = new std::shared_ptr<Impl>(std::move(impl_));
    return;
  }
  impl_->EndBackground();
}

Result<std::unique_ptr<RandomReader>> RandomReader::Open(const FileName& file, const RandomReaderOptions& options) {
  if (options.queue_depth == 0 || options.queue_depth > kMaxDepth) {
    return Error{ErrorCode::kInvalid, fmt::format("a reader needs a queue_depth from 1 to {}", kMaxDepth), file.path};
  }
  auto impl = std::make_shared<Impl>(options);
  RETURN_IF_ERROR(impl->Start(file));
  return std::unique_ptr<RandomReader>(new RandomReader(std::move(impl)));
}

Result<void> RandomReader::ReadRows(std::span<const uint64_t> offsets, uint64_t length, const MemoryView& memory,
                                    const Interrupted& interrupted) {
  RETURN_IF_ERROR(impl_->CheckProcess());
  const Rows rows{impl_->opened(), offsets, length, memory};
  RETURN_IF_ERROR(impl_->handle().CheckMayWait(rows.opened->path));
  RETURN_IF_ERROR(Check(rows));
  ASSIGN_OR_RETURN(auto only, MakeOnlyRequest(rows));
  return only ? impl_->Run(*std::move(only), interrupted) : impl_->ReadParts(rows, interrupted);
}

Result<std::shared_ptr<Operation>> RandomReader::StartRows(std::span<const uint64_t> offsets, uint64_t length,
                                                           const MemoryView& memory) {
  RETURN_IF_ERROR(impl_->CheckProcess());
  const Rows rows{impl_->opened(), offsets, length, memory};
  RETURN_IF_ERROR(Check(rows));
  ASSIGN_OR_RETURN(auto only, MakeOnlyRequest(rows));
  return only ? impl_->handle().Begin(*std::move(only), nullptr) : impl_->StartParts(rows);
}

Result<void> RandomReader::Reopen(const FileName& file) {
  RETURN_IF_ERROR(impl_->CheckProcess());
  return impl_->Open(WhereIs(file));
}

Result<void> RandomReader::Refresh() {
  RETURN_IF_ERROR(impl_->CheckProcess());
  const ReadFilePtr old = impl_->opened();
  OpenedFile::Options where = old->where;
  if (where.descriptor >= 0) {
    where.path = old->path;
    where.descriptor = old->file->any();
  }
  return impl_->Open(where);
}

uint64_t RandomReader::file_size() const { return impl_->opened()->size; }

Result<uint64_t> RandomReader::present_size() const {
  const ReadFilePtr opened = impl_->opened();
  if (opened->leases != nullptr) return opened->size;
  return opened->file->Size();
}

bool RandomReader::leased() const { return impl_->opened()->leases != nullptr; }

std::optional<Error> RandomReader::no_lease() const { return impl_->opened()->no_lease; }

}  // namespace weightfs::client

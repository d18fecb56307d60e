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

#include "client/file_target.h"
#include "client/handle_impl.h"
#include "client/lease/lease_windows.h"
#include "client/lease/leased_rows.h"
#include "client/operation_plan.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/start_thread.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Transfers of at most this size: small enough that the pipeline handles small rows in groups.
constexpr uint64_t kTransfer = 128 * kKiB;

constexpr unsigned kMaxDepth = 65'536;

// The most rows of one operation by leases. Each row takes about 100 bytes while it is read.
constexpr size_t kMostRows = 65'536;

// A thread that reads many parts behind the caller.
struct Background {
  std::thread thread;
  std::shared_ptr<std::atomic<bool>> ended;  // the thread uses the reader no more
};

// An open file, with its leases if there are any. Immutable; operations keep it open.
struct OpenedFile {
  FileTarget::Options where;  // what was opened
  std::string path;
  std::shared_ptr<const Target> file;
  std::shared_ptr<LeaseWindows> leases;  // null: read the file itself
  std::optional<Error> no_lease;
  uint64_t size = 0;     // bytes
  bool has_size = true;  // false for a device, whose end only a read finds
};
using OpenedFilePtr = std::shared_ptr<const OpenedFile>;

// Reads rows of a file without leases. The rows follow each other in a virtual file, without gaps.
class FileRows final : public Target {
 public:
  FileRows(OpenedFilePtr opened, std::span<const uint64_t> offsets, uint64_t length)
      : opened_(std::move(opened)), offsets_(offsets.begin(), offsets.end()), length_(length) {}

  const std::string& path() const override { return opened_->path; }
  Run Locate(uint64_t offset, uint64_t length) const override {
    return opened_->file->Locate(FileOffset(offset), std::min(length, length_ - offset % length_));
  }
  uint64_t FileOffset(uint64_t offset) const override { return offsets_[offset / length_] + offset % length_; }
  DirectAlignment alignment() const override { return opened_->file->alignment(); }
  int any() const override { return opened_->file->any(); }
  int Buffered(int* error_number) const override { return opened_->file->Buffered(error_number); }
  Result<uint64_t> Size() const override { return opened_->file->Size(); }
  Result<void> Finish(bool /*success*/) override { return {}; }

 private:
  const OpenedFilePtr opened_;
  const std::vector<uint64_t> offsets_;
  const uint64_t length_;
};

// Reads nothing, successfully.
class NoRows final : public Target {
 public:
  explicit NoRows(std::string path) : path_(std::move(path)) {}
  const std::string& path() const override { return path_; }
  Run Locate(uint64_t /*offset*/, uint64_t length) const override { return {-1, 0, length}; }
  DirectAlignment alignment() const override { return {}; }
  int Buffered(int* error_number) const override {
    *error_number = EIO;
    return -1;
  }
  Result<uint64_t> Size() const override { return 0; }
  Result<void> Finish(bool /*success*/) override { return {}; }

 private:
  const std::string path_;
};

FileTarget::Options WhereIs(const FileName& file) {
  return {.path = file.path, .where = FromTheRoot(file.path), .descriptor = file.descriptor, .size = kBlockSize};
}

// Returns the file, opened by its path or, if `descriptor` is not -1, by that.
Result<OpenedFilePtr> OpenFile(const FileTarget::Options& where, const RandomReaderOptions& options,
                               const std::shared_ptr<LeaseConnections>& connections) {
  auto opened = std::make_shared<OpenedFile>();
  opened->where = where;
  ASSIGN_OR_RETURN(opened->file, FileTarget::Open(where));
  opened->path = opened->file->path();
  if (options.direct != Direct::kNever) {
    auto leases = LeaseWindows::Open(opened->file, connections, options.memory);
    if (leases.has_value()) {
      opened->leases = std::move(*leases);
      opened->size = opened->leases->file_size();
      return OpenedFilePtr(std::move(opened));
    }
    opened->no_lease = std::move(leases).error();
    opened->no_lease->path = opened->path;
    if (options.direct == Direct::kRequire) {
      Error error = *opened->no_lease;
      error.what = fmt::format("reader of {}: {}", opened->path, error.what);
      return error;
    }
  }
  ASSIGN_OR_RETURN(opened->size, opened->file->Size());
  struct stat status {};
  opened->has_size = fstat(opened->file->any(), &status) == 0 && S_ISREG(status.st_mode);
  return OpenedFilePtr(std::move(opened));
}

}  // namespace

// Shared by the reader and its background threads.
class __attribute__((visibility("hidden"))) RandomReader::Impl : public std::enable_shared_from_this<Impl> {
 public:
  // Cancels the reads in the background. Waits for their threads, except in a callback, for which they may be waiting.
  void EndBackground() EXCLUDES(mutex_);
  Result<void> Start(const FileName& file, const RandomReaderOptions& options);
  Result<void> Reopen(const FileName& file) EXCLUDES(mutex_);
  Result<void> Refresh() EXCLUDES(mutex_);
  Result<void> Read(std::span<const uint64_t> offsets, uint64_t length, const MemoryView& memory,
                    const Interrupted& interrupted);
  Result<std::shared_ptr<Operation>> Start(std::span<const uint64_t> offsets, uint64_t length,
                                           const MemoryView& memory);
  bool forked() const { return handle_.forked(); }
  OpenedFilePtr opened() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return opened_;
  }

 private:
  using Rows = std::span<const size_t>;  // indices of rows

  // One operation: all rows of a call, or those of some windows.
  struct Part {
    std::unique_ptr<Target> target;
    MemoryView memory;
  };
  // The windows that the rows are in; ascending.
  static std::vector<uint64_t> WindowsOf(const OpenedFile& opened, std::span<const uint64_t> offsets, uint64_t length);
  // The operation for a call that needs one alone; otherwise none. The call was checked.
  Result<std::optional<Part>> MakeOnlyPart(const OpenedFilePtr& opened, std::span<const uint64_t> offsets,
                                           uint64_t length, const MemoryView& memory) const;
  // Reads all parts, one after the other. The call was checked.
  Result<void> ReadParts(const OpenedFilePtr& opened, std::span<const uint64_t> offsets, uint64_t length,
                         const MemoryView& memory, const Interrupted& interrupted);
  Result<void> Run(Part part, const Interrupted& interrupted);
  Result<void> Check(const OpenedFile& opened, std::span<const uint64_t> offsets, uint64_t length,
                     const MemoryView& memory) const;
  // `rows`: indices of the rows of the part, in any order; empty: all rows.
  static Result<Part> MakeLeasedPart(const OpenedFile& opened, std::span<const uint64_t> offsets, uint64_t length,
                                     const MemoryView& memory, Rows rows, std::span<const uint64_t> windows);
  static Handle::Impl::Request MakeRequest(Part part);
  // Takes no lock, which another thread may have held during the fork.
  Result<void> CheckProcess() const;
  Result<void> Open(const FileTarget::Options& where) EXCLUDES(mutex_);

  Handle::Impl handle_;
  RandomReaderOptions options_;
  mutable Mutex mutex_;
  OpenedFilePtr opened_ GUARDED_BY(mutex_);
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

Result<void> RandomReader::Impl::Start(const FileName& file, const RandomReaderOptions& options) {
  options_ = options;
  // Each transfer is submitted alone: a disk that completes a batch as a whole would be idle between batches.
  RETURN_IF_ERROR(handle_.Start({.block_size = kTransfer,
                                 .queue_depth = options.queue_depth,
                                 .single_submit = true,
                                 .overlap_events = true,
                                 .direct = options.direct}));
  return Open(WhereIs(file));
}

Result<void> RandomReader::Impl::Open(const FileTarget::Options& where) {
  ASSIGN_OR_RETURN(auto opened, OpenFile(where, options_, handle_.connections()));
  MutexLock lock(mutex_);
  opened_ = std::move(opened);
  return {};
}

Result<void> RandomReader::Impl::Reopen(const FileName& file) {
  RETURN_IF_ERROR(CheckProcess());
  return Open(WhereIs(file));
}

Result<void> RandomReader::Impl::Refresh() {
  RETURN_IF_ERROR(CheckProcess());
  const OpenedFilePtr old = opened();
  FileTarget::Options where = old->where;
  if (where.descriptor >= 0) {
    where.path = old->path;
    where.descriptor = old->file->any();
  }
  return Open(where);
}

Result<void> RandomReader::Impl::CheckProcess() const {
  if (!forked()) return {};
  return Error{ErrorCode::kPermission,
               "this reader belongs to the process that forked this one; open another reader here"};
}

Result<void> RandomReader::Impl::Check(const OpenedFile& opened, std::span<const uint64_t> offsets, uint64_t length,
                                       const MemoryView& memory) const {
  const auto wrong = [&opened](std::string what) {
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
  uint64_t size = opened.has_size ? opened.size : INT64_MAX;
  for (const uint64_t offset : offsets) {
    if (offset <= size && length <= size - offset) continue;
    // Without a lease the file may have grown.
    if (opened.leases == nullptr && opened.has_size) {
      ASSIGN_OR_RETURN(size, opened.file->Size());
    }
    if (offset > size || length > size - offset) return PastTheEnd(*opened.file, length, offset, size);
  }
  return {};
}

// The memory is used as it is if the rows consist of whole blocks: the virtual file then has no gaps.
Result<RandomReader::Impl::Part> RandomReader::Impl::MakeLeasedPart(const OpenedFile& opened,
                                                                    std::span<const uint64_t> offsets, uint64_t length,
                                                                    const MemoryView& memory, Rows rows,
                                                                    std::span<const uint64_t> windows) {
  ASSIGN_OR_RETURN(auto pins, opened.leases->Pin(windows));
  RowLayout layout{.length = length};
  uint64_t lead = 0;  // the longest
  const size_t count = rows.empty() ? offsets.size() : rows.size();
  for (size_t i = 0; i < count; ++i) {
    layout.offsets.push_back(offsets[rows.empty() ? i : rows[i]]);
    lead = std::max(lead, layout.offsets.back() % kBlockSize);
  }
  layout.stride = RoundUp(lead + length, kBlockSize);
  MemoryView view = memory;
  if (!rows.empty() || layout.stride != length) {
    std::vector<MemoryView::Part> parts;
    parts.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      std::byte* data = memory.Direct((rows.empty() ? i : rows[i]) * length, length);
      parts.push_back({i * layout.stride + layout.offsets[i] % kBlockSize, MemoryView(std::span(data, length))});
    }
    view = MemoryView::Joined(std::move(parts), count * layout.stride);
  }
  auto target = MakeLeasedRows(opened.path, *opened.leases, std::move(pins), std::move(layout));
  return Part{std::move(target), std::move(view)};
}

std::vector<uint64_t> RandomReader::Impl::WindowsOf(const OpenedFile& opened, std::span<const uint64_t> offsets,
                                                    uint64_t length) {
  const uint64_t window = opened.leases->window_size();
  std::vector<uint64_t> windows;
  for (const uint64_t offset : offsets) {
    for (uint64_t index = offset / window; index <= (offset + length - 1) / window; ++index) {
      if (windows.empty() || windows.back() != index) windows.push_back(index);
    }
  }
  std::sort(windows.begin(), windows.end());
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

Result<std::optional<RandomReader::Impl::Part>> RandomReader::Impl::MakeOnlyPart(const OpenedFilePtr& opened,
                                                                                 std::span<const uint64_t> offsets,
                                                                                 uint64_t length,
                                                                                 const MemoryView& memory) const {
  std::optional<Part> part;
  if (memory.size() == 0) {
    part = Part{std::make_unique<NoRows>(opened->path), memory};
  } else if (opened->leases == nullptr) {
    part = Part{std::make_unique<FileRows>(opened, offsets, length), memory};
  } else if (offsets.size() <= kMostRows) {
    const auto windows = WindowsOf(*opened, offsets, length);
    if (windows.size() > LeaseWindows::kMost) return part;
    ASSIGN_OR_RETURN(part, MakeLeasedPart(*opened, offsets, length, memory, {}, windows));
  }
  return part;
}

// In the order of the offsets, so that each window is leased for one part, or for several that follow each other.
Result<void> RandomReader::Impl::ReadParts(const OpenedFilePtr& opened, std::span<const uint64_t> offsets,
                                           uint64_t length, const MemoryView& memory, const Interrupted& interrupted) {
  const uint64_t window = opened->leases->window_size();
  if ((length - 1) / window + 2 > LeaseWindows::kMost) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("read of {}: a row of {} bytes is more than the reader may lease at once: give it more "
                             "memory, or read the row in parts",
                             opened->path, length),
                 opened->path};
  }
  std::vector<size_t> rows(offsets.size());
  std::iota(rows.begin(), rows.end(), size_t{0});
  std::sort(rows.begin(), rows.end(), [&](size_t a, size_t b) { return offsets[a] < offsets[b]; });
  for (size_t begin = 0; begin < rows.size();) {
    std::vector<uint64_t> windows;
    size_t end = begin;
    for (; end < std::min(rows.size(), begin + kMostRows); ++end) {
      const uint64_t first = offsets[rows[end]] / window, last = (offsets[rows[end]] + length - 1) / window;
      const uint64_t next = windows.empty() ? first : std::max(first, windows.back() + 1);
      if (windows.size() + (last + 1 - std::min(next, last + 1)) > LeaseWindows::kMost) break;
      for (uint64_t index = next; index <= last; ++index) windows.push_back(index);
    }
    // A part may end before the next look at the interrupt.
    if (interrupted && interrupted()) {
      return Error{ErrorCode::kCancelled, fmt::format("read of {}: interrupted", opened->path), opened->path};
    }
    ASSIGN_OR_RETURN(Part part, MakeLeasedPart(*opened, offsets, length, memory,
                                               Rows(rows).subspan(begin, end - begin), windows));
    RETURN_IF_ERROR(Run(std::move(part), interrupted));
    begin = end;
  }
  return {};
}

Handle::Impl::Request RandomReader::Impl::MakeRequest(Part part) {
  Handle::Impl::Request request;
  request.file.direction = Operation::Direction::kRead;
  request.file.path = part.target->path();
  request.target = std::move(part.target);
  request.memory = std::move(part.memory);
  return request;
}

Result<void> RandomReader::Impl::Run(Part part, const Interrupted& interrupted) {
  auto request = MakeRequest(std::move(part));
  request.interrupted = interrupted;
  return handle_.BeginAndHelp(std::move(request));
}

Result<void> RandomReader::Impl::Read(std::span<const uint64_t> offsets, uint64_t length, const MemoryView& memory,
                                      const Interrupted& interrupted) {
  RETURN_IF_ERROR(CheckProcess());
  const OpenedFilePtr opened = this->opened();
  RETURN_IF_ERROR(handle_.CheckMayWait(opened->path));
  RETURN_IF_ERROR(Check(*opened, offsets, length, memory));
  ASSIGN_OR_RETURN(auto only, MakeOnlyPart(opened, offsets, length, memory));
  if (only) return Run(*std::move(only), interrupted);
  return ReadParts(opened, offsets, length, memory, interrupted);
}

// Several parts are read by a thread of their own, because each of them may have to wait for leases.
Result<std::shared_ptr<Operation>> RandomReader::Impl::Start(std::span<const uint64_t> offsets, uint64_t length,
                                                             const MemoryView& memory) {
  RETURN_IF_ERROR(CheckProcess());
  const OpenedFilePtr opened = this->opened();
  RETURN_IF_ERROR(Check(*opened, offsets, length, memory));
  ASSIGN_OR_RETURN(auto only, MakeOnlyPart(opened, offsets, length, memory));
  if (only) return handle_.Begin(MakeRequest(*std::move(only)), nullptr);
  const auto operation = std::make_shared<Operation>(Operation::Plan{.direction = Operation::Direction::kRead,
                                                                     .target = std::make_unique<NoRows>(opened->path),
                                                                     .memory = memory});
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  auto read = [self = shared_from_this(), ended, operation, opened, length,
               copied = std::vector<uint64_t>(offsets.begin(), offsets.end())] {
    const auto done = self->ReadParts(opened, copied, length, operation->memory(),
                                      [&] { return operation->stopped() || self->stopping_; });
    if (done.has_value()) {
      operation->AddTransferred(operation->size());
    } else {
      operation->Fail(done.error());
    }
    operation->Complete();
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
  auto impl = std::make_shared<Impl>();
  RETURN_IF_ERROR(impl->Start(file, options));
  return std::unique_ptr<RandomReader>(new RandomReader(std::move(impl)));
}

Result<void> RandomReader::ReadRows(std::span<const uint64_t> offsets, uint64_t length, const MemoryView& memory,
                                    const Interrupted& interrupted) {
  return impl_->Read(offsets, length, memory, interrupted);
}

Result<std::shared_ptr<Operation>> RandomReader::StartRows(std::span<const uint64_t> offsets, uint64_t length,
                                                           const MemoryView& memory) {
  return impl_->Start(offsets, length, memory);
}

Result<void> RandomReader::Reopen(const FileName& file) { return impl_->Reopen(file); }
Result<void> RandomReader::Refresh() { return impl_->Refresh(); }

uint64_t RandomReader::file_size() const { return impl_->opened()->size; }

Result<uint64_t> RandomReader::present_size() const {
  const OpenedFilePtr opened = impl_->opened();
  if (opened->leases != nullptr) return opened->size;
  return opened->file->Size();
}

bool RandomReader::leased() const { return impl_->opened()->leases != nullptr; }

std::optional<Error> RandomReader::no_lease() const { return impl_->opened()->no_lease; }

}  // namespace weightfs::client

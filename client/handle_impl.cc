// SPDX-License-Identifier: Apache-2.0
#include "client/handle_impl.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "client/file_limit.h"
#include "client/gathered_target.h"
#include "client/lease/lease_target.h"
#include "client/operation_plan.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Slices begin on block boundaries of the file, so no block is written by two threads.
constexpr uint64_t kSliceUnit = kBlockSize;

// Bounce buffers of all rings together, and the minimum per ring. There are enough of them to keep a device busy while
// others are copied. Smaller transfers need smaller ones, but more, in the same memory.
constexpr size_t kBounces = 32;
constexpr size_t kLeastBounces = 8;
constexpr uint64_t kLeastBounceSize = 128 * kKiB;

// Likewise for GPUs, whose copies run concurrently with transfers, and for cuFile's threads, which carry out one
// transfer each.
constexpr size_t kDeviceBounces = 64;
constexpr size_t kCufileThreads = 16;
constexpr size_t kLeastCufileThreads = 2;

// True if the file of a path was replaced between two calls, so the path must be opened again.
bool IsAnother(const Error& error, unsigned tries) {
  constexpr unsigned kTries = 100;
  return error.code == ErrorCode::kStale && tries < kTries;
}

Error Forked(const std::string& path, uint64_t offset) {
  return {ErrorCode::kPermission, "this handle belongs to the process that forked this one; make a new handle here",
          path, offset};
}

Error InCallback(const std::string& path, uint64_t offset) {
  return {ErrorCode{EDEADLK}, "a callback of an operation may start others, and not wait for them", path, offset};
}

Handle::Completed Refused(Error error) { return {.failed = 1, .errors = {std::move(error)}, .refused = true}; }

// True when a write without an offset appends to the file of the descriptor.
bool Appends(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  struct stat status {};
  return flags >= 0 && (flags & O_APPEND) != 0 && fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
}

// A file that does not exist yet, but may be created by a pending operation on its path.
class AbsentTarget final : public Target {
 public:
  explicit AbsentTarget(Error absent) : absent_(std::move(absent)) {}

  const std::string& path() const override { return absent_.path; }
  Run Locate(uint64_t offset, uint64_t length) const override { return {.offset = offset, .length = length}; }
  DirectAlignment alignment() const override { return {}; }
  int Buffered(int* error_number) const override {
    *error_number = absent_.error_number();
    return -1;
  }
  Result<uint64_t> Size() const override { return absent_; }
  Result<void> Finish(bool success) override { return success ? Result<void>(absent_) : Result<void>(); }

 private:
  const Error absent_;
};

template <typename Options>
Handle::Impl::Request CommonRequest(const FileName& file, const MemoryView& memory, const Options& options) {
  Handle::Impl::Request request;
  request.file.path = file.path;
  request.file.where = FromTheRoot(file.path);
  request.file.descriptor = file.descriptor;
  request.memory = memory;
  request.progress = options.progress;
  request.interrupted = options.interrupted;
  request.own_errors = options.own_errors;
  return request;
}

}  // namespace

std::string FromTheRoot(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  std::error_code none;
  const auto directory = std::filesystem::current_path(none);
  // The absolute path is not usable if this process may not search it, or if something was mounted over it.
  if (none || !std::filesystem::equivalent(directory, ".", none)) return path;
  std::string absolute = (directory / path).string();
  return absolute.size() < PATH_MAX ? absolute : path;
}

Error HeldByThisThread(const std::string& path, uint64_t offset) {
  return {ErrorCode{EDEADLK},
          "the SaveMany or LoadMany that this callback or signal handler interrupts has the file until it returns; use "
          "the file after that",
          path, offset};
}

FileId IdOfPath(const std::string& path) {
  const bool is_normal = path.find("//") == std::string::npos && path.find("/.") == std::string::npos;
  const size_t number = is_normal ? std::hash<std::string>()(path)
                                  : std::hash<std::string>()(std::filesystem::path(path).lexically_normal().string());
  return {.device = UINT64_MAX, .inode = number};
}

Handle::Impl::~Impl() {
  ranges_->Stop();
  for (const auto& ring : rings_) ring->BeginStop();
  for (const auto& ring : rings_) ring->Stop();
}

Result<void> Handle::Impl::Start(const HandleOptions& options) {
  direct_ = options.direct;
  gpu_options_ = {
      .mode = options.gpu, .cufile_library = options.cufile_library, .on_refusal = options.on_gpu_refusal};
  if (options.gpu != GpuMode::kOnDemand) RETURN_IF_ERROR(TheGpu());
  const size_t rings = options.intra_op_parallelism;
  const uint64_t needed = RoundUp(std::min(options.block_size, DeviceLane::kBounceSize), kBlockSize);
  const uint64_t bounce_size = std::clamp(needed, kLeastBounceSize, DeviceLane::kBounceSize);
  const size_t bounces = std::max(kBounces / rings, kLeastBounces);
  const PipelineOptions ring{.handle = options,
                             .bounces = std::clamp<size_t>(size_t{2} * options.queue_depth, bounces,
                                                           bounces * (DeviceLane::kBounceSize / bounce_size)),
                             .bounce_size = bounce_size,
                             .device = {.bounces = std::max(kDeviceBounces / rings, kLeastBounces),
                                        .threads = std::max(kCufileThreads / rings, kLeastCufileThreads)}};
  for (size_t i = 0; i < rings; ++i) {
    ASSIGN_OR_RETURN(auto made, Ring::Create(ring));
    rings_.push_back(std::move(made));
  }
  return {};
}

void Handle::Impl::AddChecksums(Request& request) {
  const std::string path =
      request.file.path.empty() ? fmt::format("descriptor {}", request.file.descriptor) : request.file.path;
  request.file.checksums = std::make_shared<ChecksumAttribute>(request.writes(), request.file.whole_file, path,
                                                               request.memory, request.file.offset);
}

Result<std::shared_ptr<Operation>> Handle::Impl::Begin(Request request, Ring** helped) {
  if (forked()) return Forked(request.file.path, request.file.offset);
  const auto& gathered = request.file.gathered;
  request.file.size = gathered != nullptr ? gathered->end() - gathered->begin() : request.memory.size();
  std::shared_ptr<Gpu> gpu;
  if (request.memory.on_device() && request.memory.size() > 0) {
    ASSIGN_OR_RETURN(gpu, TheGpu());
  }
  if (request.checked) AddChecksums(request);
  // A lease needs the checksums of all blocks, but data that cuFile transfers never reaches the host.
  const bool may_lease = gpu == nullptr || !gpu->forces_cufile();
  ASSIGN_OR_RETURN(auto opened, Open(request, may_lease));
  const bool held = opened.waits();
  auto& [registration, target] = opened;
  std::shared_ptr<DeviceMemory> device;
  if (gpu != nullptr) {
    const bool leased = target->leased() || (held && direct_ == Direct::kRequire);
    ASSIGN_OR_RETURN(device, gpu->Admit(request.memory, *target, request.file.offset, leased));
  }
  if (target->leased()) direct_operations_.fetch_add(1, std::memory_order_relaxed);
  Operation::Plan plan{.direction = request.file.direction,
                       .target = std::move(target),
                       .memory = std::move(request.memory),
                       .device = std::move(device),
                       .offset = request.file.offset,
                       .held = held,
                       .stable = request.stable,
                       .progress = std::move(request.progress),
                       .registration = registration,
                       .turns = registration != nullptr ? registration->turns() : std::vector<uint64_t>()};
  if (request.counted) {
    plan.finished = [tracker = tracker_, number = tracker_->Begin(), own = request.own_errors](const Error* error) {
      tracker->End(number, error, own);
    };
  }
  auto operation = std::make_shared<Operation>(std::move(plan));
  if (!held) {
    registration.reset();
    Dispatch(operation, helped);
    return operation;
  }
  auto begin = [this, operation, may_lease, file = std::move(request.file)](bool stopping) mutable {
    BeginHeld(operation, std::move(file), may_lease, stopping);
  };
  if (!ranges_->Wait(registration, begin)) begin(false);
  return operation;
}

Handle::Completed Handle::Impl::Wait(const Interrupted& interrupted) {
  if (auto may = CheckMayWait(""); !may.has_value()) return Refused(std::move(may).error());
  bool deadlocks = false;
  auto completed = tracker_->Wait([&] {
    deadlocks = ranges_->WaitForThisThread();
    return deadlocks || (interrupted && interrupted());
  });
  if (deadlocks) return Refused(HeldByThisThread("", 0));
  return completed;
}

Result<void> Handle::Impl::BeginAndHelp(Request request) {
  if (Operation::CallbackScope::active()) return InCallback(request.file.path, request.file.offset);
  Ring* ring = nullptr;
  auto interrupted = std::move(request.interrupted);
  ASSIGN_OR_RETURN(const auto operation, Begin(std::move(request), &ring));
  if (ring != nullptr) ring->Help(*operation, kInterruptCheckInterval);
  while (!operation->done() && !operation->Wait(kInterruptCheckInterval)) {
    if (!interrupted || !interrupted()) continue;
    operation->Cancel();
    // An operation that still waits for others never accesses the memory, so there is no need to wait for it.
    if (!operation->begun()) return operation->Cancellation();
    operation->Wait();
  }
  if (auto error = operation->error()) return *std::move(error);
  return {};
}

Result<void> Handle::Impl::Run(std::unique_ptr<Target> target, MemoryView memory, Operation::Direction direction,
                               Progress progress, Interrupted interrupted) {
  Request request;
  request.file.path = target->path();
  request.file.direction = direction;
  request.target = std::move(target);
  request.memory = std::move(memory);
  request.progress = std::move(progress);
  request.interrupted = std::move(interrupted);
  return BeginAndHelp(std::move(request));
}

Result<void> Handle::Impl::CheckMayWait(const std::string& path) const {
  if (forked()) return Forked(path, 0);
  if (Operation::CallbackScope::active()) return InCallback(path, 0);
  return {};
}

Result<std::shared_ptr<Gpu>> Handle::Impl::TheGpu() {
  const MutexLock lock(gpu_mutex_);
  if (gpu_ == nullptr) {
    ASSIGN_OR_RETURN(gpu_, Gpu::Open(gpu_options_));
  }
  return gpu_;
}

std::shared_ptr<Gpu> Handle::Impl::known_gpu() const {
  const MutexLock lock(gpu_mutex_);
  return gpu_;
}

Result<std::shared_ptr<PendingRanges::Registration>> Handle::Impl::Register(const FileTarget::Options& file,
                                                                            std::optional<FileId> id) {
  FileRange range{
      .begin = file.offset, .end = file.offset + file.size, .writes = file.direction == Operation::Direction::kWrite};
  // A whole-file write affects everything up to the end of the file. An append begins after all earlier operations have
  // ended, so it overlaps all of them.
  if (file.whole_file) range.end = UINT64_MAX;
  if (file.appends) range.begin = 0, range.end = UINT64_MAX;
  if (!id || range.begin == range.end) return std::shared_ptr<PendingRanges::Registration>();
  // Also registered by path: an atomic write puts another file there, and later operations must see that file.
  std::array<FileRange, 2> ranges{range, range};
  ranges[0].file = *id;
  ranges[1].file = IdOfPath(file.where);
  auto registration = ranges_->Add(std::span(ranges).first(file.descriptor < 0 ? 2 : 1), file.atomic);
  // A progress callback may start what it cannot wait for.
  if (registration->deadlocks() && !Operation::CallbackScope::active()) return HeldByThisThread(file.path, file.offset);
  return registration;
}

Result<Handle::Impl::Opened> Handle::Impl::Open(Request& request, bool may_lease) {
  if (request.target != nullptr) return Opened{.target = std::move(request.target)};
  for (unsigned tries = 1;; ++tries) {
    Opened opened;
    const uint64_t renames = ranges_->renames();
    // A write that may have to wait creates its file when it begins.
    const bool may_create = !ranges_->contains(IdOfPath(request.file.where));
    auto file = FileTarget::Open(request.file, may_create);
    const bool absent = !file.has_value() && file.error().error_number() == ENOENT;
    if (absent && request.ordered && (!request.writes() || !may_create)) {
      ASSIGN_OR_RETURN(opened, AwaitFile(request.file, file.error()));
      if (opened.target != nullptr) return opened;
      if (ranges_->renames() != renames || request.writes()) continue;
    }
    ASSIGN_OR_RETURN(opened.target, std::move(file));
    if (request.ordered) {
      auto registered = Register(request.file, opened.target->id());
      if (!registered.has_value()) opened.target->KeepOnFailure();
      ASSIGN_OR_RETURN(opened.registration, std::move(registered));
    }
    if (opened.waits()) {
      opened.target->KeepOnFailure();
      return opened;
    }
    // An atomic write creates its own file, so it is not affected by renames.
    if (ranges_->renames() != renames && !request.file.atomic) continue;
    const auto prepared = opened.target->Prepare();
    if (!prepared.has_value() && IsAnother(prepared.error(), tries)) continue;
    if (!prepared.has_value()) return prepared.error();
    request.file.offset = *prepared;
    ASSIGN_OR_RETURN(opened.target, Complete(std::move(opened.target), request.file, may_lease));
    return opened;
  }
}

Result<Handle::Impl::Opened> Handle::Impl::AwaitFile(const FileTarget::Options& file, const Error& error) {
  Opened opened;
  ASSIGN_OR_RETURN(opened.registration, Register(file, IdOfPath(file.where)));  // The file has no inode yet.
  if (opened.waits()) opened.target = std::make_unique<AbsentTarget>(error);
  return opened;
}

void Handle::Impl::BeginHeld(const std::shared_ptr<Operation>& operation, FileTarget::Options options, bool may_lease,
                             bool stopping) {
  if (stopping) operation->Cancel();
  if (operation->Begin()) {
    if (options.descriptor >= 0) {
      // The caller may have closed its own descriptor.
      options.path = operation->target().path();
      options.descriptor = operation->target().any();
    }
    // Data that cuFile transfers never reaches the host, so the checksums of a lease could not be computed.
    const bool by_cufile = operation->device() != nullptr && operation->device()->direct();
    auto target = OpenAgain(options, may_lease && !by_cufile);
    if (target.has_value()) {
      if ((*target)->leased()) direct_operations_.fetch_add(1, std::memory_order_relaxed);
      operation->Adopt(*std::move(target), options.offset);
    } else {
      operation->Fail(std::move(target).error());
    }
  }
  Dispatch(operation, nullptr);
}

Result<std::unique_ptr<Target>> Handle::Impl::OpenAgain(FileTarget::Options& options, bool may_lease) {
  for (unsigned tries = 1;; ++tries) {
    ASSIGN_OR_RETURN(auto file, FileTarget::Open(options));
    const auto prepared = file->Prepare();
    if (!prepared.has_value() && IsAnother(prepared.error(), tries)) continue;
    if (!prepared.has_value()) return prepared.error();
    options.offset = *prepared;
    return Complete(std::move(file), options, may_lease);
  }
}

Result<std::unique_ptr<Target>> Handle::Impl::Complete(std::unique_ptr<Target> file, const FileTarget::Options& options,
                                                       bool may_lease) {
  ASSIGN_OR_RETURN(auto target, TryLease(std::move(file), options, may_lease));
  if (options.gathered == nullptr) return target;
  return MakeGatheredTarget(std::move(target), options.gathered);
}

Result<std::unique_ptr<Target>> Handle::Impl::TryLease(std::unique_ptr<Target> file, const FileTarget::Options& options,
                                                       bool may_lease) {
  const bool wanted =
      direct_ == Direct::kRequire || (direct_ == Direct::kAuto && may_lease && options.size >= kLeaseFrom);
  if (!wanted || options.size == 0) return file;
  // After a refusal for the limit of file sizes, a write through the mount would not have the space.
  const bool in_place = options.whole_file && direct_ == Direct::kAuto && FileSizeLimit() == UINT64_MAX;
  auto leased = LeaseTarget::Open(file, options, in_place, connections_);
  if (leased.has_value() || direct_ == Direct::kRequire) return leased;
  // Through the mount, the part that fits would destroy the old file.
  if (options.whole_file && leased.error().error_number() == ENOSPC) return leased;
  return file;
}

void Handle::Impl::Dispatch(const std::shared_ptr<Operation>& operation, Ring** helped) {
  const uint64_t size = operation->size();
  const uint64_t start = operation->offset();
  std::vector<uint64_t> borders{0};
  for (size_t i = 1; i <= rings_.size(); ++i) {
    // Computes size * i / rings without overflow.
    const uint64_t share = size / rings_.size() * i + size % rings_.size() * i / rings_.size();
    const uint64_t border = i == rings_.size() ? size : std::min(RoundUp(start + share, kSliceUnit) - start, size);
    if (border > borders.back()) borders.push_back(border);
  }
  if (size == 0) borders.push_back(0);
  const size_t slices = borders.size() - 1;
  operation->SetSlices(slices);
  // Small operations are distributed over the rings in turn.
  const size_t first = slices == rings_.size() ? 0 : next_ring_.fetch_add(slices, std::memory_order_relaxed);
  if (helped != nullptr) *helped = rings_[first % rings_.size()].get();
  for (size_t i = slices; i > 0; --i) {
    rings_[(first + i - 1) % rings_.size()]->Enqueue(operation, borders[i - 1], borders[i], helped == nullptr || i > 1);
  }
}

Result<Handle::Impl::Request> Handle::Impl::MakeReadRequest(const FileName& file, const MemoryView& memory,
                                                            const ReadOptions& options) {
  if (const char* why = memory.WhyNotReadable(); why != nullptr) {
    return Error{ErrorCode::kInvalid, why, file.path, options.offset};
  }
  Request request = CommonRequest(file, memory, options);
  request.file.direction = Operation::Direction::kRead;
  request.file.offset = options.offset;
  request.checked = options.verify;
  return request;
}

Handle::Impl::Request Handle::Impl::MakeWriteRequest(const FileName& file, const MemoryView& memory,
                                                     const WriteOptions& options) {
  const bool by_path = file.descriptor < 0;
  Request request = CommonRequest(file, memory, options);
  request.file.direction = Operation::Direction::kWrite;
  request.file.offset = options.offset.value_or(0);
  request.file.appends = !by_path && !options.offset && Appends(file.descriptor);
  request.file.whole_file = by_path && !options.offset;
  request.file.atomic = options.atomic;
  request.file.durable = options.durable;
  request.checked = options.checksum;
  request.stable = options.stable;
  return request;
}

}  // namespace weightfs::client

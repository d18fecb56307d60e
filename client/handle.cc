// SPDX-License-Identifier: Apache-2.0
#include "client/handle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "client/handle_impl.h"
#include "client/lease/leased_file.h"
#include "client/operation_plan.h"
#include "client/plan/gathered.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr unsigned kMaxParallelism = 1'024;

Result<void> Check(const HandleOptions& options) {
  const auto wrong = [](const char* what) { return Error{ErrorCode::kInvalid, std::string("a handle needs ") + what}; };
  if (options.block_size == 0) return wrong("a block_size of at least 1 byte");
  if (options.queue_depth == 0 || options.queue_depth > kMaxDepth) return wrong("a queue_depth from 1 to 65536");
  if (options.intra_op_parallelism == 0 || options.intra_op_parallelism > kMaxParallelism) {
    return wrong("an intra_op_parallelism from 1 to 1024");
  }
  return {};
}

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

Result<std::unique_ptr<Handle>> Handle::Create(const HandleOptions& options) {
  RETURN_IF_ERROR(Check(options));
  auto impl = std::make_unique<Impl>(options);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Handle>(new Handle(options, std::move(impl)));
}

Handle::Handle(const HandleOptions& options, std::unique_ptr<Impl> impl) : options_(options), impl_(std::move(impl)) {}

Handle::~Handle() {
  // A forked child has neither the threads nor the aio contexts, so there is nothing to stop.
  if (impl_->forked()) [[maybe_unused]]
    auto* left = impl_.release();
}

Result<std::shared_ptr<Operation>> Handle::StartRead(const FileName& file, const MemoryView& memory,
                                                     const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, memory, options));
  request.counted = true;
  return impl_->Begin(std::move(request), nullptr);
}

Result<std::shared_ptr<Operation>> Handle::StartWrite(const FileName& file, const MemoryView& memory,
                                                      const WriteOptions& options) {
  auto request = Impl::MakeWriteRequest(file, memory, options);
  request.counted = true;
  return impl_->Begin(std::move(request), nullptr);
}

Result<void> Handle::Read(const FileName& file, const MemoryView& memory, const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, memory, options));
  return impl_->BeginAndHelp(std::move(request));
}

Result<void> Handle::ReadRanges(const FileName& file, std::span<const ByteRange> ranges, const MemoryView& memory,
                                const Interrupted& interrupted) {
  if (const char* why = memory.WhyNotReadable(); why != nullptr) return Error{ErrorCode::kInvalid, why, file.path};
  auto gathered = GatheredBlocks::Create(ranges, memory);
  if (!gathered.has_value()) {
    Error error = std::move(gathered).error();
    error.path = file.path;
    return error;
  }
  const auto blocks = std::make_shared<const GatheredBlocks>(std::move(*gathered));
  ASSIGN_OR_RETURN(auto request, Impl::MakeReadRequest(file, blocks->memory,
                                                       {.offset = blocks->begin, .interrupted = interrupted}));
  request.file.gathered = blocks;
  return impl_->BeginAndHelp(std::move(request));
}

Result<void> Handle::Write(const FileName& file, const MemoryView& memory, const WriteOptions& options) {
  return impl_->BeginAndHelp(Impl::MakeWriteRequest(file, memory, options));
}

Handle::Completed Handle::Wait(const Interrupted& interrupted) { return impl_->Wait(interrupted); }

size_t Handle::pending() const { return impl_->pending(); }

std::optional<GpuFacts> Handle::gpu() const {
  const auto gpu = impl_->known_gpu();
  if (gpu == nullptr) return std::nullopt;
  return gpu->facts();
}

Result<void> Handle::PinDevice(const MemoryView& memory) {
  ASSIGN_OR_RETURN(const auto gpu, impl_->TheGpu());
  return gpu->Pin(memory);
}

bool Handle::UnpinDevice(uint64_t address) {
  const auto gpu = impl_->known_gpu();
  return gpu != nullptr && gpu->Unpin(address);
}

bool Handle::IsDevicePinned(const MemoryView& memory) const {
  const auto gpu = impl_->known_gpu();
  return gpu != nullptr && gpu->IsPinned(memory.device_address(), memory.size());
}

Result<void> Handle::CopyOut(const MemoryView& memory, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(const auto gpu, impl_->TheGpu());
  return gpu->CopyOut(memory, host);
}

Result<int> Handle::Map(int descriptor, uint64_t offset, uint64_t length, bool load, const Interrupted& interrupted) {
  if (options_.direct == Direct::kNever) return Error{ErrorCode::kNotSupported, "the handle takes no leases"};
  return impl_->Map(descriptor, offset, length, load, interrupted);
}

uint64_t Handle::direct_operations() const { return impl_->direct_operations(); }

Result<int> Handle::Impl::Map(int descriptor, uint64_t offset, uint64_t length, bool load,
                              const Interrupted& interrupted) {
  if (forked()) return ErrorCode{EPERM};
  if (length == 0 || length > UINT64_MAX - offset) return ErrorCode::kInvalid;
  ASSIGN_OR_RETURN(UniqueFd memory, MapOpenFile(connections(), descriptor, offset, length, load, interrupted));
  direct_operations_.fetch_add(1, std::memory_order_relaxed);
  return memory.Release();
}

Handle::Impl::~Impl() {
  stopping_ = true;
  ranges().Stop();
  for (const auto& ring : rings_) ring->BeginStop();
  for (const auto& ring : rings_) ring->Stop();
}

Result<void> Handle::Impl::Start() {
  if (options_.gpu != GpuMode::kOnDemand) RETURN_IF_ERROR(TheGpu());
  const size_t rings = options_.intra_op_parallelism;
  const uint64_t needed = RoundUp(std::min(options_.block_size, DeviceLane::kBounceSize), kBlockSize);
  const uint64_t bounce_size = std::clamp(needed, kLeastBounceSize, DeviceLane::kBounceSize);
  const size_t bounces = std::max(kBounces / rings, kLeastBounces);
  const PipelineOptions ring{.handle = options_,
                             .bounces = std::clamp<size_t>(size_t{2} * options_.queue_depth, bounces,
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
  request.file.checksums = std::make_shared<ChecksumAttribute>(request.file.writes(), request.file.whole_file, path,
                                                               request.memory, request.file.offset);
}

Result<std::shared_ptr<Operation>> Handle::Impl::Begin(Request request, Ring** helped) {
  if (forked()) return Forked(request.file.path, request.file.offset);
  // A callback may call this while the destructor waits for it.
  if (stopping_) return Error{ErrorCode::kCancelled, "the handle is being closed", request.file.path};
  const auto& gathered = request.file.gathered;
  request.file.size = gathered != nullptr ? gathered->end - gathered->begin : request.memory.size();
  std::shared_ptr<Gpu> gpu;
  if (request.memory.on_device() && request.memory.size() > 0) {
    ASSIGN_OR_RETURN(gpu, TheGpu());
  }
  if (request.checked) AddChecksums(request);
  // A lease needs the checksums of all blocks, but data that cuFile transfers never reaches the host.
  request.may_lease = gpu == nullptr || !gpu->forces_cufile();
  Opener::Opened opened{.target = std::move(request.target)};
  if (!opened.target) {
    ASSIGN_OR_RETURN(opened, opener_.Open(request));
  }
  const bool held = opened.waits();
  const bool leased = opened.target.leased();
  std::shared_ptr<DeviceMemory> device;
  if (gpu != nullptr) {
    const std::string& path = opened.target ? opened.target.access->path() : request.file.path;
    ASSIGN_OR_RETURN(device, gpu->Admit(request.memory, opened.target, path, request.file.offset,
                                        leased || (held && options_.direct == Direct::kRequire)));
  }
  if (leased) direct_operations_.fetch_add(1, std::memory_order_relaxed);
  auto registration = std::move(opened.registration);
  Operation::Plan plan{.direction = request.file.direction,
                       .path = opened.target ? std::string() : request.file.path,
                       .target = std::move(opened.target),
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
  const Opener::Request again = std::move(request);
  const bool waits = ranges().Wait(registration, [this, operation, again] {
    // It opens nothing then, and so it does not wait for those that are slow to open.
    if (stopping_ || operation->stopped()) return TakeTurn(operation, again);
    NextRing().Run([this, operation, again] { TakeTurn(operation, again); });
  });
  if (!waits) TakeTurn(operation, again);
  return operation;
}

Handle::Completed Handle::Impl::Wait(const Interrupted& interrupted) {
  if (auto may = CheckMayWait(""); !may.has_value()) return Refused(std::move(may).error());
  bool deadlocks = false;
  auto completed = tracker_->Wait([&] {
    deadlocks = ranges().WaitForThisThread();
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
  if (ring != nullptr && ring->Help(*operation, kInterruptCheckInterval)) ring->End(operation);
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

Result<void> Handle::Impl::Run(std::unique_ptr<Access> access, MemoryView memory, Operation::Direction direction,
                               Progress progress, Interrupted interrupted) {
  Request request;
  request.file.path = access->path();
  request.file.direction = direction;
  request.target.access = std::move(access);
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
    ASSIGN_OR_RETURN(gpu_, Gpu::Open(options_));
  }
  return gpu_;
}

std::shared_ptr<Gpu> Handle::Impl::known_gpu() const {
  const MutexLock lock(gpu_mutex_);
  return gpu_;
}

void Handle::Impl::TakeTurn(const std::shared_ptr<Operation>& operation, Opener::Request request) {
  if (stopping_) operation->Cancel();
  if (operation->Begin()) {
    if (request.file.descriptor >= 0) {
      // The caller may have closed its own descriptor.
      request.file.path = operation->access().path();
      request.file.descriptor = operation->access().any();
    }
    // Data that cuFile transfers never reaches the host, so the checksums of a lease could not be computed.
    request.may_lease &= operation->device() == nullptr || !operation->device()->direct();
    auto target = opener_.OpenAgain(request);
    if (target.has_value()) {
      if (target->leased()) direct_operations_.fetch_add(1, std::memory_order_relaxed);
      operation->Adopt(*std::move(target), request.file.offset);
    } else {
      operation->Fail(std::move(target).error());
    }
  }
  Dispatch(operation, nullptr);
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

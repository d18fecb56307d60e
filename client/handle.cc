#include "client/handle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "client/account.h"
#include "client/file_target.h"
#include "client/gpu/gpu.h"
#include "client/lease_connection.h"
#include "client/late_target.h"
#include "client/lease_target.h"
#include "client/pending_ranges.h"
#include "client/ring.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr unsigned kMaxDepth = 65'536;
constexpr unsigned kMaxParallelism = 1'024;

// Slices begin on blocks of the file, so that no block is written by two threads.
constexpr uint64_t kSliceUnit = kBlockSize;

// A lease costs its round trips to the mount; below this they are dearer than what it spares.
constexpr uint64_t kLeaseFrom = 4 * kMiB;

// Bounce buffers of all rings together, and the least that one has.
constexpr size_t kBounces = 32;
constexpr size_t kLeastBounces = 8;

// The same for GPUs, whose copies run beside the transfers, and cuFile's threads, each with one transfer at a time.
constexpr size_t kDeviceBounces = 64;
constexpr size_t kCufileThreads = 16;
constexpr size_t kLeastCufileThreads = 2;

IoResult<void> Check(const HandleOptions& options) {
  const auto wrong = [](const char* what) { return IoError{EINVAL, std::string("a handle needs ") + what}; };
  if (options.block_size == 0) return wrong("a block_size of at least 1 byte");
  if (options.queue_depth == 0 || options.queue_depth > kMaxDepth)
    return wrong("a queue_depth from 1 to 65536");
  if (options.intra_op_parallelism == 0 || options.intra_op_parallelism > kMaxParallelism) {
    return wrong("an intra_op_parallelism from 1 to 1024");
  }
  return {};
}

IoError Forked(const std::string& path, uint64_t offset) {
  return {EPERM, "this handle belongs to the process that forked this one; make a new handle here", path, offset};
}

IoError InCallback(const std::string& path, uint64_t offset) {
  return {EDEADLK, "a callback of an operation may start others, and not wait for them", path, offset};
}

// Where a write without an offset begins on a descriptor.
uint64_t DefaultOffset(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  struct stat status{};
  if (flags < 0 || (flags & O_APPEND) == 0 || fstat(descriptor, &status) != 0) return 0;
  return static_cast<uint64_t>(status.st_size);
}

}  // namespace

class Handle::Impl {
 public:
  ~Impl() {
    ranges_->Stop();
    for (const auto& ring : rings_) ring->BeginStop();
    for (const auto& ring : rings_) ring->Stop();
  }

  IoResult<void> Start(const HandleOptions& options) {
    direct_ = options.direct;
    gpu_mode_ = options.gpu;
    cufile_library_ = options.cufile_library;
    if (options.gpu != GpuMode::kOnDemand) RETURN_IF_ERROR(TheGpu());
    const size_t rings = options.intra_op_parallelism;
    const RingOptions ring{.block_size = options.block_size,
                           .queue_depth = options.queue_depth,
                           .single_submit = options.single_submit,
                           .overlap_events = options.overlap_events,
                           .bounces = std::max(kBounces / rings, kLeastBounces),
                           .device = {.bounces = std::max(kDeviceBounces / rings, kLeastBounces),
                                      .threads = std::max(kCufileThreads / rings, kLeastCufileThreads)}};
    for (size_t i = 0; i < rings; ++i) {
      ASSIGN_OR_RETURN(auto made, Ring::Create(ring));
      rings_.push_back(std::move(made));
    }
    return {};
  }

  struct Wish {
    FileTarget::Options file;
    std::unique_ptr<Target> target = nullptr;  // what it was opened as; otherwise it is opened here
    MemoryView memory;
    Progress progress;
    Interrupted interrupted;
    bool counted = false;
    bool own_errors = false;
    bool checked = false;  // `checksum` or `verify`

    bool writes() const { return file.direction == Operation::Direction::kWrite; }
  };

  // `helped`: the caller is going to drive the first ring, which is returned.
  IoResult<std::shared_ptr<Operation>> Begin(Wish wish, Ring** helped) {
    if (forked()) return Forked(wish.file.path, wish.file.offset);
    wish.file.size = wish.memory.size();
    std::shared_ptr<Gpu> gpu;
    if (wish.memory.on_device() && wish.memory.size() > 0) {
      ASSIGN_OR_RETURN(gpu, TheGpu());
    }
    if (wish.checked) RETURN_IF_ERROR(AddChecksums(wish));
    // A lease wants checksums of the blocks, which cuFile never shows to the host.
    const bool may_lease = gpu == nullptr || !gpu->forces_cufile();
    ASSIGN_OR_RETURN(auto opened, Open(wish, may_lease));
    auto& [target, place, late] = opened;
    std::shared_ptr<DeviceMemory> device;
    if (gpu != nullptr) {
      ASSIGN_OR_RETURN(device, gpu->Admit(wish.memory, *target, wish.file.offset));
    }
    if (target->leased()) direct_operations_.fetch_add(1, std::memory_order_relaxed);
    Operation::Plan plan{.direction = wish.file.direction,
                         .target = std::move(target),
                         .memory = std::move(wish.memory),
                         .device = std::move(device),
                         .offset = wish.file.offset,
                         .progress = std::move(wish.progress),
                         .place = place};
    if (wish.counted) {
      plan.finished = [account = account_, number = account_->Begin(),
                       own = wish.own_errors](const IoError* error) { account->End(number, error, own); };
    }
    auto operation = std::make_shared<Operation>(std::move(plan));
    if (late == nullptr) {
      place.reset();
      HandOut(operation, helped);
      return operation;
    }
    auto begin = [this, operation, late = late, may_lease, file = std::move(wish.file)](bool stopping) mutable {
      BeginLate(operation, *late, std::move(file), may_lease, stopping);
    };
    if (!ranges_->Wait(place, begin)) begin(false);
    return operation;
  }

  Completed Wait(const Interrupted& interrupted) {
    if (forked()) return {.failed = 1, .errors = {Forked("", 0)}};
    return account_->Wait(interrupted);
  }

  size_t pending() const { return forked() ? 0 : account_->pending(); }

  bool forked() const { return owner_ != getpid(); }
  uint64_t direct_operations() const { return direct_operations_.load(std::memory_order_relaxed); }

  // Looked for when it is first needed.
  IoResult<std::shared_ptr<Gpu>> TheGpu() EXCLUDES(gpu_mutex_) {
    const MutexLock lock(gpu_mutex_);
    if (gpu_ == nullptr) {
      ASSIGN_OR_RETURN(gpu_, Gpu::Open(gpu_mode_, cufile_library_));
    }
    return gpu_;
  }

  // Null when nobody looked for it.
  std::shared_ptr<Gpu> known_gpu() const EXCLUDES(gpu_mutex_) {
    const MutexLock lock(gpu_mutex_);
    return gpu_;
  }

 private:
  static IoResult<void> AddChecksums(Wish& wish) {
    if (wish.writes() && !wish.file.whole_file) {
      return IoError{EINVAL, "checksums are of whole files: they take a path and no offset", wish.file.path,
                     wish.file.offset};
    }
    if (wish.memory.on_device()) {
      return IoError{EOPNOTSUPP, "checksums are kept of tensors in the host's memory, not of a GPU's", wish.file.path,
                     wish.file.offset};
    }
    const std::string path =
        wish.file.path.empty() ? fmt::format("descriptor {}", wish.file.descriptor) : wish.file.path;
    wish.file.checksums = std::make_shared<ChecksumAttribute>(wish.writes(), path, wish.memory, wish.file.offset);
    return {};
  }

  struct Opened {
    std::unique_ptr<Target> target;
    std::shared_ptr<PendingRanges::Place> place = nullptr;  // null where there is no order
    LateTarget* late = nullptr;                             // the target, when others are to be done before
  };

  IoResult<Opened> Open(Wish& wish, bool may_lease) {
    if (wish.target != nullptr) return Opened{.target = std::move(wish.target)};
    const FileTarget::Options& file = wish.file;
    ASSIGN_OR_RETURN(auto target, FileTarget::Open(file));
    Opened opened;
    // A whole file ends where the write does.
    const uint64_t end = file.whole_file ? UINT64_MAX : file.offset + file.size;
    const auto id = target->id();
    if (id && end > file.offset) {
      opened.place = ranges_->Add({.file = *id, .begin = file.offset, .end = end, .writes = wish.writes()});
    }
    if (opened.place != nullptr && opened.place->waits()) {
      auto late = std::make_unique<LateTarget>(std::move(target));
      opened.late = late.get();
      opened.target = std::move(late);
    } else {
      ASSIGN_OR_RETURN(opened.target, TryLease(std::move(target), file, may_lease));
    }
    return opened;
  }

  // An operation that had to wait for others.
  void BeginLate(const std::shared_ptr<Operation>& operation, LateTarget& late, FileTarget::Options options,
                 bool may_lease, bool stopping) {
    if (stopping) operation->Cancel();
    if (!operation->stopped()) {
      if (options.descriptor >= 0) {
        // The caller may have closed its own.
        options.path = late.path();
        options.descriptor = late.first().any();
      }
      auto target = OpenTarget(options, may_lease);
      if (target.has_value()) {
        if ((*target)->leased()) direct_operations_.fetch_add(1, std::memory_order_relaxed);
        late.Adopt(*std::move(target));
      } else {
        operation->Fail(std::move(target).error());
      }
    }
    HandOut(operation, nullptr);
  }

  IoResult<std::unique_ptr<Target>> OpenTarget(const FileTarget::Options& options, bool may_lease) {
    ASSIGN_OR_RETURN(auto file, FileTarget::Open(options));
    return TryLease(std::move(file), options, may_lease);
  }

  IoResult<std::unique_ptr<Target>> TryLease(std::unique_ptr<Target> file, const FileTarget::Options& options,
                                             bool may_lease) {
    const bool wanted =
        direct_ == Direct::kRequire || (direct_ == Direct::kAuto && may_lease && options.size >= kLeaseFrom);
    if (!wanted || options.size == 0) return file;
    auto leased = LeaseTarget::Open(file, options, connections_);
    if (!leased.has_value() && direct_ == Direct::kAuto) return file;
    return leased;
  }

  void HandOut(const std::shared_ptr<Operation>& operation, Ring** helped) {
    const uint64_t size = operation->size();
    const uint64_t start = operation->offset();
    std::vector<uint64_t> borders{0};
    for (size_t i = 1; i <= rings_.size(); ++i) {
      // size * i / rings, of which the product might not fit.
      const uint64_t share = size / rings_.size() * i + size % rings_.size() * i / rings_.size();
      const uint64_t border =
          i == rings_.size() ? size : std::min(RoundUp(start + share, kSliceUnit) - start, size);
      if (border > borders.back()) borders.push_back(border);
    }
    if (size == 0) borders.push_back(0);
    const size_t slices = borders.size() - 1;
    operation->SetSlices(slices);
    // Small operations take turns on the rings.
    const size_t first =
        slices == rings_.size() ? 0 : next_ring_.fetch_add(slices, std::memory_order_relaxed);
    if (helped != nullptr) *helped = rings_[first % rings_.size()].get();
    for (size_t i = slices; i > 0; --i) {
      rings_[(first + i - 1) % rings_.size()]->Enqueue(operation, borders[i - 1], borders[i],
                                                       helped == nullptr || i > 1);
    }
  }

  const pid_t owner_ = getpid();
  const std::shared_ptr<Account> account_ = std::make_shared<Account>();
  const std::shared_ptr<LeaseConnections> connections_ = std::make_shared<LeaseConnections>();
  Direct direct_ = Direct::kAuto;
  GpuMode gpu_mode_ = GpuMode::kOnDemand;
  std::string cufile_library_;
  mutable Mutex gpu_mutex_;
  std::shared_ptr<Gpu> gpu_ GUARDED_BY(gpu_mutex_);
  const std::shared_ptr<PendingRanges> ranges_ = std::make_shared<PendingRanges>();
  std::vector<std::shared_ptr<Ring>> rings_;
  std::atomic<size_t> next_ring_{0};
  std::atomic<uint64_t> direct_operations_{0};

  friend class Handle;
  IoResult<void> BeginAndHelp(Wish wish) {
    if (Operation::CallbackScope::active()) return InCallback(wish.file.path, wish.file.offset);
    Ring* ring = nullptr;
    auto interrupted = std::move(wish.interrupted);
    ASSIGN_OR_RETURN(const auto operation, Begin(std::move(wish), &ring));
    if (ring != nullptr) ring->Help(*operation, kBetweenLooks);
    while (!operation->done() && !operation->Wait(kBetweenLooks)) {
      if (!interrupted || !interrupted()) continue;
      operation->Cancel();
      operation->Wait();
    }
    if (auto error = operation->error()) return *std::move(error);
    return {};
  }

  template <typename Options>
  static Wish CommonWish(const FileName& file, const MemoryView& memory, const Options& options) {
    Wish wish;
    wish.file.path = file.path;
    wish.file.descriptor = file.descriptor;
    wish.memory = memory;
    wish.progress = options.progress;
    wish.interrupted = options.interrupted;
    wish.own_errors = options.own_errors;
    return wish;
  }

  static IoResult<Wish> WishToRead(const FileName& file, const MemoryView& memory,
                                   const ReadOptions& options) {
    if (memory.may_overlap()) {
      return IoError{EINVAL, "elements of this tensor share memory: nothing can be read into it", file.path,
                     options.offset};
    }
    Wish wish = CommonWish(file, memory, options);
    wish.file.direction = Operation::Direction::kRead;
    wish.file.offset = options.offset;
    wish.checked = options.verify;
    return wish;
  }

  static Wish WishToWrite(const FileName& file, const MemoryView& memory, const WriteOptions& options) {
    const bool by_path = file.descriptor < 0;
    const uint64_t standard = by_path ? 0 : DefaultOffset(file.descriptor);
    Wish wish = CommonWish(file, memory, options);
    wish.file.direction = Operation::Direction::kWrite;
    wish.file.offset = options.offset.value_or(standard);
    wish.file.whole_file = by_path && !options.offset;
    wish.file.atomic = options.atomic;
    wish.file.durable = options.durable;
    wish.checked = options.checksum;
    return wish;
  }
};

IoResult<std::unique_ptr<Handle>> Handle::Create(const HandleOptions& options) {
  RETURN_IF_ERROR(Check(options));
  auto impl = std::make_unique<Impl>();
  RETURN_IF_ERROR(impl->Start(options));
  return std::unique_ptr<Handle>(new Handle(options, std::move(impl)));
}

Handle::Handle(const HandleOptions& options, std::unique_ptr<Impl> impl)
    : options_(options), impl_(std::move(impl)) {}

Handle::~Handle() {
  // A forked child has neither the threads nor the contexts; there is nothing that it could end.
  if (impl_->forked()) [[maybe_unused]]
    auto* left = impl_.release();
}

IoResult<std::shared_ptr<Operation>> Handle::BeginRead(const FileName& file, const MemoryView& memory,
                                                       const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto wish, Impl::WishToRead(file, memory, options));
  return impl_->Begin(std::move(wish), nullptr);
}

IoResult<std::shared_ptr<Operation>> Handle::BeginWrite(const FileName& file, const MemoryView& memory,
                                                        const WriteOptions& options) {
  return impl_->Begin(Impl::WishToWrite(file, memory, options), nullptr);
}

IoResult<void> Handle::CheckMayWait(const std::string& path) const {
  if (impl_->forked()) return Forked(path, 0);
  if (Operation::CallbackScope::active()) return InCallback(path, 0);
  return {};
}

IoResult<std::shared_ptr<Operation>> Handle::StartRead(const FileName& file, const MemoryView& memory,
                                                       const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto wish, Impl::WishToRead(file, memory, options));
  wish.counted = true;
  return impl_->Begin(std::move(wish), nullptr);
}

IoResult<std::shared_ptr<Operation>> Handle::StartWrite(const FileName& file, const MemoryView& memory,
                                                        const WriteOptions& options) {
  auto wish = Impl::WishToWrite(file, memory, options);
  wish.counted = true;
  return impl_->Begin(std::move(wish), nullptr);
}

IoResult<void> Handle::Read(const FileName& file, const MemoryView& memory, const ReadOptions& options) {
  ASSIGN_OR_RETURN(auto wish, Impl::WishToRead(file, memory, options));
  return impl_->BeginAndHelp(std::move(wish));
}

IoResult<void> Handle::Write(const FileName& file, const MemoryView& memory, const WriteOptions& options) {
  return impl_->BeginAndHelp(Impl::WishToWrite(file, memory, options));
}

Handle::Completed Handle::Wait(const Interrupted& interrupted) {
  return impl_->Wait(interrupted);
}

size_t Handle::pending() const {
  return impl_->pending();
}

std::optional<GpuFacts> Handle::gpu() const {
  const auto gpu = impl_->known_gpu();
  if (gpu == nullptr) return std::nullopt;
  return gpu->facts();
}

IoResult<void> Handle::PinDevice(const MemoryView& memory) {
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

IoResult<void> Handle::CopyOut(const MemoryView& memory, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(const auto gpu, impl_->TheGpu());
  return gpu->CopyOut(memory, host);
}

IoResult<void> Handle::Run(std::unique_ptr<Target> target, MemoryView memory, Operation::Direction direction,
                           Progress progress) {
  Impl::Wish wish;
  wish.file.path = target->path();
  wish.file.direction = direction;
  wish.target = std::move(target);
  wish.memory = std::move(memory);
  wish.progress = std::move(progress);
  return impl_->BeginAndHelp(std::move(wish));
}

const std::shared_ptr<LeaseConnections>& Handle::connections() const {
  return impl_->connections_;
}

uint64_t Handle::direct_operations() const {
  return impl_->direct_operations();
}

}  // namespace weightfs::client

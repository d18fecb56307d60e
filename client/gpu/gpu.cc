// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/gpu.h"

#include <fmt/format.h>

#include <cerrno>

#include "client/gpu/gpu_lane.h"
#include "client/open/opened_file.h"
#include "common/result.h"

namespace weightfs::client {

Result<bool> GpuMemory::Ready() {
  if (!before_ || ready_.load(std::memory_order_acquire)) return true;
  ASSIGN_OR_RETURN(const bool reached, before_->Reached());
  if (reached) ready_.store(true, std::memory_order_release);
  return reached;
}

Result<void> GpuMemory::WaitUntilReady() const {
  if (!before_) return {};
  return before_->Wait();
}

Result<const Cufile::File*> GpuMemory::FileOf(int descriptor) {
  const MutexLock lock(mutex_);
  auto& file = files_[descriptor];
  if (file == nullptr) {
    const CudaDevice::Current current(*device_);
    RETURN_IF_ERROR(current.result());
    ASSIGN_OR_RETURN(file, cufile_->Open(descriptor));
  }
  return file.get();
}

void GpuMemory::CloseFiles() {
  const MutexLock lock(mutex_);
  files_.clear();
}

std::unique_ptr<DeviceLane> GpuMemory::MakeLane(const LaneOptions& options) const {
  return std::make_unique<GpuLane>(options);
}

Result<std::shared_ptr<Gpu>> Gpu::Open(const HandleOptions& options) {
  std::shared_ptr<Gpu> gpu(new Gpu);
  ASSIGN_OR_RETURN(gpu->cuda_, Cuda::Load());
  gpu->facts_.count = gpu->cuda_->device_count();
  gpu->facts_.cuda = gpu->cuda_->version();
  gpu->on_refusal_ = options.on_gpu_refusal;
  ASSIGN_OR_RETURN(gpu->facts_.name, gpu->cuda_->DeviceName(0));
  RETURN_IF_ERROR(gpu->ChooseWay(options.gpu, options.cufile_library));
  return gpu;
}

Result<void> Gpu::ChooseWay(GpuMode mode, const std::string& cufile_library) {
  facts_.mode = GpuMode::kBounce;
  if (mode == GpuMode::kOnDemand || mode == GpuMode::kBounce) {
    facts_.why = mode == GpuMode::kBounce ? "it was asked for" : "cuFile was not asked for";
    return {};
  }
  auto loaded = Cufile::Load(cufile_library);
  forced_ = mode == GpuMode::kCufile;
  if (!loaded.has_value()) {
    if (forced_) return std::move(loaded).error();
    facts_.why = loaded.error().what;
    return {};
  }
  facts_.cufile = (*loaded)->version();
  if (!forced_ && !(*loaded)->direct()) {
    facts_.why = fmt::format("cuFile {} would work in {}", facts_.cufile, (*loaded)->DirectWay());
    return {};
  }
  facts_.mode = GpuMode::kCufile;
  facts_.why =
      fmt::format("{}: {}", forced_ ? "it was asked for" : "it reaches the GPU directly", (*loaded)->DirectWay());
  cufile_ = std::move(*loaded);
  return {};
}

GpuFacts Gpu::facts() const {
  GpuFacts facts = facts_;
  facts.cufile_bytes = traffic_->cufile.load(std::memory_order_relaxed);
  facts.bounce_bytes = traffic_->bounce.load(std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  facts.refusal = refusal_;
  return facts;
}

Result<std::shared_ptr<const CudaDevice>> Gpu::DeviceOf(uint64_t address) {
  ASSIGN_OR_RETURN(const int ordinal, cuda_->DeviceOf(address));
  const MutexLock lock(mutex_);
  auto& device = devices_[ordinal];
  if (device == nullptr) {
    ASSIGN_OR_RETURN(device, CudaDevice::Open(cuda_, ordinal));
  }
  return device;
}

Result<std::shared_ptr<GpuMemory>> Gpu::Describe(const MemoryView& memory) {
  std::shared_ptr<GpuMemory> made(new GpuMemory);
  made->address_ = made->base_ = memory.device_address();
  made->traffic_ = traffic_;
  ASSIGN_OR_RETURN(made->device_, DeviceOf(made->address_));
  if (memory.stream()) {
    ASSIGN_OR_RETURN(made->before_, CudaEvent::Create(made->device_));
    RETURN_IF_ERROR(made->before_->RecordOn(*memory.stream()));
  }
  return made;
}

Result<std::shared_ptr<GpuMemory>> Gpu::Admit(const MemoryView& memory, const Target& target, const std::string& path,
                                              uint64_t offset, bool leased) {
  ASSIGN_OR_RETURN(auto made, Describe(memory));
  const int descriptor = target ? target.layout().Locate(offset, memory.size()).descriptor : -1;
  auto direct = GoesDirect(memory, descriptor, target, leased);
  if (direct.has_value() && !*direct) return made;
  if (!direct.has_value()) {
    const char* instead = forced_ ? "; mode auto or bounce takes it" : "";
    direct = Error{ErrorCode::kNotSupported,
                   fmt::format("cuFile cannot transfer {} directly: {}{}", path, direct.error().what, instead), path,
                   offset};
  } else {
    made->cufile_ = cufile_;
    // cuFile may support a filesystem without supporting every file on it.
    if (descriptor >= 0 && !forced_) {
      if (const auto file = made->FileOf(descriptor); !file.has_value()) {
        direct = Error{file.error().code, fmt::format("{}: {}", path, file.error().what)};
      }
    }
  }
  if (!direct.has_value()) {
    if (forced_) return std::move(direct).error();
    NoteRefusal(direct.error());
    made->cufile_ = nullptr;
    return made;
  }
  const MutexLock lock(mutex_);
  if (const auto* pinned = FindPinnedLocked(made->address_, memory.size())) {
    made->base_ = pinned->first;
    made->pin_ = pinned->second.pin;
  }
  return made;
}

void Gpu::NoteRefusal(const Error& error) {
  {
    const MutexLock lock(mutex_);
    if (!refusal_.empty()) return;
    refusal_ = error.what;
  }
  if (on_refusal_) on_refusal_(error.what);
}

Result<bool> Gpu::GoesDirect(const MemoryView& memory, int descriptor, const Target& target, bool leased) const {
  if (cufile_ == nullptr) return false;
  const auto refuse = [](const char* why) { return Error{ErrorCode::kNotSupported, why}; };
  if (leased) return refuse("a lease is used, whose blocks the host must check");
  if (!target) return forced_;
  if (descriptor < 0) {
    // The transfer is so small that it contains at most a few whole blocks.
    if (memory.size() < OpenedFile::kSmallTransfer) return false;
    return refuse("it is not open for direct I/O, or its filesystem has none");
  }
  if (forced_ || cufile_->DirectFor(descriptor)) return true;
  return refuse("cuFile reaches its filesystem or device only through host memory");
}

Result<void> Gpu::CopyOut(const MemoryView& memory, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(const auto described, Describe(memory));
  ASSIGN_OR_RETURN(const auto queue, CopyQueue::Create(described->device()));
  RETURN_IF_ERROR(described->WaitUntilReady());
  return queue->Run({.address = described->address(), .host = host});
}

Result<void> Gpu::Pin(const MemoryView& memory) {
  const uint64_t address = memory.device_address();
  ASSIGN_OR_RETURN(const auto device, DeviceOf(address));
  const MutexLock lock(mutex_);
  if (pinned_.contains(address)) return Error{ErrorCode::kExists, "the tensor's memory is pinned already"};
  Cufile::Pin pin;
  if (cufile_ != nullptr) {
    const CudaDevice::Current current(*device);
    RETURN_IF_ERROR(current.result());
    ASSIGN_OR_RETURN(pin, cufile_->PinMemory(address, memory.size()));
  }
  pinned_[address] = {memory.size(), std::move(pin)};
  return {};
}

bool Gpu::Unpin(uint64_t address) {
  Pinned gone;  // unpinned by cuFile after the lock is released
  const MutexLock lock(mutex_);
  const auto place = pinned_.find(address);
  if (place == pinned_.end()) return false;
  gone = std::move(place->second);
  pinned_.erase(place);
  return true;
}

bool Gpu::IsPinned(uint64_t address, uint64_t size) const {
  const MutexLock lock(mutex_);
  return FindPinnedLocked(address, size) != nullptr;
}

const std::pair<const uint64_t, Gpu::Pinned>* Gpu::FindPinnedLocked(uint64_t address, uint64_t size) const {
  auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) return nullptr;
  const auto& entry = *std::prev(after);
  const bool inside = size <= entry.second.size && address - entry.first <= entry.second.size - size;
  return inside ? &entry : nullptr;
}

}  // namespace weightfs::client

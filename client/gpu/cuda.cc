// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/cuda.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "client/gpu/shared_library.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

// Status codes of CUDA's driver interface.
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kNotReady = 600;
constexpr int kCapturedElsewhere = 906;  // of the default stream, while a stream that synchronizes with it is captured
constexpr int kPointerMemoryType = 2;
constexpr int kPointerDeviceOrdinal = 9;
constexpr unsigned kMemoryTypeHost = 1;
constexpr unsigned kEventWithoutTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kRegisterPortable = 1;

constexpr size_t kMaxName = 256;

}  // namespace

// As declared by CUDA: statuses are ints, addresses on the GPU are 64 bits wide. Programs compiled against CUDA's
// header call the names that end in _v2.
struct Cuda::Functions {
  int (*init)(unsigned flags);
  int (*driver_version)(int* version);
  int (*device_count)(int* count);
  int (*device)(int* handle, int ordinal);
  int (*device_name)(char* name, int size, int handle);
  int (*retain_context)(ContextTag** context, int handle);
  int (*release_context)(int handle);
  int (*push_context)(ContextTag* context);
  int (*pop_context)(ContextTag** context);
  int (*pointer_attribute)(void* value, int attribute, uint64_t address);
  int (*create_stream)(StreamTag** stream, unsigned flags);
  int (*destroy_stream)(StreamTag* stream);
  int (*create_event)(EventTag** event, unsigned flags);
  int (*destroy_event)(EventTag* event);
  int (*record_event)(EventTag* event, StreamTag* stream);
  int (*query_event)(EventTag* event);
  int (*wait_event)(EventTag* event);
  int (*copy_to_device)(uint64_t to, const void* from, size_t size, StreamTag* stream);
  int (*copy_to_host)(void* to, uint64_t from, size_t size, StreamTag* stream);
  int (*lock_host)(void* memory, size_t size, unsigned flags);
  int (*unlock_host)(void* memory);
  int (*exchange_capture_mode)(int* mode);
  int (*is_capturing)(StreamTag* stream, int* capturing);
  int (*error_name)(int status, const char** name);
  int (*error_text)(int status, const char** text);

  Result<void> Resolve(const SharedLibrary& library) {
    const auto need = [&](const char* name, auto** function) -> Result<void> {
      if (library.Find(name, function)) return {};
      return Error{ErrorCode{ENODEV},
                   fmt::format("no GPU to use: {} has no {}; a newer NVIDIA driver has", library.name(), name)};
    };
    RETURN_IF_ERROR(need("cuInit", &init));
    RETURN_IF_ERROR(need("cuDriverGetVersion", &driver_version));
    RETURN_IF_ERROR(need("cuDeviceGetCount", &device_count));
    RETURN_IF_ERROR(need("cuDeviceGet", &device));
    RETURN_IF_ERROR(need("cuDeviceGetName", &device_name));
    RETURN_IF_ERROR(need("cuDevicePrimaryCtxRetain", &retain_context));
    RETURN_IF_ERROR(need("cuDevicePrimaryCtxRelease_v2", &release_context));
    RETURN_IF_ERROR(need("cuCtxPushCurrent_v2", &push_context));
    RETURN_IF_ERROR(need("cuCtxPopCurrent_v2", &pop_context));
    RETURN_IF_ERROR(need("cuPointerGetAttribute", &pointer_attribute));
    RETURN_IF_ERROR(need("cuStreamCreate", &create_stream));
    RETURN_IF_ERROR(need("cuStreamDestroy_v2", &destroy_stream));
    RETURN_IF_ERROR(need("cuEventCreate", &create_event));
    RETURN_IF_ERROR(need("cuEventDestroy_v2", &destroy_event));
    RETURN_IF_ERROR(need("cuEventRecord", &record_event));
    RETURN_IF_ERROR(need("cuEventQuery", &query_event));
    RETURN_IF_ERROR(need("cuEventSynchronize", &wait_event));
    RETURN_IF_ERROR(need("cuMemcpyHtoDAsync_v2", &copy_to_device));
    RETURN_IF_ERROR(need("cuMemcpyDtoHAsync_v2", &copy_to_host));
    RETURN_IF_ERROR(need("cuMemHostRegister_v2", &lock_host));
    RETURN_IF_ERROR(need("cuMemHostUnregister", &unlock_host));
    RETURN_IF_ERROR(need("cuThreadExchangeStreamCaptureMode", &exchange_capture_mode));
    RETURN_IF_ERROR(need("cuStreamIsCapturing", &is_capturing));
    RETURN_IF_ERROR(need("cuGetErrorName", &error_name));
    return need("cuGetErrorString", &error_text);
  }
};

Result<std::shared_ptr<const Cuda>> Cuda::Load() {
  const char* named = std::getenv("WEIGHTFS_CUDA_LIBRARY");
  const std::array<std::string, 1> names{named != nullptr && *named != '\0' ? named : "libcuda.so.1"};
  const auto library = SharedLibrary::Open(names);
  if (!library.has_value()) {
    return Error{ErrorCode{ENODEV},
                 fmt::format("no GPU to use: NVIDIA's driver library cannot be loaded ({})", library.error().what)};
  }
  auto functions = std::make_shared<Functions>();
  RETURN_IF_ERROR(functions->Resolve(*library));
  std::shared_ptr<Cuda> cuda(new Cuda(functions));
  int status = functions->init(0);
  if (status == 0) status = functions->driver_version(&cuda->version_);
  if (status == 0) status = functions->device_count(&cuda->device_count_);
  if (status == 0 && cuda->device_count_ == 0) status = kNoDevice;
  if (status != 0) {
    return Error{ErrorCode{ENODEV}, "no GPU to use: " + cuda->Failed("CUDA cannot be initialised", status).what};
  }
  return cuda;
}

Error Cuda::Failed(const char* action, int status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (functions_->error_name(status, &name) != 0 || name == nullptr) name = "unknown error";
  if (functions_->error_text(status, &text) != 0 || text == nullptr) text = "no description";
  const int error_number = status == kOutOfMemory    ? ENOMEM
                           : status == kNoDevice     ? ENODEV
                           : status == kInvalidValue ? EINVAL
                                                     : EIO;
  return {ErrorCode{error_number}, fmt::format("{}: {} ({}, CUDA error {})", action, text, name, status)};
}

Result<void> Cuda::Check(const char* action, int status) const {
  if (status == 0) return {};
  return Failed(action, status);
}

std::string Cuda::version() const { return fmt::format("{}.{}", version_ / 1000, version_ % 1000 / 10); }

Result<std::string> Cuda::DeviceName(int ordinal) const {
  int handle = 0;
  RETURN_IF_ERROR(Check("cannot find the GPU", functions_->device(&handle, ordinal)));
  std::array<char, kMaxName> name{};
  RETURN_IF_ERROR(Check("cannot ask for the GPU's name",
                        functions_->device_name(name.data(), static_cast<int>(name.size() - 1), handle)));
  return std::string(name.data());
}

Result<int> Cuda::DeviceOf(uint64_t address) const {
  unsigned type = 0;
  int ordinal = 0;
  int status = functions_->pointer_attribute(&type, kPointerMemoryType, address);
  if (status == 0) status = functions_->pointer_attribute(&ordinal, kPointerDeviceOrdinal, address);
  RETURN_IF_ERROR(Check("the tensor's address is no memory of a GPU", status));
  if (type != kMemoryTypeHost) return ordinal;
  return Error{ErrorCode::kInvalid, "the tensor's address is memory of the host, not of a GPU"};
}

Result<std::shared_ptr<const CudaDevice>> CudaDevice::Open(std::shared_ptr<const Cuda> cuda, int ordinal) {
  std::shared_ptr<CudaDevice> device(new CudaDevice(std::move(cuda), ordinal));
  const Cuda::Functions& functions = *device->cuda_->functions_;
  RETURN_IF_ERROR(device->cuda_->Check("cannot find the GPU", functions.device(&device->handle_, ordinal)));
  RETURN_IF_ERROR(device->cuda_->Check("cannot use the GPU's context",
                                       functions.retain_context(&device->context_, device->handle_)));
  return device;
}

CudaDevice::~CudaDevice() {
  if (context_ != nullptr) cuda_->functions_->release_context(handle_);
}

CudaDevice::Current::Current(const CudaDevice& device)
    : device_(device),
      result_(device.cuda_->Check("cannot use the GPU's context",
                                  device.cuda_->functions_->push_context(device.context_))) {
  if (result_.has_value()) device.cuda_->functions_->exchange_capture_mode(&capture_mode_);
}

CudaDevice::Current::~Current() {
  if (!result_.has_value()) return;
  Cuda::ContextTag* ours = nullptr;
  device_.cuda_->functions_->exchange_capture_mode(&capture_mode_);
  device_.cuda_->functions_->pop_context(&ours);
}

template <typename Function>
Result<void> CudaDevice::Call(const char* action, Function function) const {
  const Current current(*this);
  RETURN_IF_ERROR(current.result());
  return cuda_->Check(action, function(*cuda_->functions_));
}

// Errors are ignored: they are older ones of the context that were already reported, or the process is exiting.
void CudaDevice::Destroy::operator()(Cuda::EventTag* event) const {
  [[maybe_unused]] const auto ignored = device->Call("", [&](const auto& cuda) { return cuda.destroy_event(event); });
}

void CudaDevice::Destroy::operator()(Cuda::StreamTag* stream) const {
  [[maybe_unused]] const auto ignored = device->Call("", [&](const auto& cuda) { return cuda.destroy_stream(stream); });
}

void CudaDevice::Destroy::operator()(std::byte* locked) const {
  [[maybe_unused]] const auto ignored = device->Call("", [&](const auto& cuda) { return cuda.unlock_host(locked); });
}

Result<CudaEvent> CudaEvent::Create(std::shared_ptr<const CudaDevice> device) {
  Cuda::EventTag* made = nullptr;
  RETURN_IF_ERROR(device->Call("cannot make an event",
                               [&](const auto& cuda) { return cuda.create_event(&made, kEventWithoutTiming); }));
  return CudaEvent({made, {std::move(device)}});
}

Result<void> CudaEvent::RecordOn(uintptr_t stream) const {
  // A stream handle is a pointer that only CUDA dereferences.
  auto* theirs = reinterpret_cast<Cuda::StreamTag*>(stream);  // NOLINT(performance-no-int-to-ptr)
  // Asked first, because recording on the default stream would end another stream's capture.
  int capturing = 0;
  RETURN_IF_ERROR(device().Call("cannot follow the tensor's stream", [&](const auto& cuda) {
    const int status = cuda.is_capturing(theirs, &capturing);
    if (status != kCapturedElsewhere) return status;
    capturing = 1;
    return 0;
  }));
  if (capturing != 0) {
    return Error{ErrorCode::kInvalid, "a CUDA graph is being captured, which cannot contain transfers of files: start "
                                      "the operation before or after the capture, or on a stream that is not captured"};
  }
  return device().Call("cannot follow the tensor's stream",
                       [&](const auto& cuda) { return cuda.record_event(event_.get(), theirs); });
}

Result<bool> CudaEvent::Reached() const {
  bool reached = false;
  RETURN_IF_ERROR(device().Call("work of the GPU failed", [&](const auto& cuda) {
    const int status = cuda.query_event(event_.get());
    reached = status == 0;
    return status == kNotReady ? 0 : status;
  }));
  return reached;
}

Result<void> CudaEvent::Wait() const {
  return device().Call("work of the GPU failed", [&](const auto& cuda) { return cuda.wait_event(event_.get()); });
}

Result<CudaStream> CudaStream::Create(std::shared_ptr<const CudaDevice> device) {
  Cuda::StreamTag* made = nullptr;
  // The stream does not synchronize with the default stream: all work that a copy depends on has ended before it
  // begins.
  RETURN_IF_ERROR(device->Call("cannot make a stream",
                               [&](const auto& cuda) { return cuda.create_stream(&made, kStreamNonBlocking); }));
  return CudaStream({made, {std::move(device)}});
}

Result<void> CudaStream::CopyToDevice(uint64_t address, std::span<const std::byte> host) const {
  return device().Call("cannot copy to the GPU", [&](const auto& cuda) {
    return cuda.copy_to_device(address, host.data(), host.size(), stream_.get());
  });
}

Result<void> CudaStream::CopyToHost(std::span<std::byte> host, uint64_t address) const {
  return device().Call("cannot copy from the GPU", [&](const auto& cuda) {
    return cuda.copy_to_host(host.data(), address, host.size(), stream_.get());
  });
}

Result<void> CudaStream::Record(const CudaEvent& event) const {
  return device().Call("cannot record an event",
                       [&](const auto& cuda) { return cuda.record_event(event.event_.get(), stream_.get()); });
}

Result<PageLock> PageLock::Create(std::shared_ptr<const CudaDevice> device, std::span<std::byte> memory) {
  RETURN_IF_ERROR(device->Call("cannot lock bounce buffers for the GPU", [&](const auto& cuda) {
    return cuda.lock_host(memory.data(), memory.size(), kRegisterPortable);
  }));
  return PageLock({memory.data(), {std::move(device)}});
}

}  // namespace weightfs::client

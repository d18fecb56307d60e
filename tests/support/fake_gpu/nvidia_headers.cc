// SPDX-License-Identifier: Apache-2.0
// Compares our declarations of CUDA's driver and of cuFile with NVIDIA's headers. Only compiled, never linked: the test
// tests/python/test_nvidia_cufile.py has the headers, and turns access control off.
#include <cuda.h>
#include <cufile.h>

#include <iterator>
#include <type_traits>

// What is compared is in the sources.
#include "client/gpu/cuda.cc"
#include "client/gpu/cufile.cc"

namespace weightfs::client {
namespace {

// The same register, or the same place on the stack.
template <typename Ours, typename Theirs>
constexpr bool IsSameKind() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    // We ignore the result of a function that has only void in older versions.
    return std::is_void_v<Ours>;
  } else {
    return sizeof(Ours) == sizeof(Theirs) && std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct Compare;
template <typename R, typename... A, typename S, typename... B>
struct Compare<R (*)(A...), S (*)(B...)> {
  static constexpr bool Arguments() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return (IsSameKind<A, B>() && ...);
    } else {
      return false;
    }
  }
  static constexpr bool kSame = IsSameKind<R, S>() && Arguments();
};

#define SAME(ours, theirs) static_assert(Compare<decltype(ours), decltype(&::theirs)>::kSame, #theirs)

// cuda.h defines some of the names as those with _v2.
using Driver = Cuda::Functions;
SAME(Driver::init, cuInit);
SAME(Driver::driver_version, cuDriverGetVersion);
SAME(Driver::device_count, cuDeviceGetCount);
SAME(Driver::device, cuDeviceGet);
SAME(Driver::device_name, cuDeviceGetName);
SAME(Driver::retain_context, cuDevicePrimaryCtxRetain);
SAME(Driver::release_context, cuDevicePrimaryCtxRelease_v2);
SAME(Driver::push_context, cuCtxPushCurrent_v2);
SAME(Driver::pop_context, cuCtxPopCurrent_v2);
SAME(Driver::pointer_attribute, cuPointerGetAttribute);
SAME(Driver::create_stream, cuStreamCreate);
SAME(Driver::destroy_stream, cuStreamDestroy_v2);
SAME(Driver::create_event, cuEventCreate);
SAME(Driver::destroy_event, cuEventDestroy_v2);
SAME(Driver::record_event, cuEventRecord);
SAME(Driver::query_event, cuEventQuery);
SAME(Driver::wait_event, cuEventSynchronize);
SAME(Driver::copy_to_device, cuMemcpyHtoDAsync_v2);
SAME(Driver::copy_to_host, cuMemcpyDtoHAsync_v2);
SAME(Driver::lock_host, cuMemHostRegister_v2);
SAME(Driver::unlock_host, cuMemHostUnregister);
SAME(Driver::exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
SAME(Driver::is_capturing, cuStreamIsCapturing);
SAME(Driver::error_name, cuGetErrorName);
SAME(Driver::error_text, cuGetErrorString);

static_assert(kInvalidValue == CUDA_ERROR_INVALID_VALUE && kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(kNoDevice == CUDA_ERROR_NO_DEVICE && kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kCapturedElsewhere == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kPointerDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMemoryTypeHost == CU_MEMORYTYPE_HOST && kEventWithoutTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(CudaDevice::kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

using Library = Cufile::Functions;
SAME(Library::open_driver, cuFileDriverOpen);
SAME(Library::properties, cuFileDriverGetProperties);
SAME(Library::version, cuFileGetVersion);
SAME(Library::open, cuFileHandleRegister);
SAME(Library::close, cuFileHandleDeregister);
SAME(Library::pin, cuFileBufRegister);
SAME(Library::unpin, cuFileBufDeregister);
SAME(Library::read, cuFileRead);
SAME(Library::write, cuFileWrite);

static_assert(sizeof(Cufile::Status) == sizeof(CUfileError_t));
static_assert(offsetof(Cufile::Status, cuda) == offsetof(CUfileError_t, cu_err));
static_assert(sizeof(FileDescription) == sizeof(CUfileDescr_t));
static_assert(offsetof(FileDescription, descriptor) == offsetof(CUfileDescr_t, handle));
static_assert(offsetof(FileDescription, operations) == offsetof(CUfileDescr_t, fs_ops));
static_assert(kFileTypeDescriptor == CU_FILE_HANDLE_TYPE_OPAQUE_FD);
static_assert(sizeof(Properties) >= sizeof(CUfileDrvProps_t));
static_assert(offsetof(Properties, driver_minor) == offsetof(CUfileDrvProps_t, nvfs.minor_version));
static_assert(offsetof(Properties, direct_kinds) == offsetof(CUfileDrvProps_t, nvfs.dstatusflags));
static_assert(offsetof(Properties, features) == offsetof(CUfileDrvProps_t, fflags));

static_assert(kLustre == 1U << CU_FILE_LUSTRE_SUPPORTED && kNfs == 1U << CU_FILE_NFS_SUPPORTED);
static_assert(kGpfs == 1U << CU_FILE_GPFS_SUPPORTED && kBeegfs == 1U << CU_FILE_BEEGFS_SUPPORTED);
static_assert(kScsi == 1U << CU_FILE_SCSI_SUPPORTED && kScaleFlux == 1U << CU_FILE_SCALEFLUX_CSD_SUPPORTED);
static_assert((kNvme & 1U << CU_FILE_NVME_SUPPORTED) != 0 && (kNvme & 1U << CU_FILE_NVMEOF_SUPPORTED) != 0);
static_assert((kNvme & 1U << CU_FILE_NVMESH_SUPPORTED) != 0);

static_assert(kDriverAlreadyOpen == CU_FILE_DRIVER_ALREADY_OPEN && kCudaError == CU_FILE_CUDA_DRIVER_ERROR);
static_assert(kNotRegistered == CU_FILE_HANDLE_NOT_REGISTERED && kInternalError == CU_FILE_INTERNAL_ERROR);
static_assert(kFirstError == CUFILEOP_BASE_ERR);

// Each code that has a text of ours.
constexpr int kTheirs[] = {CU_FILE_DRIVER_NOT_INITIALIZED, CU_FILE_DRIVER_VERSION_MISMATCH, CU_FILE_DRIVER_CLOSING,
                           CU_FILE_PLATFORM_NOT_SUPPORTED, CU_FILE_IO_NOT_SUPPORTED, CU_FILE_DEVICE_NOT_SUPPORTED,
                           CU_FILE_CUDA_DRIVER_ERROR, CU_FILE_CUDA_POINTER_INVALID, CU_FILE_CUDA_MEMORY_TYPE_INVALID,
                           CU_FILE_CUDA_CONTEXT_MISMATCH, CU_FILE_INVALID_MAPPING_SIZE, CU_FILE_INVALID_FILE_TYPE,
                           CU_FILE_INVALID_FILE_OPEN_FLAG, CU_FILE_DIO_NOT_SET, CU_FILE_INVALID_VALUE,
                           CU_FILE_MEMORY_ALREADY_REGISTERED, CU_FILE_PERMISSION_DENIED, CU_FILE_HANDLE_NOT_REGISTERED,
                           CU_FILE_HANDLE_ALREADY_REGISTERED, CU_FILE_INTERNAL_ERROR, CU_FILE_GETNEWFD_FAILED,
                           CU_FILE_NVFS_SETUP_ERROR, CU_FILE_IO_DISABLED, CU_FILE_GPU_MEMORY_PINNING_FAILED,
                           CUFILEOP_BASE_ERR + 43};  // out of memory, in later versions
static_assert(std::size(kTheirs) == kMeanings.size());
static_assert([] {
  for (size_t i = 0; i < kMeanings.size(); ++i) {
    if (kMeanings[i].code != kTheirs[i]) return false;
  }
  return true;
}());

}  // namespace
}  // namespace weightfs::client

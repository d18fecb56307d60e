// SPDX-License-Identifier: Apache-2.0
// The few functions of NVIDIA's driver library (libcuda.so.1) that handles need, and the objects they create: a GPU
// with its context, streams, events. WEIGHTFS_CUDA_LIBRARY names another library (the tests use one without a GPU).
//
// CUDA's errors are converted to Error with CUDA's name of the error: ENODEV without a GPU, ENOMEM, EINVAL for memory
// that does not belong to a GPU, EIO for everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"

namespace weightfs::client {

// Immutable.
class Cuda {
 public:
  // Initializes the driver, if the process has not done so already. ENODEV if there is no library or no GPU.
  static Result<std::shared_ptr<const Cuda>> Load();

  int device_count() const { return device_count_; }
  // The CUDA version that the driver supports: "13.0".
  std::string version() const;
  Result<std::string> DeviceName(int ordinal) const;
  // The ordinal of the GPU whose memory contains `address`; EINVAL if there is none.
  Result<int> DeviceOf(uint64_t address) const;

 private:
  friend class CudaDevice;
  friend class CudaStream;
  friend class CudaEvent;
  struct Functions;
  struct ContextTag;
  struct StreamTag;
  struct EventTag;

  explicit Cuda(std::shared_ptr<const Functions> functions) : functions_(std::move(functions)) {}
  Error Failed(const char* action, int status) const;
  Result<void> Check(const char* action, int status) const;

  std::shared_ptr<const Functions> functions_;
  int device_count_ = 0;
  int version_ = 0;
};

// One GPU, accessed through its primary context, which torch and others also use. Thread-safe.
class CudaDevice {
 public:
  static Result<std::shared_ptr<const CudaDevice>> Open(std::shared_ptr<const Cuda> cuda, int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }
  static constexpr int kCaptureRelaxed = 2;  // CUDA's number

  // Makes the GPU's context current on the calling thread, in CUDA's relaxed capture mode: otherwise a program that
  // captures a graph on another thread would make calls as harmless as a query of an event fail, and its capture with
  // them. The destructor restores both.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Result<void>& result() const { return result_; }

   private:
    const CudaDevice& device_;
    int capture_mode_ = kCaptureRelaxed;  // then the thread's own
    Result<void> result_;
  };

 private:
  friend class CudaStream;
  friend class CudaEvent;
  friend class PageLock;

  // Destroys what the driver has made on this GPU.
  struct Destroy {
    std::shared_ptr<const CudaDevice> device;
    void operator()(Cuda::EventTag* event) const;
    void operator()(Cuda::StreamTag* stream) const;
    void operator()(std::byte* locked) const;
  };
  template <typename Object>
  using Owned = std::unique_ptr<Object, Destroy>;

  CudaDevice(std::shared_ptr<const Cuda> cuda, int ordinal) : cuda_(std::move(cuda)), ordinal_(ordinal) {}
  // Calls function(driver functions) with this context and converts its status. `action` says what failed.
  template <typename Function>
  Result<void> Call(const char* action, Function function) const;
  const std::shared_ptr<const Cuda> cuda_;
  const int ordinal_;
  int handle_ = 0;
  Cuda::ContextTag* context_ = nullptr;
};

// A point in the work of a stream. Thread-safe, except RecordOn.
class CudaEvent {
 public:
  static Result<CudaEvent> Create(std::shared_ptr<const CudaDevice> device);

  // Records the event after all work that the program has put into its stream so far (0: the default stream).
  Result<void> RecordOn(uintptr_t stream) const;
  // True once that point is reached. An error comes from the work before it; nothing is then under way.
  Result<bool> Reached() const;
  Result<void> Wait() const;

 private:
  friend class CudaStream;
  explicit CudaEvent(CudaDevice::Owned<Cuda::EventTag> event) : event_(std::move(event)) {}
  const CudaDevice& device() const { return *event_.get_deleter().device; }
  CudaDevice::Owned<Cuda::EventTag> event_;
};

// Copies run in the order in which they were started, concurrently with other streams. Externally synchronized.
class CudaStream {
 public:
  static Result<CudaStream> Create(std::shared_ptr<const CudaDevice> device);

  // Start a copy. The host memory must stay unchanged until an event recorded after the copy is reached.
  Result<void> CopyToDevice(uint64_t address, std::span<const std::byte> host) const;
  Result<void> CopyToHost(std::span<std::byte> host, uint64_t address) const;
  Result<void> Record(const CudaEvent& event) const;

 private:
  explicit CudaStream(CudaDevice::Owned<Cuda::StreamTag> stream) : stream_(std::move(stream)) {}
  const CudaDevice& device() const { return *stream_.get_deleter().device; }
  CudaDevice::Owned<Cuda::StreamTag> stream_;
};

// Page-locks host memory for all GPUs. Only copies of page-locked memory are asynchronous and run at full speed.
class PageLock {
 public:
  static Result<PageLock> Create(std::shared_ptr<const CudaDevice> device, std::span<std::byte> memory);

 private:
  explicit PageLock(CudaDevice::Owned<std::byte> memory) : memory_(std::move(memory)) {}
  CudaDevice::Owned<std::byte> memory_;
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// The few functions of NVIDIA's driver library (libcuda.so.1) that handles need, and what they make: a GPU with its
// context, streams, events. WEIGHTFS_CUDA_LIBRARY names another library (the tests' one has no GPU behind it).
//
// All of it reports CUDA's errors as an Error: ENODEV without a GPU, ENOMEM, EINVAL for what is no memory of a GPU,
// EIO for the rest, with CUDA's own name of the error.
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
  // Initialises the driver, which some processes do first here. ENODEV when there is no library or no GPU.
  static Result<std::shared_ptr<const Cuda>> Load();

  int device_count() const { return device_count_; }
  // "13.0": what the driver supports.
  std::string version() const;
  Result<std::string> DeviceName(int ordinal) const;
  // The number of the GPU whose memory lies at `address`; EINVAL when none's does.
  Result<int> DeviceOf(uint64_t address) const;

 private:
  friend class CudaDevice;
  friend class CudaStream;
  friend class CudaEvent;
  friend class PageLock;
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

// One GPU, by its primary context, which is the one that torch and others use. Thread-safe.
class CudaDevice {
 public:
  static Result<std::shared_ptr<const CudaDevice>> Open(std::shared_ptr<const Cuda> cuda, int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }

  // Makes its context the calling thread's while it lives; what was the thread's before is so again afterwards.
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    const Result<void>& result() const { return result_; }

   private:
    const CudaDevice& device_;
    Result<void> result_;
  };

 private:
  friend class CudaStream;
  friend class CudaEvent;
  friend class PageLock;
  CudaDevice(std::shared_ptr<const Cuda> cuda, int ordinal) : cuda_(std::move(cuda)), ordinal_(ordinal) {}
  // function(functions of the driver) with this context; its status as a result, in which `action` says what failed.
  template <typename Function>
  Result<void> Call(const char* action, Function function) const;
  const std::shared_ptr<const Cuda> cuda_;
  const int ordinal_;
  int handle_ = 0;
  Cuda::ContextTag* context_ = nullptr;
};

// A point in the work of a stream. Thread-safe, but for RecordOn.
class CudaEvent {
 public:
  static Result<CudaEvent> Create(std::shared_ptr<const CudaDevice> device);
  CudaEvent(CudaEvent&& other) noexcept;
  CudaEvent& operator=(CudaEvent&& other) noexcept;
  ~CudaEvent();

  // After all that the program has put into its stream so far (0: the default stream).
  Result<void> RecordOn(uintptr_t stream) const;
  // True when that point is reached. An error is one of the work before it, and then nothing is under way.
  Result<bool> Reached() const;
  Result<void> Wait() const;

 private:
  friend class CudaStream;
  CudaEvent() = default;
  std::shared_ptr<const CudaDevice> device_;
  Cuda::EventTag* event_ = nullptr;
};

// Copies in the order in which they were started, beside what other streams do. Externally synchronised.
class CudaStream {
 public:
  static Result<CudaStream> Create(std::shared_ptr<const CudaDevice> device);
  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  ~CudaStream();

  // Start a copy; the host's memory must stay as it is until an event behind it is reached.
  Result<void> CopyToDevice(uint64_t address, std::span<const std::byte> host) const;
  Result<void> CopyToHost(std::span<std::byte> host, uint64_t address) const;
  Result<void> Record(const CudaEvent& event) const;

 private:
  CudaStream() = default;
  std::shared_ptr<const CudaDevice> device_;
  Cuda::StreamTag* stream_ = nullptr;
};

// Keeps memory of the host in place, for all GPUs: copies are asynchronous and at full speed only so.
class PageLock {
 public:
  static Result<PageLock> Create(std::shared_ptr<const CudaDevice> device, std::span<std::byte> memory);
  PageLock(PageLock&& other) noexcept;
  PageLock& operator=(PageLock&& other) noexcept;
  ~PageLock();

 private:
  PageLock() = default;
  std::shared_ptr<const CudaDevice> device_;
  std::byte* memory_ = nullptr;
};

}  // namespace weightfs::client

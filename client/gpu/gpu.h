// SPDX-License-Identifier: Apache-2.0
// The GPUs of a process as seen by one handle: how transfers are carried out, which memory is pinned, and the memory of
// each operation.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "client/gpu/cuda.h"
#include "client/gpu/cufile.h"
#include "client/handle.h"
#include "client/lane.h"
#include "client/memory_view.h"
#include "client/target.h"
#include "common/mutex.h"
#include "common/result.h"

namespace weightfs::client {

// Number of bytes of a handle that went through cuFile and through bounce buffers.
struct GpuTraffic {
  std::atomic<uint64_t> cufile{0};
  std::atomic<uint64_t> bounce{0};
};

// The memory of one operation on one GPU. Thread-safe.
class GpuMemory final : public DeviceMemory {
 public:
  const std::shared_ptr<const CudaDevice>& device() const { return device_; }
  uint64_t address() const { return address_; }
  Result<bool> Ready() override;
  // Waits until Ready returns true.
  Result<void> WaitUntilReady() const;
  bool direct() const override { return cufile_ != nullptr; }
  void CountTraffic(bool by_cufile, uint64_t bytes) const override {
    (by_cufile ? traffic_->cufile : traffic_->bounce).fetch_add(bytes, std::memory_order_relaxed);
  }
  std::unique_ptr<DeviceLane> MakeLane(const LaneOptions& options) const override;

  // For cuFile: base() is the start of the pinned memory, or else of the operation's own memory; lead() is the distance
  // from there to the operation's memory.
  uint64_t base() const { return base_; }
  uint64_t lead() const { return address_ - base_; }
  // The file behind a descriptor of the operation's target. It stays registered with cuFile until CloseFiles.
  Result<const Cufile::File*> FileOf(int descriptor) EXCLUDES(mutex_);
  void CloseFiles() override EXCLUDES(mutex_);

 private:
  friend class Gpu;
  GpuMemory() = default;
  std::shared_ptr<const CudaDevice> device_;
  std::shared_ptr<GpuTraffic> traffic_;
  uint64_t address_ = 0;
  uint64_t base_ = 0;
  std::optional<CudaEvent> before_;  // null: nothing to wait for
  std::atomic<bool> ready_{false};
  Cufile::Pin pin_;
  std::shared_ptr<const Cufile> cufile_;
  Mutex mutex_;
  std::map<int, std::unique_ptr<const Cufile::File>> files_ GUARDED_BY(mutex_);
};

// Thread-safe.
class Gpu {
 public:
  // ENODEV without a GPU. With kCufile also the errors of cuFile; with kAuto these errors become the reason for using
  // bounce buffers. Admit calls `on_gpu_refusal` once, with GpuFacts::refusal.
  static Result<std::shared_ptr<Gpu>> Open(const HandleOptions& options);

  GpuFacts facts() const EXCLUDES(mutex_);
  // True in mode kCufile: whole blocks are transferred by cuFile only.
  bool forces_cufile() const { return forced_; }

  // Creates the memory of an operation on the file of this path, from this offset on. An empty target stands for a file
  // that is opened later. `leased`: the operation uses a lease, perhaps on a target that is opened later. EINVAL for
  // memory that does not belong to a GPU, EOPNOTSUPP for a file that mode kCufile cannot use.
  Result<std::shared_ptr<GpuMemory>> Admit(const MemoryView& memory, const Target& target, const std::string& path,
                                           uint64_t offset, bool leased) EXCLUDES(mutex_);
  // Copies GPU memory to host memory and waits for the copy.
  Result<void> CopyOut(const MemoryView& memory, std::span<std::byte> host) EXCLUDES(mutex_);

  // Prepares memory for transfers until it is unpinned. EEXIST if memory at this address is pinned already.
  Result<void> Pin(const MemoryView& memory) EXCLUDES(mutex_);
  // Returns false if nothing is pinned at that address. Operations under way keep the pin until they are done.
  bool Unpin(uint64_t address) EXCLUDES(mutex_);
  bool IsPinned(uint64_t address, uint64_t size) const EXCLUDES(mutex_);

 private:
  struct Pinned {
    uint64_t size = 0;
    Cufile::Pin pin;  // null for bounce buffers, which need no pin
  };

  Gpu() = default;
  Result<void> ChooseWay(GpuMode mode, const std::string& cufile_library);
  Result<std::shared_ptr<GpuMemory>> Describe(const MemoryView& memory) EXCLUDES(mutex_);
  Result<std::shared_ptr<const CudaDevice>> DeviceOf(uint64_t address) EXCLUDES(mutex_);
  // The error says why cuFile does not carry out the operation, though it is in use.
  Result<bool> GoesDirect(const MemoryView& memory, int descriptor, const Target& target, bool leased) const;
  void NoteRefusal(const Error& error) EXCLUDES(mutex_);
  const std::pair<const uint64_t, Pinned>* FindPinnedLocked(uint64_t address, uint64_t size) const REQUIRES(mutex_);

  std::shared_ptr<const Cuda> cuda_;
  std::shared_ptr<const Cufile> cufile_;  // null: bounce buffers
  bool forced_ = false;                   // mode kCufile
  std::function<void(const std::string&)> on_refusal_;
  GpuFacts facts_;  // without the traffic and the refusal
  const std::shared_ptr<GpuTraffic> traffic_ = std::make_shared<GpuTraffic>();

  mutable Mutex mutex_;
  std::string refusal_ GUARDED_BY(mutex_);
  std::map<int, std::shared_ptr<const CudaDevice>> devices_ GUARDED_BY(mutex_);  // by ordinal
  std::map<uint64_t, Pinned> pinned_ GUARDED_BY(mutex_);                         // by address
};

}  // namespace weightfs::client

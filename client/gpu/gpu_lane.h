// SPDX-License-Identifier: Apache-2.0
// The DeviceLane for CUDA and cuFile, its copies, and its threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "client/gpu/cuda.h"
#include "client/gpu/gpu.h"
#include "client/lane.h"
#include "common/mutex.h"

namespace weightfs::client {

// Asynchronous copies between host memory and one GPU. Externally synchronized. It has one stream per direction,
// because both directions can run concurrently.
class CopyQueue {
 public:
  struct Copy {
    Piece* piece = nullptr;  // identifies the copy to the caller
    bool to_device = false;
    uint64_t address = 0;  // on the GPU
    std::span<std::byte> host = {};
  };

  static Result<std::unique_ptr<CopyQueue>> Create(const std::shared_ptr<const CudaDevice>& device);

  const CudaDevice& device() const { return *device_; }
  // Starts a copy. If this fails, nothing was started. The memory must stay valid until the copy has been collected.
  Result<void> Start(const Copy& copy);
  // Adds the copies that have ended since the last call.
  void Collect(std::deque<Lane::Ended>* ended);
  size_t under_way() const { return directions_[0].copies.size() + directions_[1].copies.size(); }
  // Copies and waits for the copy.
  Result<void> Run(const Copy& copy);

 private:
  struct UnderWay {
    Piece* piece;
    CudaEvent end;
  };
  struct Direction {
    CudaStream stream;
    std::deque<UnderWay> copies = {};  // in the order in which they end
  };

  CopyQueue(std::shared_ptr<const CudaDevice> device, std::vector<Direction> directions)
      : device_(std::move(device)), directions_(std::move(directions)) {}
  Result<CudaEvent> Begin(const Copy& copy);

  const std::shared_ptr<const CudaDevice> device_;
  std::vector<Direction> directions_;     // to the host, to the GPU
  std::vector<CudaEvent> unused_events_;  // unused events for reuse
};

// Threads for transfers by cuFile, which block. One is started when the others are busy, up to the maximum. Tasks must
// not throw. Thread-safe; the destructor returns when all tasks have run.
class Workers {
 public:
  explicit Workers(size_t most) : most_(most) {}
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Runs the task on one of the threads. EAGAIN if there is none, and none can be started.
  Result<void> Run(std::function<void()> task) EXCLUDES(mutex_);

 private:
  void Work() EXCLUDES(mutex_);

  const size_t most_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

class GpuLane final : public DeviceLane {
 public:
  explicit GpuLane(const DeviceMemory::LaneOptions& options) : options_(options), workers_(options.threads) {}

  void Start(Piece& piece) override;
  std::optional<Ended> Next() override;
  bool idle() const override { return copies_under_way() == 0 && transferring_ == 0 && ended_.empty(); }
  Result<Buffer> TryBounce(const DeviceMemory& memory) override;
  Result<void> CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) override;
  Result<void> CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) override;
  void Poll(std::chrono::microseconds wait) override EXCLUDES(mutex_);

 private:
  // The end of a transfer by cuFile.
  struct Transferred {
    Piece* piece = nullptr;
    Result<uint64_t> outcome;  // number of bytes
  };

  Result<void> Begin(Piece& piece);
  // Starts a transfer by cuFile, which blocks, on a thread of its own.
  Result<void> Transfer(Piece& piece) EXCLUDES(mutex_);
  void OnTransferred(Piece& piece, const Result<uint64_t>& outcome);
  Result<void> MakeBounces(const GpuMemory& memory);
  Result<CopyQueue*> QueueOf(const DeviceMemory& memory);
  size_t copies_under_way() const;

  const DeviceMemory::LaneOptions options_;
  std::deque<Ended> ended_;
  std::unique_ptr<BufferPool> bounces_;             // allocated on first use
  std::optional<PageLock> lock_;                    // page-locks all bounce buffers; destroyed before them
  std::vector<std::unique_ptr<CopyQueue>> queues_;  // one per GPU
  size_t transferring_ = 0;                         // transfers by cuFile that Poll has not seen end
  Mutex mutex_;
  std::condition_variable changed_;
  std::vector<Transferred> transferred_ GUARDED_BY(mutex_);  // since the last Poll
  Workers workers_;                                          // destroyed first
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// The DeviceLane for CUDA and cuFile.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/gpu/copy_queue.h"
#include "client/gpu/cufile_threads.h"
#include "client/gpu/gpu.h"
#include "client/lane.h"

namespace weightfs::client {

class GpuLane final : public DeviceLane {
 public:
  explicit GpuLane(const DeviceMemory::LaneOptions& options) : options_(options) {}

  void Start(Piece& piece) override;
  std::optional<Ended> Next() override;
  bool idle() const override { return copies_under_way() == 0 && transfers_under_way() == 0 && ended_.empty(); }
  Result<Buffer> TryBounce(const DeviceMemory& memory) override;
  Result<void> CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) override;
  Result<void> CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) override;
  void Poll(std::chrono::microseconds wait) override;

 private:
  Result<void> Begin(Piece& piece);
  Result<void> Transfer(Piece& piece);
  void OnTransferred(Piece& piece, const Result<uint64_t>& outcome);
  Result<void> MakeBounces(const GpuMemory& memory);
  Result<CopyQueue*> QueueOf(const DeviceMemory& memory);
  size_t copies_under_way() const;
  size_t transfers_under_way() const { return threads_ == nullptr ? 0 : threads_->under_way(); }

  const DeviceMemory::LaneOptions options_;
  std::deque<Ended> ended_;
  std::unique_ptr<BufferPool> bounces_;             // allocated on first use
  std::optional<PageLock> lock_;                    // page-locks all bounce buffers; destroyed before them
  std::vector<std::unique_ptr<CopyQueue>> queues_;  // one per GPU
  std::unique_ptr<CufileThreads> threads_;
};

}  // namespace weightfs::client

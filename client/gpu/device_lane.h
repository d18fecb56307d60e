// SPDX-License-Identifier: Apache-2.0
// A ring's side of the memory of GPUs: bounce buffers that are locked for them, copies between those and a GPU, and the
// transfers of cuFile. What is started here ends while the ring does other things; the ring asks what has ended.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/error.h"
#include "client/gpu/copy_queue.h"
#include "client/gpu/cufile_threads.h"
#include "client/gpu/gpu.h"
#include "io/buffer.h"

namespace weightfs::client {

// Externally synchronised. All that was started must have been collected before it is closed or destroyed.
class DeviceLane {
 public:
  struct Options {
    size_t bounces = 64;  // buffers of kBounceSize
    size_t threads = 16;  // for cuFile
  };
  static constexpr uint64_t kBounceSize = kMiB;  // enough for a transfer at the device's full speed

  explicit DeviceLane(const Options& options) : options_(options) {}

  // A bounce buffer; empty when none is free. ENOMEM when they cannot be made.
  IoResult<Buffer> TryBounce(const DeviceMemory& memory);
  // Start what ends under the name of `slot`. `at` and `size` are of the operation's memory.
  IoResult<void> CopyIn(unsigned slot, const DeviceMemory& memory, uint64_t at, std::span<std::byte> host);
  IoResult<void> CopyOut(unsigned slot, const DeviceMemory& memory, uint64_t at, std::span<std::byte> host);
  struct Range {
    uint64_t at = 0;
    uint64_t size = 0;
    int descriptor = -1;
    uint64_t offset = 0;  // on the descriptor
  };
  IoResult<void> Transfer(unsigned slot, const std::shared_ptr<DeviceMemory>& memory, bool write, const Range& range);
  // Copy into and out of the GPU, and wait for it.
  IoResult<void> CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host);
  IoResult<void> CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host);

  bool idle() const { return copies_under_way() == 0 && transfers_under_way() == 0; }
  size_t copies_under_way() const;
  size_t transfers_under_way() const { return threads_ == nullptr ? 0 : threads_->under_way(); }
  // Gives everything back; nothing may be started afterwards.
  void Close();
  // What has ended since the last call, copies and transfers. When there are only transfers, waits for one at most so
  // long.
  std::vector<CopyQueue::Ended> CollectCopies();
  std::vector<CufileThreads::Ended> CollectTransfers(std::chrono::microseconds wait);

 private:
  IoResult<void> MakeBounces(const DeviceMemory& memory);
  IoResult<CopyQueue*> QueueOf(const DeviceMemory& memory);

  const Options options_;
  std::unique_ptr<BufferPool> bounces_;             // made when the first is asked for
  std::optional<PageLock> lock_;                    // of all of them; goes before they do
  std::vector<std::unique_ptr<CopyQueue>> queues_;  // one for each GPU
  std::unique_ptr<CufileThreads> threads_;
};

}  // namespace weightfs::client

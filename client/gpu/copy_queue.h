// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies between host memory and one GPU.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "client/gpu/cuda.h"
#include "common/result.h"

namespace weightfs::client {

struct Piece;

// Externally synchronized. It has one stream per direction, because both directions can run concurrently.
class CopyQueue {
 public:
  struct Copy {
    Piece* piece = nullptr;  // identifies the copy to the caller
    bool to_device = false;
    uint64_t address = 0;  // on the GPU
    std::span<std::byte> host = {};
  };
  struct Ended {
    Piece* piece = nullptr;
    Result<void> outcome = {};
  };

  static Result<std::unique_ptr<CopyQueue>> Create(const std::shared_ptr<const CudaDevice>& device);

  const CudaDevice& device() const { return *device_; }
  // Starts a copy. If this fails, nothing was started. The memory must stay valid until the copy has been collected.
  Result<void> Start(const Copy& copy);
  // Adds the copies that have ended since the last call.
  void Collect(std::vector<Ended>* ended);
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

}  // namespace weightfs::client

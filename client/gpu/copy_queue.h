// SPDX-License-Identifier: Apache-2.0
// Copies between the host's memory and one GPU that go on while their caller does other things.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "client/gpu/cuda.h"
#include "common/result.h"

namespace weightfs::client {

struct Piece;

// Externally synchronised. A stream for each direction, for the two run beside each other.
class CopyQueue {
 public:
  struct Copy {
    Piece* piece = nullptr;  // the caller's name of it
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
  // After an error nothing was started. The memory must stay until the copy is collected.
  Result<void> Start(const Copy& copy);
  // Adds the copies that have ended since the last call.
  void Collect(std::vector<Ended>* ended);
  size_t under_way() const { return directions_[0].copies.size() + directions_[1].copies.size(); }
  // Copies, and waits for it.
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
  std::vector<Direction> directions_;  // to the host, to the GPU
  std::vector<CudaEvent> spares_;      // used before, and free
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Lanes move pieces: FileLane between memory and files, a DeviceLane to and from the memory of GPUs. client/gpu
// implements the latter; nothing else knows CUDA and cuFile.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/result.h"
#include "io/buffer.h"

namespace weightfs::client {

struct Piece;

// What a lane ends a read with that met the end of the file: no errno.
constexpr ErrorCode kEndOfFile{};

// Externally synchronised. A piece that was started must stay until Next has returned it.
class Lane {
 public:
  struct Ended {
    Piece* piece = nullptr;
    // kEndOfFile in a read; without `what` the code says all.
    std::optional<Error> error = {};
    bool withdrawn = false;  // not carried out, because its operation was stopped
  };

  virtual ~Lane() = default;
  // Begins the piece's step. Its failure, too, comes by Next.
  virtual void Start(Piece& piece) = 0;
  // A piece whose step has ended; none, as far as the lane has looked.
  virtual std::optional<Ended> Next() = 0;
  // True when every piece that was started has been returned by Next.
  virtual bool idle() const = 0;
};

class DeviceLane;

// The memory of one operation. Thread-safe.
class DeviceMemory {
 public:
  struct LaneOptions {
    size_t bounces = 64;  // buffers of DeviceLane::kBounceSize
    size_t threads = 16;  // for cuFile
  };

  virtual ~DeviceMemory() = default;
  // True when the work is done that was in the tensor's stream when the operation was started. An error when it failed.
  virtual Result<bool> Ready() = 0;
  // True when whole blocks go by cuFile.
  virtual bool direct() const = 0;
  virtual void CountTraffic(bool by_cufile, uint64_t bytes) const = 0;
  // Before the target's descriptors are closed.
  virtual void CloseFiles() = 0;
  // The lane of a ring, for all memory of this kind.
  virtual std::unique_ptr<DeviceLane> MakeLane(const LaneOptions& options) const = 0;
};

// A ring's side: bounce buffers that are locked for GPUs, copies between those and a GPU (kCopyOut, kCopyIn), and
// transfers of cuFile (kTransfer). What is started ends while the ring does other things. Everything must have ended
// before the lane is destroyed.
class DeviceLane : public Lane {
 public:
  static constexpr uint64_t kBounceSize = 1 << 20;  // enough for a transfer at the device's full speed

  // A bounce buffer; empty when none is free. ENOMEM when they cannot be made.
  virtual Result<Buffer> TryBounce(const DeviceMemory& memory) = 0;
  // Copy to and from the operation's memory at `at`, and wait for it.
  virtual Result<void> CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) = 0;
  virtual Result<void> CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) = 0;
  // Looks for what has ended. When only transfers of cuFile are under way, waits for one, at most so long.
  virtual void Poll(std::chrono::microseconds wait) = 0;
};

}  // namespace weightfs::client

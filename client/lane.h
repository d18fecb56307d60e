// SPDX-License-Identifier: Apache-2.0
// Lanes move pieces: a FileLane between memory and files, a DeviceLane to and from GPU memory. client/gpu implements
// DeviceLane; no other folder knows CUDA and cuFile.
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

// The code, not an errno, with which a lane ends a read that met the end of the file.
constexpr ErrorCode kEndOfFile{};

// Externally synchronized. A started piece must stay valid until Next has returned it.
class Lane {
 public:
  struct Ended {
    Piece* piece = nullptr;
    // kEndOfFile in a read. If `what` is empty, the code alone describes the error.
    std::optional<Error> error = {};
    bool withdrawn = false;  // the piece was not carried out, because its operation was stopped
  };

  virtual ~Lane() = default;
  // Begins the piece's phase. A failure is also reported through Next.
  virtual void Start(Piece& piece) = 0;
  // Returns a piece whose phase has ended, or nothing if the lane has seen none.
  virtual std::optional<Ended> Next() = 0;
  // True when Next has returned every started piece.
  virtual bool idle() const = 0;
};

class DeviceLane;

// The GPU memory of one operation. Thread-safe.
class DeviceMemory {
 public:
  struct LaneOptions {
    size_t bounces = 64;  // number of buffers of DeviceLane::kBounceSize
    size_t threads = 16;  // for cuFile
  };

  virtual ~DeviceMemory() = default;
  // True when the work that was in the tensor's stream at the start of the operation is done. An error if that work
  // failed.
  virtual Result<bool> Ready() = 0;
  // True if whole blocks are transferred by cuFile.
  virtual bool direct() const = 0;
  virtual void CountTraffic(bool by_cufile, uint64_t bytes) const = 0;
  // Must be called before the target's descriptors are closed.
  virtual void CloseFiles() = 0;
  // Creates the lane of a ring, for all memory of this kind.
  virtual std::unique_ptr<DeviceLane> MakeLane(const LaneOptions& options) const = 0;
};

// A ring's lane for GPU memory. It has page-locked bounce buffers, copies between them and a GPU (kCopyOut, kCopyIn),
// and transfers by cuFile (kTransfer). All of these run asynchronously, and all must have ended before the lane is
// destroyed.
class DeviceLane : public Lane {
 public:
  static constexpr uint64_t kBounceSize = 1 << 20;  // enough for a transfer at the device's full speed

  // Returns a bounce buffer; empty if none is free. ENOMEM if the buffers cannot be allocated.
  virtual Result<Buffer> TryBounce(const DeviceMemory& memory) = 0;
  // Copy to and from the operation's memory at `at`, and wait for the copy.
  virtual Result<void> CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) = 0;
  virtual Result<void> CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) = 0;
  // Looks for ended copies and transfers. If only cuFile transfers are under way, waits for one of them, for at most
  // `wait`.
  virtual void Poll(std::chrono::microseconds wait) = 0;
};

}  // namespace weightfs::client

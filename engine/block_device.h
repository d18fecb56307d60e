// SPDX-License-Identifier: Apache-2.0
// A pool device: bytes in units of kBlockSize, written and read asynchronously, made durable by Flush.
// FileDevice is the real one (libaio, O_DIRECT); tests/support has one that loses power.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "common/result.h"
#include "common/units.h"

namespace weightfs {

// One transfer. The caller owns the request and its memory until OnComplete runs. `offset`, `size` and the address
// of `data` are multiples of kBlockSize; the range lies inside the device.
class IoRequest {
 public:
  enum class Operation : unsigned char { kRead, kWrite };

  Operation operation = Operation::kRead;
  ByteOffset offset;
  std::byte* data = nullptr;
  ByteCount size;

  // For the device, until OnComplete: the pieces that it cut the request into, and their first error.
  size_t pieces_left = 0;
  std::optional<ErrorCode> error = {};

  // Runs exactly once for each submitted request, on a completion thread and never inside Submit: the caller of
  // Submit may hold locks that OnComplete takes. Success means that every byte was transferred. It must not block on
  // other I/O of the same device; it may Submit. The request may be destroyed in it.
  virtual void OnComplete(Result<void> result) = 0;

 protected:
  ~IoRequest() = default;
};

// Thread-safe.
class BlockDevice {
 public:
  virtual ~BlockDevice() = default;

  virtual ByteCount size() const = 0;
  virtual std::string_view path() const = 0;

  // Starts every request. Requests in flight at once are not ordered among themselves. Never waits for I/O:
  // what the ring cannot take now is queued. Errors of submission arrive through OnComplete.
  virtual void Submit(std::span<IoRequest* const> requests) = 0;

  // Returns when every write completed before the call is on stable storage. After a failure nothing may be assumed
  // about earlier writes, and a later success does not bring them back.
  virtual Result<void> Flush() = 0;

  // Synchronous transfers for superblocks, fsck and tests, made of Submit. Same alignment rules.
  Result<void> Read(ByteOffset offset, std::span<std::byte> out);
  Result<void> Write(ByteOffset offset, std::span<const std::byte> in);
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The interface of an IoRing to the kernel's asynchronous I/O. aio_queue.cc implements it with libaio and is the only
// production file that uses libaio; io_uring could be a second implementation.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/result.h"
#include "io/io_ring.h"

namespace weightfs {

// A fixed number of slots with one transfer each. Different threads may prepare and submit different slots at the same
// time while one thread waits. Any thread may call Wake.
class KernelQueue {
 public:
  struct Event {
    unsigned slot = 0;
    int64_t result = 0;  // bytes, or a negative errno
  };

  // `wakeable` enables Wake; the queue then takes one more slot from the system limit.
  static Result<std::unique_ptr<KernelQueue>> Create(unsigned slots, bool wakeable);
  virtual ~KernelQueue() = default;

  // Sets the transfer of a slot that is not in the kernel. Its first `done` bytes are skipped.
  virtual void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) = 0;
  // Submits prepared slots to the kernel. Returns how many it accepted (a prefix), or a negative errno for the first
  // slot.
  virtual int Submit(std::span<const unsigned> slots) = 0;
  // Waits for at least `minimum` events, or for Wake, or until the timeout. Returns the number of events, which may be
  // 0, or a negative errno.
  virtual int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) = 0;
  // Makes the current call of Wait return, or the next one if there is none.
  virtual void Wake() = 0;
};

}  // namespace weightfs

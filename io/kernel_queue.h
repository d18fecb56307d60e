// SPDX-License-Identifier: Apache-2.0
// What an IoRing needs of a kernel interface for asynchronous I/O. aio_queue.cc implements it with libaio and is the
// only production file that knows libaio; io_uring could be a second implementation.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/result.h"
#include "io/io_ring.h"

namespace weightfs {

// A fixed number of slots, each with one transfer. Different threads may prepare and submit different slots at the same
// time, while one thread waits. Wake may be called by any thread.
class KernelQueue {
 public:
  struct Event {
    unsigned slot = 0;
    int64_t result = 0;  // bytes, or a negative errno
  };

  // With `wakeable`, Wake works; the queue then takes one slot more from the system's limit.
  static Result<std::unique_ptr<KernelQueue>> Create(unsigned slots, bool wakeable);
  virtual ~KernelQueue() = default;

  // Sets the transfer of a slot that is not in the kernel: all of it, beginning `done` bytes after its start.
  virtual void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) = 0;
  // Hands prepared slots to the kernel. Returns how many it accepted, which is a prefix, or a negative errno, which is
  // about the first slot.
  virtual int Submit(std::span<const unsigned> slots) = 0;
  // Waits for at least `minimum` events, or for Wake, or until the timeout. Returns the number of events, which may be
  // 0, or a negative errno.
  virtual int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) = 0;
  // Makes the current call of Wait return, or else the next one.
  virtual void Wake() = 0;
};

}  // namespace weightfs

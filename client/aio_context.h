// SPDX-License-Identifier: Apache-2.0
// One libaio context with room for a fixed number of transfers. The only part that knows libaio is
// aio_context.cc.
//
// engine/aio_ring.h is another way to use libaio: it serves many submitters by a thread of its own, on one
// descriptor. Here the caller decides what one io_submit holds and when completions are waited for, for those
// are the options of a handle.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "client/error.h"

namespace weightfs::client {

// Externally synchronised.
class AioContext {
 public:
  struct Transfer {
    bool write = false;
    int descriptor = -1;
    void* data = nullptr;
    size_t size = 0;
    uint64_t offset = 0;
  };
  struct Event {
    unsigned slot = 0;
    int64_t result = 0;  // bytes, or a negative errno
  };

  // With a smaller depth where the system has no more left. EAGAIN with the numbers of fs.aio-max-nr
  // when there is not even one; it says that as many contexts as `together` are made at once.
  static IoResult<std::unique_ptr<AioContext>> Create(unsigned depth, size_t together = 1);
  // Nothing may be in flight.
  ~AioContext();

  // Transfers that may be in flight at once.
  unsigned depth() const;
  // Twice as many can be prepared.
  unsigned slots() const;
  // Sets what the slot will transfer; it is not in flight.
  void Prepare(unsigned slot, const Transfer& transfer);
  // One io_submit of prepared slots: how many were accepted (a prefix), or a negative errno, which is about
  // the first.
  int Submit(std::span<const unsigned> slots);
  // Waits for at least `minimum` events, for ever or at most so long. How many came, or a negative errno.
  int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);

 private:
  class Impl;
  explicit AioContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs::client

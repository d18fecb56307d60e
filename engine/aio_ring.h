// SPDX-License-Identifier: Apache-2.0
// One libaio context with the thread that reaps it. The only part that knows libaio is aio_ring.cc.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "common/units.h"
#include "engine/block_device.h"

namespace weightfs {

// Logs a failed operation on a device once and gives its code: kNoSpace for ENOSPC and EDQUOT, else kIo.
ErrorCode ReportIoError(const char* operation, ByteOffset offset, ByteCount size, const std::string& path,
                        int error_number);

// Thread-safe. Requests go to the kernel as they are (FileDevice cuts large ones); the limits of the ring show nowhere:
// what it cannot take now waits in a queue that completions drain.
class AioRing {
 public:
  struct Options {
    int descriptor = -1;         // borrowed; open as long as the ring lives
    std::string path;            // for messages
    unsigned queue_depth = 256;  // requests in the kernel at once
  };

  // kAgain when fs.aio-max-nr is exhausted, kIo otherwise; full lines.
  static Result<std::unique_ptr<AioRing>> Create(Options options);

  // Completes everything submitted, also what OnComplete submits to this ring meanwhile, then ends the thread.
  ~AioRing();

  // Returns when nothing is in flight: every OnComplete has returned.
  void Drain();
  // Requests taken so far.
  uint64_t submitted() const;

  // Never blocks on a full ring and never runs OnComplete. Completions come from the ring's thread.
  void Submit(std::span<IoRequest* const> requests);

  // Completes the request with `code` from the ring's thread, without any I/O.
  void Reject(IoRequest* request, ErrorCode code);

 private:
  class Impl;
  explicit AioRing(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weightfs

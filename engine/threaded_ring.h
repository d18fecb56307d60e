// SPDX-License-Identifier: Apache-2.0
// An IoRing for one descriptor, with the thread that reaps it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "engine/block_device.h"
#include "io/io_ring.h"

namespace weightfs {

// Logs a failed operation on a device once and returns its code: kNoSpace for ENOSPC and EDQUOT, else kIo.
ErrorCode ReportIoError(const char* operation, ByteOffset offset, ByteCount size, const std::string& path,
                        int error_number);

// Thread-safe. Requests are split into pieces of at most 1 MiB. Their number is unlimited: requests that do not fit in
// the ring wait in its queue.
class ThreadedRing {
 public:
  struct Options {
    int descriptor = -1;         // borrowed; must stay open during the ring's lifetime
    std::string path;            // for messages
    unsigned queue_depth = 256;  // pieces in the kernel at once
  };

  // Returns kAgain when fs.aio-max-nr is exhausted, kIo otherwise. Errors are full lines.
  static Result<std::unique_ptr<ThreadedRing>> Create(Options options);

  ~ThreadedRing() { Stop(); }
  // Completes all submitted requests, including those that OnComplete submits to this ring, then ends the thread.
  void Stop() EXCLUDES(mutex_);

  // Never blocks on a full ring and never runs OnComplete. The ring's thread reports completions.
  void Submit(std::span<IoRequest* const> requests) EXCLUDES(mutex_);

  size_t outstanding() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return outstanding_;
  }

  // Completes the request with `code` on the ring's thread, without I/O.
  void Reject(IoRequest* request, ErrorCode code) EXCLUDES(mutex_);

 private:
  struct Rejected {
    IoRequest* request;
    ErrorCode code;
  };

  ThreadedRing(Options options, std::unique_ptr<IoRing> ring);
  void Run() EXCLUDES(mutex_);
  // nullopt when the transfer is complete.
  std::optional<ErrorCode> ErrorOf(const IoRing::Completion& completion) const;

  const Options options_;
  const std::unique_ptr<IoRing> ring_;
  mutable Mutex mutex_;
  std::vector<Rejected> rejected_ GUARDED_BY(mutex_);  // for the ring's thread to complete
  size_t outstanding_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weightfs

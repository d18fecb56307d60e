// SPDX-License-Identifier: Apache-2.0
#include "bench/worker/direct_loop.h"

#include <fmt/format.h>
#include <libaio.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace weightfs::bench {
namespace {

// Destroys the context, which waits for the requests in flight, before the buffers are freed.
class Context {
 public:
  explicit Context(unsigned depth) : error_(-io_setup(static_cast<int>(depth), &context_)) {}
  ~Context() {
    if (error_ == 0) io_destroy(context_);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  int error() const { return error_; }
  io_context_t get() const { return context_; }

 private:
  io_context_t context_ = nullptr;
  const int error_;
};

class Pass {
 public:
  Pass(const DirectLoop& loop, io_context_t context)
      : loop_(loop), context_(context), controls_(loop.depth), events_(loop.depth) {}

  Result<uint64_t> Run() {
    for (unsigned slot = 0; slot < loop_.depth; ++slot) Prepare(slot);
    RETURN_IF_ERROR(Submit());
    while (in_flight_ > 0) RETURN_IF_ERROR(Reap());
    return done_;
  }

 private:
  void Prepare(unsigned slot) {
    const auto offset = loop_.next();
    if (!offset.has_value()) return;
    iocb& control = controls_[slot];
    const auto prepare = loop_.write ? io_prep_pwrite : io_prep_pread;
    const uint64_t place = loop_.translate ? loop_.translate(*offset) : *offset;
    prepare(&control, loop_.descriptor, loop_.memory(slot, *offset), loop_.request, static_cast<long long>(place));
    control.data = reinterpret_cast<void*>(*offset);
    ready_.push_back(&control);
  }

  Result<void> Submit() {
    for (size_t sent = 0; sent < ready_.size();) {
      const int taken = io_submit(context_, static_cast<long>(ready_.size() - sent), ready_.data() + sent);
      if (taken < 0 && taken != -EAGAIN) {
        return Error{ErrorCode::kIo, fmt::format("io_submit: {}", std::strerror(-taken))};
      }
      if (taken > 0) sent += static_cast<size_t>(taken), in_flight_ += static_cast<size_t>(taken);
    }
    ready_.clear();
    return {};
  }

  Result<void> Reap() {
    const int count = io_getevents(context_, 1, static_cast<long>(in_flight_), events_.data(), nullptr);
    if (count == -EINTR) return {};
    if (count < 0) return Error{ErrorCode::kIo, fmt::format("io_getevents: {}", std::strerror(-count))};
    for (int at = 0; at < count; ++at) {
      const io_event& event = events_[static_cast<size_t>(at)];
      --in_flight_;
      RETURN_IF_ERROR(Finish(*event.obj, static_cast<long>(event.res)));
      // Submitted one by one, so that the device begins the first request while the next one is prepared. With batches,
      // a device that also completes in batches would be idle in between (measured: 71k instead of 84k random reads per
      // second).
      RETURN_IF_ERROR(Submit());
    }
    return {};
  }

  Result<void> Finish(const iocb& control, long result) {
    const auto offset = reinterpret_cast<uint64_t>(control.data);
    if (result < 0)
      return Error{ErrorCode::kIo,
                   fmt::format("a request at {} failed: {}", offset, std::strerror(static_cast<int>(-result)))};
    if (static_cast<uint64_t>(result) != loop_.request) {
      return Error{ErrorCode::kIo, fmt::format("a request at {} moved {} of {} bytes", offset, result, loop_.request)};
    }
    if (loop_.check && !loop_.check(static_cast<const std::byte*>(control.u.c.buf), offset)) {
      return Error{ErrorCode::kCorrupt, fmt::format("wrong bytes were read at {}", offset)};
    }
    ++done_;
    Prepare(static_cast<unsigned>(&control - controls_.data()));
    return {};
  }

  const DirectLoop& loop_;
  const io_context_t context_;
  std::vector<iocb> controls_;
  std::vector<io_event> events_;
  std::vector<iocb*> ready_;
  size_t in_flight_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

Result<uint64_t> Run(const DirectLoop& loop) {
  const Context context(loop.depth);
  if (context.error() != 0) {
    return Error{ErrorCode::kAgain, fmt::format("io_setup for {} requests: {}; raise fs.aio-max-nr", loop.depth,
                                                std::strerror(context.error()))};
  }
  return Pass(loop, context.get()).Run();
}

}  // namespace weightfs::bench

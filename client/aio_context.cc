// SPDX-License-Identifier: Apache-2.0
#include "client/aio_context.h"

#include <fmt/format.h>
#include <libaio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace weightfs::client {
namespace {

constexpr size_t kBatch = 64;            // iocbs or events handed to the kernel at once, on the stack
constexpr long kSecond = 1'000'000'000;  // in nanoseconds

std::string ReadSysctl(const char* path) {
  std::ifstream file(path);
  std::string value;
  return std::getline(file, value) ? value : "unknown";
}

IoError SetupError(unsigned depth, size_t together, int error_number) {
  if (error_number != EAGAIN) {
    return {error_number,
            fmt::format("io_setup for {} transfers failed: {}; check that the kernel has libaio and no sandbox "
                        "forbids it",
                        depth, std::strerror(error_number))};
  }
  return {EAGAIN,
          fmt::format("no room for asynchronous transfers: /proc/sys/fs/aio-max-nr is {} and {} are taken; this "
                      "handle wants {} ({} threads with a queue_depth of {}): want fewer, raise the limit with "
                      "'sysctl -w fs.aio-max-nr=1048576', or close other handles",
                      ReadSysctl("/proc/sys/fs/aio-max-nr"), ReadSysctl("/proc/sys/fs/aio-nr"), together * depth,
                      together, depth)};
}

}  // namespace

class AioContext::Impl {
 public:
  ~Impl() {
    if (context_ != nullptr) io_destroy(context_);
  }

  IoResult<void> Setup(unsigned depth, size_t together) {
    for (unsigned tried = depth;; tried /= 2) {
      const int rc = io_setup(static_cast<int>(tried), &context_);
      if (rc == 0) {
        depth_ = tried;
        controls_.resize(size_t{2} * tried);
        return {};
      }
      // A smaller ring serves as well, if more slowly.
      if (rc != -EAGAIN || tried == 1) return SetupError(depth, together, -rc);
    }
  }

  unsigned depth() const { return depth_; }
  unsigned slots() const { return static_cast<unsigned>(controls_.size()); }

  void Prepare(unsigned slot, const Transfer& transfer) {
    iocb* control = &controls_[slot];
    const auto prepare = transfer.write ? io_prep_pwrite : io_prep_pread;
    prepare(control, transfer.descriptor, transfer.data, transfer.size, static_cast<long long>(transfer.offset));
  }

  int Submit(std::span<const unsigned> slots) {
    std::array<iocb*, kBatch> batch;
    size_t accepted = 0;
    while (accepted < slots.size()) {
      const size_t count = std::min(slots.size() - accepted, batch.size());
      for (size_t i = 0; i < count; ++i) batch[i] = &controls_[slots[accepted + i]];
      const int rc = io_submit(context_, static_cast<long>(count), batch.data());
      if (rc <= 0) return accepted > 0 ? static_cast<int>(accepted) : rc;
      accepted += static_cast<size_t>(rc);
      if (static_cast<size_t>(rc) < count) break;
    }
    return static_cast<int>(accepted);
  }

  int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) {
    std::array<io_event, kBatch> batch;
    size_t got = 0;
    do {
      const size_t room = std::min(events.size() - got, batch.size());
      const size_t wanted = std::min(minimum > got ? minimum - got : 0, room);
      timespec limit{};
      if (timeout) limit = {timeout->count() / kSecond, timeout->count() % kSecond};
      const int rc = io_getevents(context_, static_cast<long>(wanted), static_cast<long>(room), batch.data(),
                                  timeout ? &limit : nullptr);
      if (rc <= 0) return got > 0 ? static_cast<int>(got) : rc;
      for (size_t i = 0; i < static_cast<size_t>(rc); ++i) {
        // The kernel's result is a signed number in an unsigned field.
        events[got++] = {static_cast<unsigned>(batch[i].obj - controls_.data()), static_cast<int64_t>(batch[i].res)};
      }
    } while (got < minimum && got < events.size());
    return static_cast<int>(got);
  }

 private:
  io_context_t context_ = nullptr;
  unsigned depth_ = 0;
  std::vector<iocb> controls_;  // never resized after Setup: the kernel's events point into it
};

IoResult<std::unique_ptr<AioContext>> AioContext::Create(unsigned depth, size_t together) {
  auto impl = std::make_unique<Impl>();
  auto setup = impl->Setup(depth, together);
  if (!setup.has_value()) return std::move(setup).error();
  return std::unique_ptr<AioContext>(new AioContext(std::move(impl)));
}

AioContext::AioContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AioContext::~AioContext() = default;

unsigned AioContext::depth() const { return impl_->depth(); }
unsigned AioContext::slots() const { return impl_->slots(); }
void AioContext::Prepare(unsigned slot, const Transfer& transfer) { impl_->Prepare(slot, transfer); }
int AioContext::Submit(std::span<const unsigned> slots) { return impl_->Submit(slots); }
int AioContext::Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) {
  return impl_->Wait(minimum, events, timeout);
}

}  // namespace weightfs::client

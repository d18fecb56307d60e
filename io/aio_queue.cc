// SPDX-License-Identifier: Apache-2.0
// Implements KernelQueue with libaio.
#include <fmt/format.h>
#include <libaio.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "common/assert.h"
#include "common/unique_fd.h"
#include "io/io_ring.h"

namespace weightfs {
namespace {

constexpr auto kSecond = std::chrono::seconds(1);
constexpr std::chrono::nanoseconds kRearmPause = std::chrono::milliseconds(1);

std::string ReadSysctl(const char* path) {
  std::ifstream file(path);
  std::string value;
  return std::getline(file, value) ? value : "unknown";
}

Error SetupFailure(unsigned slots, int error_number) {
  if (error_number != EAGAIN) {
    return {ErrorCode{error_number},
            fmt::format("io_setup for {} transfers failed: {}; check that the kernel has libaio and no "
                        "sandbox forbids it",
                        slots, std::strerror(error_number))};
  }
  return {ErrorCode::kAgain,
          fmt::format("no room for asynchronous transfers: /proc/sys/fs/aio-max-nr is {} and {} are taken; raise "
                      "the limit with 'sysctl -w fs.aio-max-nr=1048576' or lower the queue depth",
                      ReadSysctl("/proc/sys/fs/aio-max-nr"), ReadSysctl("/proc/sys/fs/aio-nr"))};
}

class AioQueue final : public KernelQueue {
 public:
  AioQueue(io_context_t context, unsigned slots) : context_(context), controls_(slots) {}
  // io_destroy also cancels the poll of the eventfd.
  ~AioQueue() override { io_destroy(context_); }
  AioQueue(const AioQueue&) = delete;
  AioQueue& operator=(const AioQueue&) = delete;

  // Returns false with errno set on failure.
  bool MakeWakeable() {
    wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return wake_ && ArmWake();
  }

  void Prepare(unsigned slot, const IoRing::Transfer& transfer, uint64_t done) override {
    const auto prepare = transfer.write ? io_prep_pwrite : io_prep_pread;
    prepare(&controls_[slot], transfer.descriptor, transfer.data + done, transfer.size - done,
            static_cast<long long>(transfer.offset + done));
  }

  int Submit(std::span<const unsigned> slots) override {
    std::array<iocb*, IoRing::kMaxBatch> batch;
    WEIGHTFS_ASSERT(slots.size() <= batch.size());
    for (size_t i = 0; i < slots.size(); ++i) batch[i] = &controls_[slots[i]];
    return io_submit(context_, static_cast<long>(slots.size()), batch.data());
  }

  int Wait(size_t minimum, std::span<Event> events, std::optional<std::chrono::nanoseconds> timeout) override {
    // Without the poll no event reports a Wake.
    if (wake_ && !wake_armed_) timeout = std::min(timeout.value_or(kRearmPause), kRearmPause);
    timespec limit{};
    if (timeout) limit = {*timeout / kSecond, (*timeout % kSecond).count()};
    std::array<io_event, IoRing::kMaxBatch> batch;
    const auto room = static_cast<long>(std::min(events.size(), batch.size()));
    const int rc = io_getevents(context_, static_cast<long>(minimum), room, batch.data(), timeout ? &limit : nullptr);
    int count = 0;
    for (int i = 0; i < rc; ++i) {
      const io_event& event = batch[static_cast<size_t>(i)];
      if (event.obj == &wake_control_) {
        wake_armed_ = false;
        continue;
      }
      // The kernel stores a signed result in an unsigned field.
      events[static_cast<size_t>(count++)] = {static_cast<unsigned>(event.obj - controls_.data()),
                                              static_cast<int64_t>(event.res)};
    }
    // Rearm before the caller looks for the reason of the Wake, so that a later Wake ends the next Wait.
    if (wake_ && !wake_armed_) ArmWake();
    return rc < 0 ? rc : count;
  }

  void Wake() override {
    WEIGHTFS_ASSERT(wake_);
    // The counter of an eventfd cannot overflow by increments of one, so this write cannot fail.
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

 private:
  // Makes the kernel poll the eventfd once, for wakes from now on. Returns false with errno set on failure.
  bool ArmWake() {
    uint64_t wakes = 0;
    // EAGAIN means that there was no wake in between.
    [[maybe_unused]] const ssize_t drained = read(wake_.get(), &wakes, sizeof(wakes));
    io_prep_poll(&wake_control_, wake_.get(), POLLIN);
    iocb* control = &wake_control_;
    const int rc = io_submit(context_, 1, &control);
    wake_armed_ = rc == 1;
    if (rc < 0) errno = -rc;
    return wake_armed_;
  }

  const io_context_t context_;
  std::vector<iocb> controls_;  // never resized, because the kernel's events point into it
  UniqueFd wake_;               // an eventfd
  iocb wake_control_{};
  bool wake_armed_ = false;
};

}  // namespace

Result<std::unique_ptr<KernelQueue>> KernelQueue::Create(unsigned slots, bool wakeable) {
  io_context_t context = nullptr;
  const int rc = io_setup(static_cast<int>(slots + (wakeable ? 1 : 0)), &context);
  if (rc < 0) return SetupFailure(slots, -rc);
  auto queue = std::make_unique<AioQueue>(context, slots);
  if (wakeable && !queue->MakeWakeable()) {
    return Error{ErrorCode{errno},
                 fmt::format("cannot watch an eventfd: {}; Linux 4.18 or newer is needed", std::strerror(errno))};
  }
  return queue;
}

}  // namespace weightfs

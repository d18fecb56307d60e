// SPDX-License-Identifier: Apache-2.0
#include "fs/memory_pressure.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/log.h"
#include "common/result.h"
#include "common/start_thread.h"
#include "common/system_calls.h"

namespace weightfs {
namespace {

constexpr const char* kPath = "/proc/pressure/memory";
constexpr int kTendMilliseconds = 3000;
// In microseconds. Users without CAP_SYS_RESOURCE may ask for windows of two seconds alone.
constexpr const char *kTrigger = "some 100000 1000000", *kUsersTrigger = "some 200000 2000000";

// The kernel takes the last byte for the end of the text, whatever it is.
bool Ask(int file, const char* trigger) {
  const size_t size = std::strlen(trigger) + 1;
  return write(file, trigger, size) == static_cast<ssize_t>(size);
}

Result<UniqueFd> OpenPressure() {
  UniqueFd file(open(kPath, O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!file) return SystemError(kPath, "cannot be opened");
  if (!Ask(file.get(), kTrigger) && !Ask(file.get(), kUsersTrigger)) return SystemError(kPath, "cannot be watched");
  return file;
}

}  // namespace

Result<std::unique_ptr<MemoryPressure>> MemoryPressure::Watch(std::function<void()> relieve,
                                                              std::function<void()> tend) {
  auto file = OpenPressure();
  if (!file) spdlog::info("{}; cache_memory= alone bounds the memory of hot files", ToString(file.error()));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC));
  if (!wake) return SystemError(kPath, "no eventfd");
  std::unique_ptr<MemoryPressure> watch(new MemoryPressure(
      file ? std::move(*file) : UniqueFd(), std::move(wake), std::move(relieve), std::move(tend)));
  ASSIGN_OR_RETURN(watch->thread_, StartThread("weightfs-memory", [raw = watch.get()] { raw->Run(); }));
  return watch;
}

MemoryPressure::~MemoryPressure() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

void MemoryPressure::Run() {
  std::array<pollfd, 2> waiting{pollfd{pressure_.get(), POLLPRI, 0}, pollfd{wake_.get(), POLLIN, 0}};
  while (true) {
    const int ready = RepeatInterrupted([&] { return poll(waiting.data(), waiting.size(), kTendMilliseconds); });
    if (ready < 0) spdlog::error("{}: is watched no more: {}", kPath, std::strerror(errno));
    if (ready < 0 || waiting[1].revents != 0) return;
    if ((waiting[0].revents & POLLERR) != 0) {
      spdlog::warn("{} reports nothing more; cache_memory= alone bounds the memory of hot files", kPath);
      waiting[0] = {.fd = -1, .events = 0, .revents = 0};  // poll ignores it
    } else if ((waiting[0].revents & POLLPRI) != 0) {
      relieve_();
    }
    tend_();  // also under steady pressure
  }
}

}  // namespace weightfs

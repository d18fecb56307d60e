// SPDX-License-Identifier: Apache-2.0
// Tells a mount when the machine is short of memory. Private to fs/.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs {

// Watches the pressure stall information of the kernel (https://docs.kernel.org/accounting/psi.html).
class MemoryPressure {
 public:
  // From now on, `relieve` runs on a thread of this object whenever tasks have waited for memory for 100 ms in a
  // second, at most once a second. Errors are full lines: the kernel does not count them, or does not tell this user.
  static Result<std::unique_ptr<MemoryPressure>> Watch(std::function<void()> relieve);
  ~MemoryPressure();
  MemoryPressure(const MemoryPressure&) = delete;
  MemoryPressure& operator=(const MemoryPressure&) = delete;

 private:
  MemoryPressure(UniqueFd pressure, UniqueFd wake, std::function<void()> relieve)
      : pressure_(std::move(pressure)), wake_(std::move(wake)), relieve_(std::move(relieve)) {}
  void Run();

  const UniqueFd pressure_, wake_;
  const std::function<void()> relieve_;
  std::thread thread_;
};

}  // namespace weightfs

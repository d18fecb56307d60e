// SPDX-License-Identifier: Apache-2.0
// Tends the memory of a mount's hot files. Private to fs/.
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
  // second, at most once a second, and `tend` every few seconds. If the kernel does not count them, or does not tell
  // this user, a line says so, and only `tend` runs.
  static Result<std::unique_ptr<MemoryPressure>> Watch(std::function<void()> relieve, std::function<void()> tend);
  ~MemoryPressure();
  bool is_told() const { return static_cast<bool>(pressure_); }  // by the kernel
  MemoryPressure(const MemoryPressure&) = delete;
  MemoryPressure& operator=(const MemoryPressure&) = delete;

 private:
  MemoryPressure(UniqueFd pressure, UniqueFd wake, std::function<void()> relieve, std::function<void()> tend)
      : pressure_(std::move(pressure)), wake_(std::move(wake)), relieve_(std::move(relieve)), tend_(std::move(tend)) {}
  void Run();

  const UniqueFd pressure_, wake_;
  const std::function<void()> relieve_, tend_;
  std::thread thread_;
};

}  // namespace weightfs

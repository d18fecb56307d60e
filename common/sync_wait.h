// SPDX-License-Identifier: Apache-2.0
// Waits for an asynchronous call that reports through a callback.
#pragma once

#include <future>
#include <utility>

#include "common/result.h"

namespace weightfs {

// Calls start(done) and returns the T that is passed to done(T), on any thread. `done` must be called once.
template <typename T = Result<void>, typename Start>
T SyncWait(const Start& start) {
  std::promise<T> promise;
  auto result = promise.get_future();
  start([&promise](T value) { promise.set_value(std::move(value)); });
  return result.get();
}

}  // namespace weightfs

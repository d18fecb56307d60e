// SPDX-License-Identifier: Apache-2.0
// What the Python classes of handles and readers have in common: the close, and calls without the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "client/operation.h"
#include "python/src/gil.h"

namespace weightfs::client {

// The class behind a Python class of a handle or a reader. Guarded by the GIL: close() may be called while other
// threads are in a call.
template <typename T>
class Closable {
 public:
  // `name`: "handle" or "reader".
  Closable(std::unique_ptr<T> opened, const char* name) : handle_(std::move(opened)), name_(name) {}
  ~Closable() { Close(); }
  Closable(const Closable&) = delete;
  Closable& operator=(const Closable&) = delete;

  // The GIL is released, because the destructor of a handle waits for the kernel and its callbacks need the GIL.
  // Returns true if no operation uses its memory any more. False if that is unknown: another thread may be in a call,
  // which keeps the handle until it returns, and in a callback a reader does not wait.
  bool Close() {
    auto handle = std::exchange(handle_, nullptr);
    if (handle == nullptr) return false;
    const bool ends = handle.use_count() == 1 && !Operation::CallbackScope::active();
    const ReleaseGil nogil;
    handle.reset();
    return ends;
  }

  // Called after Close: waits until no other thread is in a call. Not for a forked child, which does not have these
  // threads.
  void Join() const {
    const ReleaseGil nogil;
    for (int calls = calls_.load(); calls > 0; calls = calls_.load()) calls_.wait(calls);
  }

  bool closed() const { return handle_ == nullptr; }
  std::shared_ptr<T> get() const {
    if (handle_ == nullptr) throw pybind11::value_error(std::string("the ") + name_ + " is closed");
    return handle_;
  }

  // Calls `call` with the handle, with the GIL released. The last reference is also dropped without the GIL. If a
  // signal handler raised an exception meanwhile, raises that exception.
  template <typename Call>
  auto WithoutGil(Call call) const {
    auto handle = get();
    ++calls_;  // guarded by the GIL; Join, which runs after Close, waits for every call that holds the handle
    auto result = [&] {
      const ReleaseGil nogil;
      const EndCall end{calls_, handle};
      return call(*handle);
    }();
    if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    return result;
  }

 private:
  struct EndCall {
    std::atomic<int>& calls;
    std::shared_ptr<T>& handle;
    ~EndCall() {
      handle.reset();
      --calls;
      calls.notify_all();
    }
  };

  std::shared_ptr<T> handle_;
  const char* const name_;
  mutable std::atomic<int> calls_{0};
};

}  // namespace weightfs::client

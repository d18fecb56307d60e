// SPDX-License-Identifier: Apache-2.0
// The native part of the Python package: handles, operations and locked memory. Python interprets tensors; here memory
// is an address with a shape, on the host or on a GPU. Every call that may block releases the GIL.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "client/operation.h"
#include "python/src/convert.h"
#include "python/src/gil.h"

namespace weightfs::client {
namespace {

// Python's signal handlers run during the wait.
bool WaitForOperation(const Operation& self, std::optional<double> timeout_s) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kBetweenSignals = std::chrono::milliseconds(100);
  // More than a century counts as forever.
  const bool limited = timeout_s && *timeout_s < 4e9;
  const auto end =
      Clock::now() + std::chrono::nanoseconds(limited ? static_cast<int64_t>(std::max(*timeout_s, 0.0) * 1e9) : 0);
  for (;;) {
    const auto left = limited ? std::max(end - Clock::now(), Clock::duration::zero()) : kBetweenSignals;
    {
      const ReleaseGil nogil;
      if (self.Wait(std::min<Clock::duration>(left, kBetweenSignals))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if ((limited && Clock::now() >= end) || Operation::CallbackScope::active()) return false;
  }
}

void BindOperation(py::module_& module) {
  py::class_<Operation, std::shared_ptr<Operation>>(module, "Operation")
      .def("done", &Operation::done)
      .def("cancelled", &Operation::cancelled)
      .def("cancel", &Operation::Cancel)
      .def("size", &Operation::size)
      .def("transferred", &Operation::transferred)
      .def("error",
           [](const Operation& self) -> py::object {
             const auto error = self.error();
             return error ? MakeException(*error) : py::none();
           })
      .def("wait", &WaitForOperation)
      .def("waits_for_this_thread", &Operation::WaitsForThisThread)
      .def("on_done",
           [](Operation& self, const py::object& callback) {
             const Callable call(callback);
             const ReleaseGil nogil;
             self.OnDone([call] { call(); });
           })
      .def_static("in_callback", &Operation::CallbackScope::active);
}

}  // namespace
}  // namespace weightfs::client

PYBIND11_MODULE(_native, module) {
  weightfs::client::BindHandle(module);
  weightfs::client::BindReader(module);
  weightfs::client::BindOperation(module);
  weightfs::client::BindMemory(module);
  weightfs::client::BindFiles(module);
  module.attr("__version__") = WEIGHTFS_VERSION;
}

// SPDX-License-Identifier: Apache-2.0
// Conversions between Python's objects and the types of the client library, and the parts of the native module.
// Functions that take or return Python objects need the GIL. Invalid arguments raise Python's exceptions. What depends
// on several of them, such as the size of a tensor, weightfs._core has checked.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/handle.h"
#include "common/error.h"
#include "python/src/gil.h"

namespace weightfs::client {

namespace py = pybind11;

// Paths need not be UTF-8: surrogateescape is Python's way to represent such bytes in a str.
py::object ToStr(const std::string& text);

// Makes an OSError of the subclass for its errno (FileNotFoundError, ...), with the attribute `offset`.
py::object MakeException(const Error& error);
[[noreturn]] void Raise(const Error& error);

template <typename T>
T Check(Result<T> result) {
  if (!result.has_value()) Raise(result.error());
  return std::move(*result);
}
inline void Check(Result<void> result) {
  if (!result.has_value()) Raise(result.error());
}

// A Python callable that any thread may call and destroy.
class Callable {
 public:
  explicit Callable(py::object callable)
      : callable_(new py::object(std::move(callable)), [](py::object* object) {
          // A thread that outlives the interpreter must not access it.
          if (!InterpreterRuns()) return;
          const AcquireGil gil;
          delete object;
        }) {}

  template <typename... Arguments>
  void operator()(const Arguments&... arguments) const {
    if (!InterpreterRuns()) return;
    const AcquireGil gil;
    try {
      (*callable_)(ToPython(arguments)...);
    } catch (py::error_already_set& error) {
      if (error.matches(PyExc_KeyboardInterrupt)) {
        // Ctrl-C arrived while the thread that waits for the operation ran this callback: interrupt that wait.
        PyErr_SetInterrupt();
      } else if (!std::exchange(*raised_, true)) {
        error.discard_as_unraisable("a callback of weightfs");
      }
    } catch (abi::__forced_unwind&) {
      ParkForEver();
    }
  }

 private:
  static py::object ToPython(const std::string& text) { return ToStr(text); }
  static uint64_t ToPython(uint64_t number) { return number; }

  std::shared_ptr<py::object> callable_;
  std::shared_ptr<bool> raised_ = std::make_shared<bool>(false);  // guarded by the GIL; later ones are not printed
};

// Empty for None.
Progress MakeProgress(const py::object& callable);

inline std::byte* ToPointer(uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// (address, item size, shape, strides in bytes, stream). Without strides the memory is contiguous. The stream is empty
// for host memory; for GPU memory it is a CUDA stream handle or kNoStream.
using Memory =
    std::tuple<uintptr_t, size_t, std::vector<int64_t>, std::optional<std::vector<int64_t>>, std::optional<int64_t>>;
constexpr int64_t kNoStream = -1;

MemoryView MakeMemory(const Memory& memory);
MemoryView MakeHostMemory(const Memory& memory);  // ValueError for memory of a GPU

// A path (str or bytes) or a descriptor.
FileName MakeFile(const py::object& file);
Direct MakeDirect(const std::string& name);

// Each adds a part to the module.
void BindHandle(py::module_& module);  // Handle
void BindReader(py::module_& module);  // Reader
void BindMemory(py::module_& module);  // LockedMemory, ZipCrc32Thread and functions for memory
void BindFiles(py::module_& module);   // functions for replacing a file

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
#include "python/src/convert.h"

#include <functional>
#include <numeric>
#include <span>

namespace weightfs::client {

py::object ToStr(const std::string& text) { return py::bytes(text).attr("decode")("utf-8", "surrogateescape"); }

py::object MakeException(const Error& error) {
  const auto type = py::reinterpret_borrow<py::object>(PyExc_OSError);
  py::object made = error.path.empty() ? type(error.error_number(), ToStr(error.what))
                                       : type(error.error_number(), ToStr(error.what), ToStr(error.path));
  made.attr("offset") = error.offset;
  return made;
}

void Raise(const Error& error) {
  const py::object made = MakeException(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw py::error_already_set();
}

Progress MakeProgress(const py::object& callable) {
  if (callable.is_none()) return {};
  if (PyCallable_Check(callable.ptr()) == 0) throw py::type_error("progress is a function of two numbers");
  return [call = Callable(callable)](uint64_t done, uint64_t total) { call(done, total); };
}

MemoryView MakeMemory(const Memory& memory) {
  const auto& [address, item_size, shape, strides, stream] = memory;
  std::byte* const base = ToPointer(address);
  if (strides) return Check(MemoryView::Strided(base, item_size, shape, *strides));
  const auto size = std::accumulate(shape.begin(), shape.end(), item_size, std::multiplies<>());
  if (!stream) return MemoryView(std::span(base, size));
  return MemoryView::OnDevice(address, size, *stream == kNoStream ? std::nullopt : std::optional<uintptr_t>(*stream));
}

MemoryView MakeHostMemory(const Memory& memory) {
  if (std::get<4>(memory)) throw py::value_error("this is memory of a GPU, where the host's is needed");
  return MakeMemory(memory);
}

FileName MakeFile(const py::object& file) {
  if (py::isinstance<py::int_>(file)) return file.cast<int>();
  return file.cast<std::string>();
}

Direct MakeDirect(const std::string& name) {
  if (name == "auto") return Direct::kAuto;
  if (name == "never") return Direct::kNever;
  if (name == "require") return Direct::kRequire;
  throw py::value_error("direct is 'auto', 'never' or 'require'");
}

}  // namespace weightfs::client

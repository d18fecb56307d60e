// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client/random_reader.h"
#include "python/src/bind.h"
#include "python/src/closable.h"
#include "python/src/convert.h"
#include "python/src/gil.h"

namespace weightfs::client {
namespace {

using PyReader = Closable<RandomReader>;

// Reads numbers of 4 or 8 bytes from a one-dimensional buffer. False for other buffers.
bool TakeNumbers(const py::buffer_info& info, std::vector<int64_t>* numbers) {
  const char kind = info.format.empty() ? '\0' : info.format.back();
  const bool is_signed = std::strchr("ilq", kind) != nullptr, is_unsigned = std::strchr("ILQ", kind) != nullptr;
  if (kind == '\0' || info.ndim != 1 || (!is_signed && !is_unsigned) || (info.itemsize != 4 && info.itemsize != 8)) {
    return false;
  }
  numbers->reserve(static_cast<size_t>(info.shape[0]));
  for (py::ssize_t i = 0; i < info.shape[0]; ++i) {
    const char* at = static_cast<const char*>(info.ptr) + i * info.strides[0];
    int64_t number = 0;
    std::memcpy(&number, at, static_cast<size_t>(info.itemsize));
    if (info.itemsize == 4) number = is_signed ? static_cast<int32_t>(number) : static_cast<uint32_t>(number);
    numbers->push_back(number);
  }
  return true;
}

// The offset base + number * step of each number, in bytes. EINVAL for an offset that no file has.
std::vector<uint64_t> MakeOffsets(const py::object& sequence, int64_t base, int64_t step) {
  const auto invalid = [](const std::string& number) {
    Raise({ErrorCode::kInvalid, number + " cannot be an offset or a row of a file: it is negative or too large"});
  };
  std::vector<int64_t> numbers;
  if (!py::isinstance<py::buffer>(sequence) || !TakeNumbers(py::cast<py::buffer>(sequence).request(), &numbers)) {
    for (const py::handle item : sequence) {
      const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
      if (!number) throw py::error_already_set();
      int overflow = 0;
      numbers.push_back(PyLong_AsLongLongAndOverflow(number.ptr(), &overflow));
      if (overflow != 0) invalid(py::str(number));
    }
  }
  std::vector<uint64_t> offsets;
  offsets.reserve(numbers.size());
  for (const int64_t number : numbers) {
    int64_t offset = 0;
    if (number < 0 || __builtin_mul_overflow(number, step, &offset) || __builtin_add_overflow(offset, base, &offset)) {
      invalid(std::to_string(number));
    }
    offsets.push_back(static_cast<uint64_t>(offset));
  }
  return offsets;
}

}  // namespace

void BindReader(py::module_& module) {
  py::class_<PyReader, std::shared_ptr<PyReader>>(module, "Reader")
      .def(py::init([](const py::object& file, unsigned queue_depth, uint64_t memory, const std::string& direct) {
        const auto name = MakeFile(file);
        const RandomReaderOptions options{.queue_depth = queue_depth, .memory = memory, .direct = MakeDirect(direct)};
        return std::make_shared<PyReader>(Check(WithoutGil([&] { return RandomReader::Open(name, options); })),
                                          "reader");
      }))
      .def("close", &PyReader::Close)
      .def("join", &PyReader::Join)
      .def("read",
           [](const PyReader& self, const py::object& numbers, int64_t base, int64_t step, uint64_t length,
              const Memory& arguments) {
             const auto offsets = MakeOffsets(numbers, base, step);
             const auto memory = MakeHostMemory(arguments);
             Check(self.WithoutGil(
                 [&](RandomReader& reader) { return reader.ReadRows(offsets, length, memory, &SignalRaised); }));
           })
      .def("start_read",
           [](const PyReader& self, const py::object& numbers, int64_t base, int64_t step, uint64_t length,
              const Memory& arguments) {
             const auto offsets = MakeOffsets(numbers, base, step);
             const auto memory = MakeHostMemory(arguments);
             return Check(
                 self.WithoutGil([&](RandomReader& reader) { return reader.StartRows(offsets, length, memory); }));
           })
      .def("refresh",
           [](const PyReader& self) { Check(self.WithoutGil([](RandomReader& reader) { return reader.Refresh(); })); })
      .def("size", [](const PyReader& self) { return self.get()->file_size(); })
      .def("leased", [](const PyReader& self) { return self.get()->leased(); })
      .def("no_lease", [](const PyReader& self) {
        const auto reason = self.get()->no_lease();
        return ToStr(reason ? reason->what : "");
      });
}

}  // namespace weightfs::client

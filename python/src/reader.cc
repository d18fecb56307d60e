// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/random_reader.h"
#include "common/result.h"
#include "python/src/closable.h"
#include "python/src/convert.h"
#include "python/src/gil.h"

namespace weightfs::client {
namespace {

using PyReader = Closable<RandomReader>;

// Of a table: the number of its rows, from the last of which a negative number counts, and the number from which on
// IndexError is raised. A file without a lease may have grown, so the second may exceed the first. Empty: the numbers
// are offsets.
using MaybeRows = std::optional<std::pair<int64_t, int64_t>>;

[[noreturn]] void RaiseOutOfBounds(const std::string& number, bool are_rows) {
  if (are_rows) throw py::index_error("row " + number + " is out of bounds");
  Raise({ErrorCode::kInvalid, number + " cannot be an offset in a file: it is negative or too large"});
}

std::vector<int64_t> MakeNumbers(const py::object& sequence, bool are_rows) {
  std::vector<int64_t> numbers;
  if (py::isinstance<py::buffer>(sequence)) {  // a fast path: the numbers are not objects of Python
    const py::buffer_info info = py::cast<py::buffer>(sequence).request();
    if (info.ndim == 1 && info.item_type_is_equivalent_to<int64_t>()) {
      const auto* const first = static_cast<const char*>(info.ptr);
      for (py::ssize_t i = 0; i < info.size; ++i) {
        numbers.push_back(*reinterpret_cast<const int64_t*>(first + i * info.strides[0]));
      }
      return numbers;
    }
  }
  for (const py::handle item : sequence) {
    if (PyBool_Check(item.ptr())) throw py::type_error("a truth value cannot be among numbers");
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (!number) throw py::error_already_set();
    int overflow = 0;
    numbers.push_back(PyLong_AsLongLongAndOverflow(number.ptr(), &overflow));
    if (overflow != 0) RaiseOutOfBounds(py::str(number), are_rows);
  }
  return numbers;
}

// The offset base + number * step of each number, in bytes. Without `rows`: EINVAL for an offset that no file has.
std::vector<uint64_t> MakeOffsets(const py::object& sequence, int64_t base, int64_t step, const MaybeRows& rows) {
  const std::vector<int64_t> numbers = MakeNumbers(sequence, rows.has_value());
  const auto [count, most] = rows.value_or(std::pair{int64_t{0}, INT64_MAX});
  std::vector<uint64_t> offsets;
  offsets.reserve(numbers.size());
  for (const int64_t number : numbers) {
    const int64_t at = number < 0 ? number + count : number;
    int64_t offset = 0;
    if (at < 0 || at >= most || __builtin_mul_overflow(at, step, &offset) ||
        __builtin_add_overflow(offset, base, &offset)) {
      RaiseOutOfBounds(std::to_string(number), rows.has_value());
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
      .def("closed", &PyReader::closed)
      .def("join", &PyReader::Join)
      .def("read",
           [](const PyReader& self, const py::object& numbers, int64_t base, int64_t step, const MaybeRows& rows,
              uint64_t length, const Memory& arguments, bool starts) {
             const auto offsets = MakeOffsets(numbers, base, step, rows);
             const auto memory = MakeHostMemory(arguments);
             using Started = std::shared_ptr<Operation>;
             return Check(self.WithoutGil([&](RandomReader& reader) -> Result<Started> {
               if (starts) return reader.StartRows(offsets, length, memory);
               RETURN_IF_ERROR(reader.ReadRows(offsets, length, memory, &SignalRaised));
               return Started();
             }));
           })
      .def("refresh",
           [](const PyReader& self) { Check(self.WithoutGil([](RandomReader& reader) { return reader.Refresh(); })); })
      .def("size", [](const PyReader& self) { return self.get()->file_size(); })
      .def("present_size",
           [](const PyReader& self) {
             return Check(self.WithoutGil([](RandomReader& reader) { return reader.present_size(); }));
           })
      .def("leased", [](const PyReader& self) { return self.get()->leased(); })
      .def("no_lease", [](const PyReader& self) {
        const auto reason = self.get()->no_lease();
        return ToStr(reason ? reason->what : "");
      });
}

}  // namespace weightfs::client

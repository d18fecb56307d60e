// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstdint>
#include <cstring>
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

static_assert(std::endian::native == std::endian::little);

// Of a table: the number of its rows, from the last of which a negative number counts, and the number from which on
// IndexError is raised. A file without a lease may have grown, so the second may exceed the first. Empty: the numbers
// are offsets.
using MaybeRows = std::optional<std::pair<int64_t, int64_t>>;

[[noreturn]] void RaiseOutOfBounds(const std::string& number, bool are_rows) {
  if (are_rows) throw py::index_error("row " + number + " is out of bounds");
  Raise({ErrorCode::kInvalid, number + " cannot be an offset in a file: it is negative or too large"});
}

// Reads integers of any size and byte order (a format of PEP 3118) from a one-dimensional buffer. Returns false for
// other buffers.
bool TakeNumbers(const py::buffer_info& info, bool are_rows, std::vector<int64_t>* numbers) {
  const std::string& format = info.format;
  const char order = format.size() == 2 ? format[0] : '@', letter = format.empty() ? '\0' : format.back();
  const bool is_signed = letter != '\0' && std::strchr("bhilqn", letter) != nullptr;
  const bool is_unsigned = letter != '\0' && std::strchr("BHILQN", letter) != nullptr;
  const auto size = static_cast<size_t>(info.itemsize);
  if (info.ndim != 1 || format.size() > 2 || std::strchr("@=<>!", order) == nullptr || (!is_signed && !is_unsigned) ||
      size > sizeof(uint64_t)) {
    return false;
  }
  const auto unused_bits = 8 * static_cast<unsigned>(sizeof(uint64_t) - size);
  numbers->reserve(static_cast<size_t>(info.shape[0]));
  for (py::ssize_t i = 0; i < info.shape[0]; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, static_cast<const char*>(info.ptr) + i * info.strides[0], size);
    if (order == '>' || order == '!') bits = __builtin_bswap64(bits) >> unused_bits;
    if (is_unsigned && bits > INT64_MAX) RaiseOutOfBounds(std::to_string(bits), are_rows);
    numbers->push_back(is_signed ? static_cast<int64_t>(bits << unused_bits) >> unused_bits
                                 : static_cast<int64_t>(bits));
  }
  return true;
}

void TakeItems(const py::object& sequence, bool are_rows, std::vector<int64_t>* numbers) {
  for (const py::handle item : sequence) {
    if (PyBool_Check(item.ptr())) throw py::type_error("a truth value cannot be among numbers");
    const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(item.ptr()));
    if (!number) throw py::error_already_set();
    int overflow = 0;
    numbers->push_back(PyLong_AsLongLongAndOverflow(number.ptr(), &overflow));
    if (overflow != 0) RaiseOutOfBounds(py::str(number), are_rows);
  }
}

// The offset base + number * step of each number, in bytes. Without `rows`: EINVAL for an offset that no file has.
std::vector<uint64_t> MakeOffsets(const py::object& sequence, int64_t base, int64_t step, const MaybeRows& rows) {
  std::vector<int64_t> numbers;
  if (!py::isinstance<py::buffer>(sequence) ||
      !TakeNumbers(py::cast<py::buffer>(sequence).request(), rows.has_value(), &numbers)) {
    TakeItems(sequence, rows.has_value(), &numbers);
  }
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

// SPDX-License-Identifier: Apache-2.0
// Locked and divided memory; views, copies and checksums of memory; helpers for replacing files; publications.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/divided_memory.h"
#include "client/open/replacement.h"
#include "client/locked_memory.h"
#include "client/publication.h"
#include "common/checksum.h"
#include "common/result.h"
#include "python/src/convert.h"
#include "python/src/gil.h"

namespace weightfs::client {
namespace {

py::buffer_info BytesOf(std::byte* data, size_t size) {
  return {data, 1, py::format_descriptor<uint8_t>::format(), static_cast<py::ssize_t>(size)};
}

}  // namespace

void BindMemory(py::module_& module) {
  py::class_<LockedMemory, std::shared_ptr<LockedMemory>>(module, "LockedMemory", py::buffer_protocol())
      .def(py::init([](size_t size) { return Check(WithoutGil([&] { return LockedMemory::Allocate(size); })); }))
      .def_buffer([](LockedMemory& self) { return BytesOf(self.data(), self.size()); });
  py::class_<DividedMemory::Part, std::shared_ptr<DividedMemory::Part>>(module, "MemoryPart", py::buffer_protocol())
      .def_buffer([](DividedMemory::Part& self) { return BytesOf(self.data(), self.size()); });
  py::class_<DividedMemory, std::shared_ptr<DividedMemory>>(module, "DividedMemory", py::buffer_protocol())
      .def(py::init([](size_t size) { return Check(DividedMemory::Allocate(size)); }))
      .def_static("of_file", [](int file, uint64_t offset, size_t size) {
        return Check(DividedMemory::Map(file, offset, size));
      })
      .def("take", &DividedMemory::Take)
      .def_buffer([](DividedMemory& self) { return BytesOf(self.data(), self.size()); });
  module.def("is_locked", [](uintptr_t address, size_t size) { return IsLocked(ToPointer(address), size); });
  module.def("unlock", [](uintptr_t address) {
    const auto memory = FindLocked(ToPointer(address));
    return memory != nullptr && WithoutGil([&] { return memory->Unlock(); });
  });
  // Returns (address, item size, shape, strides or None, read-only) of an object with the buffer protocol. The caller
  // must hold a memoryview of the object meanwhile.
  module.def("describe_buffer", [](const py::buffer& buffer) {
    const py::buffer_info info = buffer.request();
    const bool contiguous = PyBuffer_IsContiguous(info.view(), 'C') != 0;
    return py::make_tuple(reinterpret_cast<uintptr_t>(info.ptr), info.itemsize, info.shape,
                          contiguous ? py::object(py::none()) : py::cast(info.strides), info.readonly);
  });
  // Only the pages that are completely in the memory. It is advice: memory that cannot have huge pages stays as it is.
  module.def("advise_huge_pages", [](uintptr_t address, size_t size) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = (address + page - 1) / page * page;
    const uintptr_t end = (address + size) / page * page;
    const ReleaseGil nogil;
    if (begin < end) madvise(ToPointer(begin), end - begin, MADV_HUGEPAGE);
  });
  module.def("zip_crc32", [](uintptr_t address, size_t size) {
    return WithoutGil([&] { return ZipCrc32({ToPointer(address), size}); });
  });
  // Computes the CRC-32 of memory on a thread of its own, which Python could not start while it exits. The memory must
  // stay valid until the result is there, or until this object is destroyed, which waits for the thread.
  using Crc32 = std::shared_future<uint32_t>;
  py::class_<Crc32>(module, "ZipCrc32Thread", py::module_local())
      .def(py::init([](uintptr_t address, size_t size) -> Crc32 {
        return std::async(std::launch::async, [=] { return ZipCrc32({ToPointer(address), size}); });
      }))
      .def("result", [](const Crc32& crc) { return WithoutGil([&] { return crc.get(); }); });
  module.def("copy", [](const Memory& to, const Memory& from) {
    const auto target = MakeHostMemory(to);
    const auto source = MakeHostMemory(from);
    if (target.size() != source.size()) throw py::value_error("the two have different sizes");
    const ReleaseGil nogil;
    const size_t size = source.size();
    if (size == 0) return;
    if (std::byte* whole = source.Direct(0, size)) return target.Scatter(0, {whole, size});
    if (std::byte* whole = target.Direct(0, size)) return source.Gather(0, {whole, size});
    std::vector<std::byte> piece(std::min<size_t>(size, 1 << 20));
    for (size_t at = 0; at < size; at += piece.size()) {
      const std::span<std::byte> part(piece.data(), std::min(piece.size(), size - at));
      source.Gather(at, part);
      target.Scatter(at, part);
    }
  });
}

namespace {

// (version, id, time in nanoseconds since the epoch, files, bytes)
py::tuple ToTuple(const Publication& publication) {
  return py::make_tuple(publication.version,
                        py::bytes(reinterpret_cast<const char*>(publication.id.data()), publication.id.size()),
                        publication.time_ns, publication.files, publication.bytes);
}

}  // namespace

void BindFiles(py::module_& module) {
  module.def("publish", [](const std::string& directory, std::optional<uint64_t> version) {
    return ToTuple(Check(WithoutGil([&] { return Publish(directory, version); })));
  });
  module.def("unpublish", [](const std::string& directory) { Check(WithoutGil([&] { return Unpublish(directory); })); });
  module.def("publication", [](const std::string& directory) {
    return ToTuple(Check(WithoutGil([&] { return PublicationOf(directory); })));
  });
  module.def("final_path", [](const std::string& path) { return py::bytes(Check(FinalPath(path))); });
  module.def("take_over", [](int descriptor, uid_t user, gid_t group, mode_t mode) {
    struct stat old {};
    old.st_uid = user, old.st_gid = group, old.st_mode = mode;
    if (!TakeOver(descriptor, old)) Raise(SystemError("", "cannot keep the file's mode"));
  });
}

}  // namespace weightfs::client

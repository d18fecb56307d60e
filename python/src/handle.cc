// SPDX-License-Identifier: Apache-2.0
#include "client/handle.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"
#include "python/src/closable.h"
#include "python/src/convert.h"
#include "python/src/gil.h"

namespace weightfs::client {
namespace {

using namespace py::literals;

using PyHandle = Closable<Handle>;
using HandleClass = py::class_<PyHandle, std::shared_ptr<PyHandle>>;

GpuMode MakeMode(const std::string& name) {
  if (name.empty()) return GpuMode::kOnDemand;
  if (name == "auto") return GpuMode::kAuto;
  if (name == "cufile") return GpuMode::kCufile;
  if (name == "bounce") return GpuMode::kBounce;
  throw py::value_error("mode is '" + name + "': it is one of auto, cufile and bounce");
}

// Facts about the GPUs; None if GPUs have not been initialized.
py::object GpuOf(const PyHandle& self) {
  const auto facts = self.WithoutGil([](Handle& handle) { return handle.gpu(); });
  if (!facts) return py::none();
  return py::dict("count"_a = facts->count, "name"_a = facts->name, "cuda"_a = facts->cuda, "cufile"_a = facts->cufile,
                  "mode"_a = facts->mode == GpuMode::kCufile ? "cufile" : "bounce", "why"_a = ToStr(facts->why),
                  "refusal"_a = ToStr(facts->refusal), "cufile_bytes"_a = facts->cufile_bytes,
                  "bounce_bytes"_a = facts->bounce_bytes);
}

// A file name, and the memory for its content.
using Item = std::pair<std::string, Memory>;

std::vector<NamedMemory> MakeFiles(const std::vector<Item>& items) {
  std::vector<NamedMemory> files;
  files.reserve(items.size());
  for (const auto& [name, memory] : items) files.push_back({name, MakeMemory(memory)});
  return files;
}

// "read" and "write" carry out an operation and return None, or with `own_errors` start it and return it.
void BindTransfers(HandleClass& type) {
  using Started = std::shared_ptr<Operation>;
  type.def("read",
           [](const PyHandle& self, const py::object& file, const Memory& arguments, uint64_t offset,
              const py::object& progress, bool verify, std::optional<bool> own_errors) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             const ReadOptions options{.offset = offset,
                                       .progress = MakeProgress(progress),
                                       .own_errors = own_errors.value_or(false),
                                       .interrupted = &SignalRaised,
                                       .verify = verify};
             return Check(self.WithoutGil([&](Handle& handle) -> Result<Started> {
               if (own_errors) return handle.StartRead(name, memory, options);
               RETURN_IF_ERROR(handle.Read(name, memory, options));
               return Started();
             }));
           })
      .def("read_ranges",
           [](const PyHandle& self, const py::object& file, const Memory& arguments,
              const std::vector<std::pair<uint64_t, uint64_t>>& pairs) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             std::vector<ByteRange> ranges;
             ranges.reserve(pairs.size());
             for (const auto& [offset, size] : pairs) ranges.push_back({offset, size});
             Check(self.WithoutGil(
                 [&](Handle& handle) { return handle.ReadRanges(name, ranges, memory, &SignalRaised); }));
           })
      .def("write", [](const PyHandle& self, const py::object& file, const Memory& arguments,
                       std::optional<uint64_t> offset, const py::object& progress, bool durable, bool atomic,
                       bool checksum, bool stable, std::optional<bool> own_errors) {
        const auto name = MakeFile(file);
        const auto memory = MakeMemory(arguments);
        const WriteOptions options{.offset = offset,
                                   .durable = durable,
                                   .atomic = atomic,
                                   .progress = MakeProgress(progress),
                                   .own_errors = own_errors.value_or(false),
                                   .interrupted = &SignalRaised,
                                   .checksum = checksum,
                                   .stable = stable};
        return Check(self.WithoutGil([&](Handle& handle) -> Result<Started> {
          if (own_errors) return handle.StartWrite(name, memory, options);
          RETURN_IF_ERROR(handle.Write(name, memory, options));
          return Started();
        }));
      });
}

void BindMany(HandleClass& type) {
  type.def("save_many",
           [](const PyHandle& self, const std::string& directory, const std::vector<Item>& items, bool durable,
              std::optional<uint32_t> mode, bool checksum, const py::object& progress, const py::object& on_fallback) {
             const auto files = MakeFiles(items);
             const SaveManyOptions options{
                 .durable = durable,
                 .mode = mode,
                 .progress = MakeProgress(progress),
                 .interrupted = &SignalRaised,
                 .checksum = checksum,
                 .on_fallback = [call = Callable(on_fallback)](const Error& why) { call(why.what); }};
             Check(self.WithoutGil([&](Handle& handle) { return handle.SaveMany(directory, files, options); }));
           })
      .def("load_many", [](const PyHandle& self, const std::string& directory, const std::vector<Item>& items,
                           bool verify, const py::object& progress) {
        const auto files = MakeFiles(items);
        const LoadManyOptions options{
            .progress = MakeProgress(progress), .interrupted = &SignalRaised, .verify = verify};
        const auto errors =
            Check(self.WithoutGil([&](Handle& handle) { return handle.LoadMany(directory, files, options); }));
        py::list out;
        for (const auto& [name, error] : errors) out.append(py::make_tuple(py::bytes(name), MakeException(error)));
        return out;
      });
}

void BindGpu(HandleClass& type) {
  type.def("gpu", &GpuOf)
      .def("pin",
           [](const PyHandle& self, const Memory& arguments) {
             const auto memory = MakeMemory(arguments);
             Check(self.WithoutGil([&](Handle& handle) { return handle.PinDevice(memory); }));
           })
      .def("unpin",
           [](const PyHandle& self, uint64_t address) {
             return self.WithoutGil([&](Handle& handle) { return handle.UnpinDevice(address); });
           })
      .def("is_device_pinned",
           [](const PyHandle& self, const Memory& arguments) {
             const auto memory = MakeMemory(arguments);
             return self.WithoutGil([&](Handle& handle) { return handle.IsDevicePinned(memory); });
           })
      .def("copy_out", [](const PyHandle& self, const Memory& from, const Memory& to) {
        const auto memory = MakeMemory(from);
        const auto host = MakeHostMemory(to);
        const std::span<std::byte> bytes(host.Direct(0, host.size()), host.size());
        Check(self.WithoutGil([&](Handle& handle) { return handle.CopyOut(memory, bytes); }));
      });
}

}  // namespace

void BindHandle(py::module_& module) {
  HandleClass type(module, "Handle");
  type.def(py::init([](uint64_t block_size, unsigned queue_depth, bool single_submit, bool overlap_events,
                       unsigned intra_op_parallelism, const std::string& direct, const std::string& mode,
                       const std::string& cufile_library, const py::object& on_gpu_refusal) {
        HandleOptions options{.block_size = block_size,
                              .queue_depth = queue_depth,
                              .single_submit = single_submit,
                              .overlap_events = overlap_events,
                              .intra_op_parallelism = intra_op_parallelism,
                              .direct = MakeDirect(direct),
                              .gpu = MakeMode(mode),
                              .cufile_library = cufile_library};
        if (!on_gpu_refusal.is_none()) {
          options.on_gpu_refusal = [call = Callable(on_gpu_refusal)](const std::string& why) { call(why); };
        }
        return std::make_shared<PyHandle>(Check(WithoutGil([&] { return Handle::Create(options); })), "handle");
      }))
      .def("close", &PyHandle::Close)
      .def("closed", &PyHandle::closed)
      .def("join", &PyHandle::Join)
      .def("direct_operations", [](const PyHandle& self) { return self.get()->direct_operations(); })
      .def("map",
           [](const PyHandle& self, int descriptor, uint64_t offset, uint64_t length, bool load) {
             return Check(self.WithoutGil(
                 [&](Handle& handle) { return handle.Map(descriptor, offset, length, load, &SignalRaised); }));
           })
      .def("wait",
           [](const PyHandle& self) {
             auto completed = self.WithoutGil([](Handle& handle) { return handle.Wait(&SignalRaised); });
             if (completed.refused) Raise(completed.errors.front());
             return completed.count;
           })
      .def("pending", [](const PyHandle& self) { return self.get()->pending(); });
  BindTransfers(type);
  BindMany(type);
  BindGpu(type);
}

}  // namespace weightfs::client

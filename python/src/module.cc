// SPDX-License-Identifier: Apache-2.0
// The native part of the Python package: handles, operations and locked memory. Python interprets tensors; here memory
// is an address with a shape, on the host or on a GPU. Every call that may block releases the GIL.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "client/final_path.h"
#include "client/handle.h"
#include "client/locked_memory.h"
#include "client/random_reader.h"
#include "common/checksum.h"
#include "python/src/gil.h"

namespace py = pybind11;

namespace weightfs::client {
namespace {

// Paths need not be UTF-8: surrogateescape is Python's way to represent such bytes in a str.
py::object ToStr(const std::string& text) { return py::bytes(text).attr("decode")("utf-8", "surrogateescape"); }

// Makes an OSError of the subclass for its errno (FileNotFoundError, ...), with the attribute `offset`.
py::object MakeException(const Error& error) {
  const auto type = py::reinterpret_borrow<py::object>(PyExc_OSError);
  py::object made = error.path.empty() ? type(error.error_number(), ToStr(error.what))
                                       : type(error.error_number(), ToStr(error.what), ToStr(error.path));
  made.attr("offset") = error.offset;
  return made;
}

[[noreturn]] void Raise(const Error& error) {
  const py::object made = MakeException(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  throw py::error_already_set();
}

template <typename T>
T Check(Result<T> result) {
  if (!result.has_value()) Raise(result.error());
  return std::move(*result);
}
void Check(Result<void> result) {
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

  // The text may contain bytes that are not UTF-8, as paths may.
  void operator()(const std::string& text) const {
    if (!InterpreterRuns()) return;
    const AcquireGil gil;
    Call(ToStr(text));
  }
  template <typename... Arguments>
  void operator()(Arguments... arguments) const {
    if (!InterpreterRuns()) return;
    const AcquireGil gil;
    Call(arguments...);
  }

 private:
  template <typename... Arguments>
  void Call(const Arguments&... arguments) const {
    try {
      (*callable_)(arguments...);
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

  std::shared_ptr<py::object> callable_;
  std::shared_ptr<bool> raised_ = std::make_shared<bool>(false);  // guarded by the GIL; later ones are not printed
};

Progress MakeProgress(const py::object& callable) {
  if (callable.is_none()) return {};
  if (PyCallable_Check(callable.ptr()) == 0) throw py::type_error("progress is a function of two numbers");
  return [call = Callable(callable)](uint64_t done, uint64_t total) { call(done, total); };
}

// (address, item size, shape, strides in bytes, stream). Without strides the memory is contiguous. The stream is empty
// for host memory; for GPU memory it is a CUDA stream handle or kNoStream.
using Memory =
    std::tuple<uintptr_t, size_t, std::vector<int64_t>, std::optional<std::vector<int64_t>>, std::optional<int64_t>>;
constexpr int64_t kNoStream = -1;

MemoryView MakeMemory(const Memory& memory) {
  const auto& [address, item_size, shape, strides, stream] = memory;
  auto* base = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
  if (strides) return Check(MemoryView::Strided(base, item_size, shape, *strides));
  uint64_t size = item_size;
  for (const int64_t count : shape) {
    if (count < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(count), &size)) {
      throw py::value_error("the size of a tensor does not fit into 64 bits");
    }
  }
  uint64_t end = 0;
  if (size > INT64_MAX || __builtin_add_overflow(address, size, &end)) {
    throw py::value_error("a tensor has more bytes than memory or a file holds");
  }
  if (!stream) return MemoryView(std::span(base, size));
  return MemoryView::OnDevice(address, size, *stream == kNoStream ? std::nullopt : std::optional<uintptr_t>(*stream));
}

MemoryView MakeHostMemory(const Memory& memory) {
  if (std::get<4>(memory)) throw py::value_error("this is memory of a GPU, where the host's is needed");
  return MakeMemory(memory);
}

GpuMode MakeMode(const std::string& name) {
  if (name.empty()) return GpuMode::kOnDemand;
  if (name == "auto") return GpuMode::kAuto;
  if (name == "cufile") return GpuMode::kCufile;
  if (name == "bounce") return GpuMode::kBounce;
  throw py::value_error("mode is '" + name + "': it is one of auto, cufile and bounce");
}

FileName MakeFile(const py::object& file) {
  if (py::isinstance<py::int_>(file)) {
    const int descriptor = file.cast<int>();
    if (descriptor < 0) Raise({ErrorCode{EBADF}, "a negative number is not an open descriptor"});
    return descriptor;
  }
  const auto name = file.cast<std::string>();
  if (name.find('\0') != std::string::npos) throw py::value_error("embedded null byte");
  return name;
}

Direct MakeDirect(const std::string& name) {
  if (name == "auto") return Direct::kAuto;
  if (name == "never") return Direct::kNever;
  if (name == "require") return Direct::kRequire;
  throw py::value_error("direct is 'auto', 'never' or 'require'");
}

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
  void Close() {
    auto handle = std::exchange(handle_, nullptr);
    if (handle == nullptr) return;
    const ReleaseGil nogil;
    handle.reset();
  }

  // Called after Close: waits until no other thread is in a call. Not for a forked child, which does not have these
  // threads.
  void Join() const {
    const ReleaseGil nogil;
    for (int calls = calls_.load(); calls > 0; calls = calls_.load()) calls_.wait(calls);
  }

  std::shared_ptr<T> get() const {
    if (handle_ == nullptr) throw py::value_error(std::string("the ") + name_ + " is closed");
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
      const EndCall end(calls_, handle);
      return call(*handle);
    }();
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return result;
  }

 private:
  class EndCall {
   public:
    EndCall(std::atomic<int>& calls, std::shared_ptr<T>& handle) : calls_(calls), handle_(handle) {}
    ~EndCall() {
      handle_.reset();
      --calls_;
      calls_.notify_all();
    }
    EndCall(const EndCall&) = delete;
    EndCall& operator=(const EndCall&) = delete;

   private:
    std::atomic<int>& calls_;
    std::shared_ptr<T>& handle_;
  };

  std::shared_ptr<T> handle_;
  const char* const name_;
  mutable std::atomic<int> calls_{0};
};

using PyHandle = Closable<Handle>;
using PyReader = Closable<RandomReader>;

template <typename Call>
auto WithoutGil(const PyHandle& self, Call call) {
  return self.WithoutGil(call);
}

// Facts about the GPUs; None if GPUs have not been initialized.
py::object GpuOf(const PyHandle& self) {
  const auto facts = WithoutGil(self, [](Handle& handle) { return handle.gpu(); });
  if (!facts) return py::none();
  py::dict answer;
  answer["count"] = facts->count;
  answer["name"] = facts->name;
  answer["cuda"] = facts->cuda;
  answer["cufile"] = facts->cufile;
  answer["mode"] = facts->mode == GpuMode::kCufile ? "cufile" : "bounce";
  answer["why"] = ToStr(facts->why);
  answer["cufile_bytes"] = facts->cufile_bytes;
  answer["bounce_bytes"] = facts->bounce_bytes;
  return answer;
}

// A file name, and the memory for its content.
using Item = std::pair<std::string, Memory>;

std::vector<NamedMemory> MakeFiles(const std::vector<Item>& items) {
  std::vector<NamedMemory> files;
  files.reserve(items.size());
  for (const auto& [name, memory] : items) files.push_back({name, MakeMemory(memory)});
  return files;
}

using HandleClass = py::class_<PyHandle, std::shared_ptr<PyHandle>>;

ReadOptions MakeReadOptions(uint64_t offset, const py::object& progress, bool verify) {
  return {.offset = offset, .progress = MakeProgress(progress), .verify = verify};
}

WriteOptions MakeWriteOptions(std::optional<uint64_t> offset, const py::object& progress, bool durable, bool atomic,
                              bool checksum, bool stable) {
  return {.offset = offset,
          .durable = durable,
          .atomic = atomic,
          .progress = MakeProgress(progress),
          .checksum = checksum,
          .stable = stable};
}

void BindReads(HandleClass& type) {
  type.def("read",
           [](const PyHandle& self, const py::object& file, const Memory& arguments, uint64_t offset,
              const py::object& progress, bool verify) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             ReadOptions options = MakeReadOptions(offset, progress, verify);
             options.interrupted = &SignalRaised;
             Check(WithoutGil(self, [&](Handle& handle) { return handle.Read(name, memory, options); }));
           })
      .def("read_ranges",
           [](const PyHandle& self, const py::object& file, const Memory& arguments,
              const std::vector<std::pair<uint64_t, uint64_t>>& pairs) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             std::vector<ByteRange> ranges;
             ranges.reserve(pairs.size());
             for (const auto& [offset, size] : pairs) ranges.push_back({offset, size});
             Check(WithoutGil(self,
                              [&](Handle& handle) { return handle.ReadRanges(name, ranges, memory, &SignalRaised); }));
           })
      .def("start_read", [](const PyHandle& self, const py::object& file, const Memory& arguments, uint64_t offset,
                            const py::object& progress, bool verify, bool own_errors) {
        const auto name = MakeFile(file);
        const auto memory = MakeMemory(arguments);
        ReadOptions options = MakeReadOptions(offset, progress, verify);
        options.own_errors = own_errors;
        return Check(WithoutGil(self, [&](Handle& handle) { return handle.StartRead(name, memory, options); }));
      });
}

void BindWrites(HandleClass& type) {
  type.def("write",
           [](const PyHandle& self, const py::object& file, const Memory& arguments, std::optional<uint64_t> offset,
              const py::object& progress, bool durable, bool atomic, bool checksum, bool stable) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             WriteOptions options = MakeWriteOptions(offset, progress, durable, atomic, checksum, stable);
             options.interrupted = &SignalRaised;
             Check(WithoutGil(self, [&](Handle& handle) { return handle.Write(name, memory, options); }));
           })
      .def("start_write",
           [](const PyHandle& self, const py::object& file, const Memory& arguments, std::optional<uint64_t> offset,
              const py::object& progress, bool durable, bool atomic, bool checksum, bool stable, bool own_errors) {
             const auto name = MakeFile(file);
             const auto memory = MakeMemory(arguments);
             WriteOptions options = MakeWriteOptions(offset, progress, durable, atomic, checksum, stable);
             options.own_errors = own_errors;
             return Check(WithoutGil(self, [&](Handle& handle) { return handle.StartWrite(name, memory, options); }));
           });
}

void BindMany(HandleClass& type) {
  type.def("save_many",
           [](const PyHandle& self, const std::string& directory, const std::vector<Item>& items, bool durable,
              uint32_t mode, bool checksum, const py::object& progress, const py::object& on_fallback) {
             const auto files = MakeFiles(items);
             const SaveManyOptions options{
                 .durable = durable,
                 .mode = mode,
                 .progress = MakeProgress(progress),
                 .interrupted = &SignalRaised,
                 .checksum = checksum,
                 .on_fallback = [call = Callable(on_fallback)](const Error& why) { call(why.what); }};
             Check(WithoutGil(self, [&](Handle& handle) { return handle.SaveMany(directory, files, options); }));
           })
      .def("load_many", [](const PyHandle& self, const std::string& directory, const std::vector<Item>& items,
                           bool verify, const py::object& progress) {
        const auto files = MakeFiles(items);
        const LoadManyOptions options{
            .progress = MakeProgress(progress), .interrupted = &SignalRaised, .verify = verify};
        const auto errors =
            Check(WithoutGil(self, [&](Handle& handle) { return handle.LoadMany(directory, files, options); }));
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
             Check(WithoutGil(self, [&](Handle& handle) { return handle.PinDevice(memory); }));
           })
      .def("unpin",
           [](const PyHandle& self, uint64_t address) {
             return WithoutGil(self, [&](Handle& handle) { return handle.UnpinDevice(address); });
           })
      .def("is_device_pinned",
           [](const PyHandle& self, const Memory& arguments) {
             const auto memory = MakeMemory(arguments);
             return WithoutGil(self, [&](Handle& handle) { return handle.IsDevicePinned(memory); });
           })
      .def("copy_out", [](const PyHandle& self, const Memory& from, const Memory& to) {
        const auto memory = MakeMemory(from);
        const auto host = MakeHostMemory(to);
        if (memory.size() != host.size()) throw py::value_error("the two have different sizes");
        const std::span<std::byte> bytes(host.Direct(0, host.size()), host.size());
        Check(WithoutGil(self, [&](Handle& handle) { return handle.CopyOut(memory, bytes); }));
      });
}

void BindHandle(py::module_& module) {
  HandleClass type(module, "Handle");
  type.def(py::init([](uint64_t block_size, unsigned queue_depth, bool single_submit, bool overlap_events,
                       unsigned intra_op_parallelism, const std::string& direct, const std::string& mode,
                       const std::string& cufile_library) {
        const HandleOptions options{.block_size = block_size,
                                    .queue_depth = queue_depth,
                                    .single_submit = single_submit,
                                    .overlap_events = overlap_events,
                                    .intra_op_parallelism = intra_op_parallelism,
                                    .direct = MakeDirect(direct),
                                    .gpu = MakeMode(mode),
                                    .cufile_library = cufile_library};
        auto made = [&] {
          const ReleaseGil nogil;
          return Handle::Create(options);
        }();
        return std::make_shared<PyHandle>(Check(std::move(made)), "handle");
      }))
      .def("close", &PyHandle::Close)
      .def("join", &PyHandle::Join)
      .def("direct_operations", [](const PyHandle& self) { return self.get()->direct_operations(); })
      .def("wait",
           [](const PyHandle& self) {
             return WithoutGil(self, [](Handle& handle) { return handle.Wait(&SignalRaised).count; });
           })
      .def("pending", [](const PyHandle& self) { return self.get()->pending(); });
  BindReads(type);
  BindWrites(type);
  BindMany(type);
  BindGpu(type);
}

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

void BindReader(py::module_& module) {
  py::class_<PyReader, std::shared_ptr<PyReader>>(module, "Reader")
      .def(py::init([](const py::object& file, unsigned queue_depth, uint64_t memory, const std::string& direct) {
        const auto name = MakeFile(file);
        const RandomReaderOptions options{.queue_depth = queue_depth, .memory = memory, .direct = MakeDirect(direct)};
        auto made = [&] {
          const ReleaseGil nogil;
          return RandomReader::Open(name, options);
        }();
        return std::make_shared<PyReader>(Check(std::move(made)), "reader");
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
      .def("on_done",
           [](Operation& self, const py::object& callback) {
             const Callable call(callback);
             const ReleaseGil nogil;
             self.OnDone([call] { call(); });
           })
      .def_static("in_callback", &Operation::CallbackScope::active);
}

// Computes the CRC-32 of memory on a thread of its own, which Python could not start while it exits. The memory must
// stay valid until the result is there, or until this object is destroyed.
class ZipCrc32Thread {
 public:
  ZipCrc32Thread(uintptr_t address, size_t size)
      : bytes_(reinterpret_cast<const std::byte*>(address), size),  // NOLINT(performance-no-int-to-ptr)
        thread_([this] { crc_ = ZipCrc32(bytes_); }) {}
  ~ZipCrc32Thread() { Join(); }
  ZipCrc32Thread(const ZipCrc32Thread&) = delete;
  ZipCrc32Thread& operator=(const ZipCrc32Thread&) = delete;

  uint32_t Result() {
    Join();
    return crc_;
  }

 private:
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  const std::span<const std::byte> bytes_;
  uint32_t crc_ = 0;
  std::thread thread_;  // uses the members above
};

void BindMemory(py::module_& module) {
  py::class_<LockedMemory, std::shared_ptr<LockedMemory>>(module, "LockedMemory", py::buffer_protocol())
      .def(py::init([](size_t size) {
        auto made = [&] {
          const ReleaseGil nogil;
          return LockedMemory::Allocate(size);
        }();
        return Check(std::move(made));
      }))
      .def_property_readonly("address",
                             [](const LockedMemory& self) { return reinterpret_cast<uintptr_t>(self.data()); })
      .def_property_readonly("size", &LockedMemory::size)
      .def_buffer([](LockedMemory& self) {
        return py::buffer_info(self.data(), 1, py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(self.size()));
      });
  module.def("is_locked", [](uintptr_t address, size_t size) {
    return IsLocked(reinterpret_cast<const void*>(address), size);  // NOLINT(performance-no-int-to-ptr)
  });
  // Gives access to the bytes, for comparison. Valid only while their owner lives.
  module.def("view", [](uintptr_t address, size_t size) {
    if (size > INT64_MAX) throw py::value_error("a view has more bytes than memory holds");
    return py::memoryview::from_memory(reinterpret_cast<const void*>(address),  // NOLINT(performance-no-int-to-ptr)
                                       static_cast<py::ssize_t>(size));
  });
  module.def("unlock", [](uintptr_t address) {
    const auto memory = FindLocked(reinterpret_cast<const void*>(address));  // NOLINT(performance-no-int-to-ptr)
    const ReleaseGil nogil;
    return memory != nullptr && memory->Unlock();
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
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  });
  module.def("zip_crc32", [](uintptr_t address, size_t size) {
    const ReleaseGil nogil;
    return ZipCrc32({reinterpret_cast<const std::byte*>(address), size});  // NOLINT(performance-no-int-to-ptr)
  });
  py::class_<ZipCrc32Thread>(module, "ZipCrc32Thread")
      .def(py::init<uintptr_t, size_t>())
      .def("result", [](ZipCrc32Thread& thread) {
        const ReleaseGil nogil;
        return thread.Result();
      });
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

void BindFiles(py::module_& module) {
  module.def("final_path", [](const std::string& path) { return py::bytes(Check(FinalPath(path))); });
  module.def("take_over", [](int descriptor, uid_t user, gid_t group, mode_t mode) {
    struct stat old {};
    old.st_uid = user, old.st_gid = group, old.st_mode = mode;
    if (!TakeOver(descriptor, old)) Raise(SystemError("", "cannot keep the file's mode"));
  });
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

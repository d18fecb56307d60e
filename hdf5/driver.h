// SPDX-License-Identifier: Apache-2.0
// The callbacks of a file driver. `Abi` selects the declarations of HDF5's types: h5fd_abi.h or installed headers.
//
// `Abi` has the types FileBase, Memory, hid_t and haddr_t, and these functions. `caller` is an address in the HDF5
// library.
//   static Result<Settings> SettingsOf(hid_t fapl, const void* caller);
//   static void Report(const Error& error, const char* action, const void* caller);
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "common/result.h"
#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "hdf5/h5fd_abi.h"

namespace weightfs::hdf5 {

inline constexpr uint64_t kLargestAddress = INT64_MAX;

// The line for HDF5's error stack. h5py selects its exception by "errno = N": FileNotFoundError, PermissionError, …
inline std::string ReportLine(const Error& error) {
  return fmt::format("weightfs: {}, errno = {}", error.what.empty() ? ToString(error) : error.what,
                     error.error_number());
}

template <typename Abi>
class Driver {
 public:
  using FileBase = typename Abi::FileBase;
  using Memory = typename Abi::Memory;
  using hid_t = typename Abi::hid_t;
  using haddr_t = typename Abi::haddr_t;

  // HDF5 accesses only the first member.
  struct Opened {
    FileBase base{};
    haddr_t end_of_addresses = 0;
    int descriptor = -1;  // Handle returns its address
    std::unique_ptr<File> file;
  };

  // HDF5's description of the driver; `Class` is H5FD_class_t of any version.
  template <typename Class>
  static constexpr Class MakeClass() {
    Class driver{};
    if constexpr (requires { driver.version, driver.read_vector, driver.ctl; }) {  // from 1.14 on
      driver.version = abi::kClassVersion;
      driver.value = abi::kDriverValue;
      driver.read_vector = ReadVector;
      driver.write_vector = WriteVector;
      // HDF5 converts selections to vectors for drivers without callbacks for them.
      driver.del = Delete;
      driver.ctl = Control;
    }
    driver.name = "weightfs";
    driver.maxaddr = kLargestAddress;
    driver.fc_degree = static_cast<decltype(driver.fc_degree)>(abi::kCloseWeak);
    driver.terminate = Terminate;
    driver.open = Open;
    driver.close = Close;
    driver.cmp = Compare;
    driver.query = Query;
    driver.get_eoa = EndOfAddresses;
    driver.set_eoa = SetEndOfAddresses;
    driver.get_eof = EndOfFile;
    driver.get_handle = Handle;
    driver.read = Read;
    driver.write = Write;
    driver.flush = Flush;
    driver.truncate = Truncate;
    driver.lock = Lock;
    driver.unlock = Unlock;
    // Metadata and data have separate pools, as in sec2.
    for (Memory& pool : driver.fl_map) pool = static_cast<Memory>(abi::kSuper);
    for (const int type : {abi::kRawData, abi::kGlobalHeap}) driver.fl_map[type] = static_cast<Memory>(abi::kRawData);
    return driver;
  }

  static const File& FileOf(const FileBase* base) { return *Of(base)->file; }

  static int Terminate() {
    Engine::Shared().Clear();
    return 0;
  }

  static FileBase* Open(const char* name, unsigned flags, hid_t fapl, haddr_t maximum) {
    const void* caller = __builtin_return_address(0);
    if (name == nullptr || *name == '\0' || maximum == 0 || maximum == abi::kUndefinedAddress) {
      Abi::Report({ErrorCode::kInvalid, "a file name and a maximum address are required"}, "open", caller);
      return nullptr;
    }
    auto opened = std::make_unique<Opened>();
    auto settings = Abi::SettingsOf(fapl, caller);
    if (!settings.has_value()) return Abi::Report(settings.error(), "open", caller), nullptr;
    const bool write = (flags & abi::kReadWrite) != 0;
    auto file = File::Open(name,
                           {.write = write,
                            .create = write && (flags & abi::kCreate) != 0,
                            .exclusive = (flags & abi::kExclusive) != 0,
                            .truncate = write && (flags & abi::kTruncate) != 0,
                            .shared_reader = (flags & abi::kSwmrRead) != 0},
                           *settings);
    if (!file.has_value()) return Abi::Report(file.error(), "open", caller), nullptr;
    opened->file = *std::move(file);
    return &opened.release()->base;
  }

  static int Close(FileBase* base) {
    const std::unique_ptr<Opened> opened(Of(base));
    return Status(opened->file->Close(), "close", __builtin_return_address(0));
  }

  static int Compare(const FileBase* one, const FileBase* other) {
    const File& a = *Of(one)->file;
    const File& b = *Of(other)->file;
    return a.IsSame(b) ? 0 : a.IsBefore(b) ? -1 : 1;
  }

  static int Query(const FileBase* /*base*/, unsigned long* features) {
    *features = abi::kAggregateMetadata | abi::kAccumulateMetadata | abi::kDataSieve | abi::kAggregateSmallData |
                abi::kPosixCompatibleHandle | abi::kSupportsSwmr | abi::kDefaultDriverCompatible;
    return 0;
  }

  static haddr_t EndOfAddresses(const FileBase* base, Memory /*type*/) { return Of(base)->end_of_addresses; }
  static int SetEndOfAddresses(FileBase* base, Memory /*type*/, haddr_t address) {
    Of(base)->end_of_addresses = address;
    return 0;
  }
  static haddr_t EndOfFile(const FileBase* base, Memory /*type*/) { return Of(base)->file->size(); }

  // Returns a descriptor, as sec2 does, after all buffered writes are in the file.
  static int Handle(FileBase* base, hid_t /*fapl*/, void** handle) {
    File& file = *Of(base)->file;
    const int status = Status(file.Flush(false), "get_handle", __builtin_return_address(0));
    Of(base)->descriptor = file.descriptor();
    *handle = &Of(base)->descriptor;
    return status;
  }

  static int Read(FileBase* base, Memory type, hid_t /*dxpl*/, haddr_t address, size_t size, void* buffer) {
    const std::span out(static_cast<std::byte*>(buffer), size);
    return Status(Of(base)->file->Read(ContentOf(type), address, out), "read", __builtin_return_address(0));
  }
  static int Write(FileBase* base, Memory type, hid_t /*dxpl*/, haddr_t address, size_t size, const void* buffer) {
    const std::span bytes(static_cast<const std::byte*>(buffer), size);
    return Status(Of(base)->file->Write(ContentOf(type), address, bytes), "write", __builtin_return_address(0));
  }

  static int ReadVector(FileBase* base, hid_t /*dxpl*/, uint32_t count, Memory* types, haddr_t* addresses,
                        size_t* sizes, void** buffers) {
    const auto requests = RequestsOf<File::ReadRequest, std::byte>(count, types, addresses, sizes, buffers);
    return Status(Of(base)->file->ReadMany(requests), "read_vector", __builtin_return_address(0));
  }
  static int WriteVector(FileBase* base, hid_t /*dxpl*/, uint32_t count, Memory* types, haddr_t* addresses,
                         size_t* sizes, const void** buffers) {
    const auto requests = RequestsOf<File::WriteRequest, const std::byte>(count, types, addresses, sizes, buffers);
    return Status(Of(base)->file->WriteMany(requests), "write_vector", __builtin_return_address(0));
  }

  static int Flush(FileBase* base, hid_t /*dxpl*/, bool closing) {
    File& file = *Of(base)->file;
    const Sync least = closing ? Sync::kClose : Sync::kFlush;
    return Status(file.Flush(file.settings().sync >= least), "flush", __builtin_return_address(0));
  }
  static int Truncate(FileBase* base, hid_t /*dxpl*/, bool /*closing*/) {
    Opened& opened = *Of(base);
    return Status(opened.file->Truncate(opened.end_of_addresses), "truncate", __builtin_return_address(0));
  }

  static int Lock(FileBase* base, bool exclusive) {
    auto locked = Of(base)->file->Lock(exclusive);
    // BEST_EFFORT accepts filesystems without locks, as in HDF5's own drivers.
    const char* locking = std::getenv("HDF5_USE_FILE_LOCKING");
    if (!locked.has_value() && locked.error().error_number() == ENOSYS && locking != nullptr &&
        std::strcmp(locking, "BEST_EFFORT") == 0) {
      return 0;
    }
    return Status(locked, "lock", __builtin_return_address(0));
  }
  static int Unlock(FileBase* base) { return Status(Of(base)->file->Unlock(), "unlock", __builtin_return_address(0)); }

  static int Delete(const char* name, hid_t /*fapl*/) {
    if (unlink(name) == 0) return 0;
    return Status(SystemError(name, "cannot delete the file"), "del", __builtin_return_address(0));
  }
  static int Control(FileBase* /*base*/, uint64_t operation, uint64_t flags, const void* /*input*/, void** /*output*/) {
    if ((flags & abi::kFailIfUnknown) == 0) return 0;
    return Status(Error{ErrorCode::kNotSupported, "the driver has no operation " + std::to_string(operation)}, "ctl",
                  __builtin_return_address(0));
  }

 private:
  static Opened* Of(FileBase* base) { return reinterpret_cast<Opened*>(base); }
  static const Opened* Of(const FileBase* base) { return reinterpret_cast<const Opened*>(base); }
  static Content ContentOf(Memory type) {
    return static_cast<int>(type) == abi::kRawData ? Content::kRaw : Content::kMetadata;
  }
  static int Status(const Result<void>& result, const char* action, const void* caller) {
    if (result.has_value()) return 0;
    Abi::Report(result.error(), action, caller);
    return -1;
  }

  // Expands HDF5's short form: from a size of 0 or a type of kSameAsBefore on, all requests have the previous value.
  template <typename Request, typename Byte, typename Buffer>
  static std::vector<Request> RequestsOf(uint32_t count, const Memory* types, const haddr_t* addresses,
                                         const size_t* sizes, Buffer* const* buffers) {
    std::vector<Request> requests(count);
    size_t size = 0;
    auto content = Content::kMetadata;
    bool same_size = false;
    bool same_type = false;
    for (uint32_t i = 0; i < count; ++i) {
      same_size = same_size || (i > 0 && sizes[i] == 0);
      same_type = same_type || (i > 0 && static_cast<int>(types[i]) == abi::kSameAsBefore);
      if (!same_size) size = sizes[i];
      if (!same_type) content = ContentOf(types[i]);
      requests[i] = {.content = content, .offset = addresses[i], .memory = {static_cast<Byte*>(buffers[i]), size}};
    }
    return requests;
  }
};

}  // namespace weightfs::hdf5

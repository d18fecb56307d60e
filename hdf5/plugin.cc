// SPDX-License-Identifier: Apache-2.0
// The plugin that HDF5 loads. HDF5_PLUGIN_PATH names its directory, and HDF5_DRIVER=weightfs selects the driver.
#include <dlfcn.h>

#include <cstdio>
#include <map>

#include "client/export.h"
#include "common/mutex.h"
#include "hdf5/driver.h"

namespace weightfs::hdf5 {
namespace {

// The few HDF5 functions that the plugin calls, looked up in the library that called it. A process may have several
// HDF5 libraries (a wheel has its own, under another name), and a static one may export no symbols. Thread-safe.
class Library {
 public:
  // Returns the library that contains `caller`, a return address.
  static const Library& Of(const void* caller) {
    static Mutex mutex;
    static auto* const libraries = new std::map<const void*, std::unique_ptr<Library>>();
    Dl_info info{};
    const void* base = dladdr(caller, &info) != 0 ? info.dli_fbase : nullptr;
    const MutexLock lock(mutex);
    auto& library = (*libraries)[base];
    if (library == nullptr) {
      // Null for the program itself, which may export the symbols of a libhdf5 that is linked into it statically.
      void* handle = base != nullptr ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
      library.reset(new Library(handle != nullptr ? handle : RTLD_DEFAULT));
    }
    return *library;
  }

  // Returns the driver's configuration in a file-access property list, or HDF5_DRIVER_CONFIG without library symbols.
  std::string Configuration(abi::hid_t fapl) const {
    if (get_config_ != nullptr) {
      const long length = get_config_(fapl, nullptr, 0);
      if (length <= 0) return "";
      std::string text(static_cast<size_t>(length) + 1, '\0');
      get_config_(fapl, text.data(), text.size());
      text.resize(static_cast<size_t>(length));
      return text;
    }
    const char* text = std::getenv("HDF5_DRIVER_CONFIG");
    return text == nullptr ? "" : text;
  }

  // Pushes the error onto HDF5's error stack, or prints it to stderr without library symbols. Sets errno.
  void Report(const Error& error, const char* action) const {
    const std::string line = ReportLine(error);
    if (push_ == nullptr || error_class_ == nullptr || major_ == nullptr || minor_ == nullptr) {
      std::fprintf(stderr, "%s\n", line.c_str());
    } else {
      constexpr abi::hid_t kDefaultStack = 0;
      push_(kDefaultStack, "libhdf5_weightfs", action, 0, *error_class_, *major_, *minor_, "%s", line.c_str());
    }
    errno = error.error_number();
  }

 private:
  explicit Library(void* handle) {
    Find(handle, "H5Pget_driver_config_str", &get_config_);
    Find(handle, "H5Epush2", &push_);
    Find(handle, "H5E_ERR_CLS_g", &error_class_);
    Find(handle, "H5E_VFL_g", &major_);
    Find(handle, "H5E_SYSERRSTR_g", &minor_);
  }
  template <typename Symbol>
  static void Find(void* library, const char* name, Symbol* out) {
    *out = reinterpret_cast<Symbol>(dlsym(library, name));
  }

  long (*get_config_)(abi::hid_t, char*, size_t) = nullptr;
  abi::herr_t (*push_)(abi::hid_t, const char*, const char*, unsigned, abi::hid_t, abi::hid_t, abi::hid_t, const char*,
                       ...) = nullptr;
  const abi::hid_t* error_class_ = nullptr;
  const abi::hid_t* major_ = nullptr;
  const abi::hid_t* minor_ = nullptr;
};

struct PluginAbi {
  using FileBase = abi::FileBase;
  using Memory = abi::Memory;
  using hid_t = abi::hid_t;
  using haddr_t = abi::haddr_t;

  static Result<Settings> SettingsOf(hid_t fapl, const void* caller) {
    return ParseSettings(Library::Of(caller).Configuration(fapl));
  }
  static void Report(const Error& error, const char* action, const void* caller) {
    Library::Of(caller).Report(error, action);
  }
};

constexpr abi::Class kClass = Driver<PluginAbi>::MakeClass<abi::Class>();

}  // namespace
}  // namespace weightfs::hdf5

extern "C" {

WEIGHTFS_EXPORT int H5PLget_plugin_type() { return weightfs::hdf5::abi::kPluginTypeDriver; }

WEIGHTFS_EXPORT const void* H5PLget_plugin_info() { return &weightfs::hdf5::kClass; }

// Returns the number of operations of this process that used a lease.
WEIGHTFS_EXPORT uint64_t weightfs_hdf5_direct_operations() {
  return weightfs::hdf5::Engine::Shared().direct_operations();
}

}  // extern "C"

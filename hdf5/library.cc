// SPDX-License-Identifier: Apache-2.0
#include "hdf5/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "common/mutex.h"
#include "common/result.h"

namespace weightfs::hdf5 {
namespace {

template <typename Symbol>
void Find(void* library, const char* name, Symbol* out) {
  *out = reinterpret_cast<Symbol>(dlsym(library, name));
}

}  // namespace

std::string ReportLine(const Error& error) {
  // h5py selects its exception by "errno = N": FileNotFoundError, PermissionError, …
  return fmt::format("weightfs: {}, errno = {}", error.what.empty() ? ToString(error) : error.what,
                     error.error_number());
}

Library::Library(void* handle) {
  Find(handle, "H5Pget_driver_config_str", &get_config_);
  Find(handle, "H5Epush2", &push_);
  Find(handle, "H5E_ERR_CLS_g", &error_class_);
  Find(handle, "H5E_VFL_g", &major_);
  Find(handle, "H5E_SYSERRSTR_g", &minor_);
}

const Library& Library::Of(const void* caller) {
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

std::string Library::Configuration(abi::hid_t fapl) const {
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

void Library::Report(const Error& error, const char* action) const {
  const std::string line = ReportLine(error);
  if (push_ == nullptr || error_class_ == nullptr || major_ == nullptr || minor_ == nullptr) {
    std::fprintf(stderr, "%s\n", line.c_str());
  } else {
    constexpr abi::hid_t kDefaultStack = 0;
    push_(kDefaultStack, "libhdf5_weightfs", action, 0, *error_class_, *major_, *minor_, "%s", line.c_str());
  }
  errno = error.error_number();
}

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/shared_library.h"

#include <dlfcn.h>

#include <cerrno>

namespace weightfs::client {

Result<SharedLibrary> SharedLibrary::Open(std::span<const std::string> names) {
  std::string reason;
  for (const std::string& name : names) {
    SharedLibrary library;
    library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    library.name_ = name;
    if (library.handle_ != nullptr) return library;
    const char* said = dlerror();
    if (reason.empty()) reason = said != nullptr ? said : name + " cannot be loaded";
  }
  return Error{ErrorCode::kNotFound, reason};
}

void* SharedLibrary::Symbol(const char* name) const { return dlsym(handle_, name); }

}  // namespace weightfs::client

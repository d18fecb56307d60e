// SPDX-License-Identifier: Apache-2.0
// Loads NVIDIA's libraries at run time, because weightfs is built without them.
#pragma once

#include <dlfcn.h>

#include <span>
#include <string>

#include "common/result.h"

namespace weightfs::client {

// A value type. A loaded library stays in the process, because other parts of the program may use it too.
class SharedLibrary {
 public:
  // Loads the first of `names` that the loader finds, by path or by name. ENOENT with the loader's reason for the first
  // name.
  static Result<SharedLibrary> Open(std::span<const std::string> names) {
    std::string reason;
    for (const std::string& name : names) {
      void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) return SharedLibrary(name, handle);
      const char* said = dlerror();
      if (reason.empty()) reason = said != nullptr ? said : name + " cannot be loaded";
    }
    return Error{ErrorCode::kNotFound, reason};
  }

  // Sets *function to the library's function of that name. If there is none, sets it to null and returns false.
  template <typename Function>
  bool Find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(dlsym(handle_, name));
    return *function != nullptr;
  }
  // The name under which the library was found.
  const std::string& name() const { return name_; }

 private:
  SharedLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  std::string name_;
  void* handle_;
};

}  // namespace weightfs::client

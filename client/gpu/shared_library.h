// SPDX-License-Identifier: Apache-2.0
// A library of NVIDIA's that is looked for while the program runs: none of them is there when weightfs is built.
#pragma once

#include <span>
#include <string>

#include "common/result.h"

namespace weightfs::client {

// A value. The library stays in the process once it is found: other parts of the program may use it too.
class SharedLibrary {
 public:
  // The first of `names` that the loader finds, by path or by name. ENOENT with the loader's reason for the first.
  static Result<SharedLibrary> Open(std::span<const std::string> names);

  // Sets *function to what the library calls `name`; false, and null, when it has no such function.
  template <typename Function>
  bool Find(const char* name, Function** function) const {
    *function = reinterpret_cast<Function*>(Symbol(name));
    return *function != nullptr;
  }
  // The name under which it was found.
  const std::string& name() const { return name_; }

 private:
  void* Symbol(const char* name) const;
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// The few functions of HDF5 that the plugin calls where it finds them: those of the library that called it. A process
// may have several (a wheel brings its own, under a name of its own), and a static one may show none.
#pragma once

#include <string>

#include "common/error.h"
#include "hdf5/h5fd_abi.h"

namespace weightfs::hdf5 {

// The line that HDF5's error stack gets.
std::string ReportLine(const Error& error);

// Thread-safe.
class Library {
 public:
  // The one that holds `caller`, a return address.
  static const Library& Of(const void* caller);

  // The driver's configuration of a file-access property list; HDF5_DRIVER_CONFIG where the library does not say.
  std::string Configuration(abi::hid_t fapl) const;
  // Puts the error on HDF5's error stack and sets errno; prints it to stderr where there is no stack to be found.
  void Report(const Error& error, const char* action) const;

 private:
  explicit Library(void* handle);

  long (*get_config_)(abi::hid_t, char*, size_t) = nullptr;
  abi::herr_t (*push_)(abi::hid_t, const char*, const char*, unsigned, abi::hid_t, abi::hid_t, abi::hid_t, const char*,
                       ...) = nullptr;
  const abi::hid_t* error_class_ = nullptr;
  const abi::hid_t* major_ = nullptr;
  const abi::hid_t* minor_ = nullptr;
};

}  // namespace weightfs::hdf5

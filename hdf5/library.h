// SPDX-License-Identifier: Apache-2.0
// The few HDF5 functions that the plugin calls, looked up in the library that called it. A process may have several
// HDF5 libraries (a wheel has its own, under another name), and a static one may export no symbols.
#pragma once

#include "common/error.h"
#include "hdf5/h5fd_abi.h"

namespace weightfs::hdf5 {

// Returns the line for HDF5's error stack.
std::string ReportLine(const Error& error);

// Thread-safe.
class Library {
 public:
  // Returns the library that contains `caller`, a return address.
  static const Library& Of(const void* caller);

  // Returns the driver's configuration in a file-access property list, or HDF5_DRIVER_CONFIG without library symbols.
  std::string Configuration(abi::hid_t fapl) const;
  // Pushes the error onto HDF5's error stack, or prints it to stderr without library symbols. Sets errno.
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

// SPDX-License-Identifier: Apache-2.0
// The plugin that HDF5 loads. HDF5_PLUGIN_PATH names its directory, and HDF5_DRIVER=weightfs selects the driver.

#include "client/export.h"
#include "hdf5/driver.h"
#include "hdf5/h5fd_abi.h"
#include "hdf5/library.h"

namespace weightfs::hdf5 {
namespace {

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

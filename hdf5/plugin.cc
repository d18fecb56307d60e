// SPDX-License-Identifier: Apache-2.0
// The plugin that HDF5 loads. HDF5_PLUGIN_PATH names its directory, and HDF5_DRIVER=weightfs selects the driver.
#include <cstdint>

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

using ThisDriver = Driver<PluginAbi>;

constexpr abi::Class kClass{
    .version = abi::kClassVersion,
    .value = abi::kDriverValue,
    .name = "weightfs",
    .maxaddr = kLargestAddress,
    .fc_degree = abi::kCloseWeak,
    .terminate = ThisDriver::Terminate,
    .open = ThisDriver::Open,
    .close = ThisDriver::Close,
    .cmp = ThisDriver::Compare,
    .query = ThisDriver::Query,
    .get_eoa = ThisDriver::EndOfAddresses,
    .set_eoa = ThisDriver::SetEndOfAddresses,
    .get_eof = ThisDriver::EndOfFile,
    .get_handle = ThisDriver::Handle,
    .read = ThisDriver::Read,
    .write = ThisDriver::Write,
    .read_vector = ThisDriver::ReadVector,
    .write_vector = ThisDriver::WriteVector,
    // HDF5 converts selections to vectors for drivers without these callbacks.
    .read_selection = nullptr,
    .write_selection = nullptr,
    .flush = ThisDriver::Flush,
    .truncate = ThisDriver::Truncate,
    .lock = ThisDriver::Lock,
    .unlock = ThisDriver::Unlock,
    .del = ThisDriver::Delete,
    .ctl = ThisDriver::Control,
    // Metadata and data have separate pools, as in sec2.
    .fl_map = {abi::kSuper, abi::kSuper, abi::kSuper, abi::kRawData, abi::kRawData, abi::kSuper, abi::kSuper},
};

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

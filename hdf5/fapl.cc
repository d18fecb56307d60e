// SPDX-License-Identifier: Apache-2.0
#include "hdf5/fapl.h"

#include <fmt/format.h>

#include "hdf5/driver.h"
#include "hdf5/h5fd_abi.h"

#define WEIGHTFS_HAS_LOADABLE_DRIVERS H5_VERSION_GE(1, 14, 0)
#if WEIGHTFS_HAS_LOADABLE_DRIVERS
#include <H5FDdevelop.h>
#endif

namespace weightfs::hdf5 {
namespace {

// Negative before the registration, and after HDF5 has terminated the driver.
hid_t driver_id = H5I_INVALID_HID;

static_assert(WEIGHTFS_DIRECT_AUTO == static_cast<int>(client::Direct::kAuto));
static_assert(WEIGHTFS_DIRECT_NEVER == static_cast<int>(client::Direct::kNever));
static_assert(WEIGHTFS_DIRECT_REQUIRE == static_cast<int>(client::Direct::kRequire));

weightfs_fapl_t ToFapl(const Settings& settings) {
  weightfs_fapl_t fapl{};
  fapl.version = WEIGHTFS_FAPL_VERSION;
  fapl.num_threads = settings.num_threads;
  fapl.queue_depth = settings.queue_depth;
  fapl.block_size = settings.block_size;
  fapl.direct_size = settings.direct_size;
  fapl.cache = settings.cache;
  fapl.read_ahead = settings.read_ahead;
  fapl.no_read_ahead = settings.read_ahead == 0 ? 1 : 0;
  fapl.sync = settings.sync == Sync::kFlush   ? WEIGHTFS_SYNC_FLUSH
              : settings.sync == Sync::kClose ? WEIGHTFS_SYNC_CLOSE
                                              : WEIGHTFS_SYNC_NEVER;
  fapl.direct = static_cast<uint32_t>(settings.direct);
  return fapl;
}

Result<Settings> ToSettings(const weightfs_fapl_t& fapl) {
  const auto invalid = [](const std::string& what) { return Error{ErrorCode::kInvalid, "weightfs_fapl_t: " + what}; };
  if (fapl.version != WEIGHTFS_FAPL_VERSION) {
    return invalid(fmt::format("version is {}, not WEIGHTFS_FAPL_VERSION ({})", fapl.version, WEIGHTFS_FAPL_VERSION));
  }
  Settings settings;
  if (fapl.num_threads != 0) settings.num_threads = fapl.num_threads;
  if (fapl.queue_depth != 0) settings.queue_depth = fapl.queue_depth;
  if (fapl.block_size != 0) settings.block_size = fapl.block_size;
  if (fapl.direct_size != 0) settings.direct_size = fapl.direct_size;
  if (fapl.cache != 0) settings.cache = fapl.cache;
  if (fapl.read_ahead != 0) settings.read_ahead = fapl.read_ahead;
  if (fapl.no_read_ahead != 0) settings.read_ahead = 0;
  switch (fapl.sync) {
    case WEIGHTFS_SYNC_FLUSH: settings.sync = Sync::kFlush; break;
    case WEIGHTFS_SYNC_CLOSE: settings.sync = Sync::kClose; break;
    case WEIGHTFS_SYNC_NEVER: settings.sync = Sync::kNever; break;
    default: return invalid(fmt::format("sync is {}, which is not a weightfs_sync_t", fapl.sync));
  }
  if (fapl.direct > WEIGHTFS_DIRECT_REQUIRE) {
    return invalid(fmt::format("direct is {}, which is not a weightfs_direct_t", fapl.direct));
  }
  settings.direct = client::Direct{static_cast<unsigned char>(fapl.direct)};
  RETURN_IF_ERROR(Check(settings));
  return settings;
}

struct LinkedAbi {
  using FileBase = H5FD_t;
  using Memory = H5FD_mem_t;
  using hid_t = ::hid_t;
  using haddr_t = ::haddr_t;

  static Result<Settings> SettingsOf(hid_t fapl, const void* /*caller*/) {
    const auto* settings = static_cast<const weightfs_fapl_t*>(H5Pget_driver_info(fapl));
    return settings == nullptr ? Settings() : ToSettings(*settings);
  }
  static void Report(const Error& error, const char* action, const void* /*caller*/) {
    H5Epush2(H5E_DEFAULT, "libweightfs_hdf5", action, 0, H5E_ERR_CLS, H5E_VFL, H5E_SYSERRSTR, "%s",
             ReportLine(error).c_str());
    errno = error.error_number();
  }
};

using ThisDriver = Driver<LinkedAbi>;

// HDF5 frees the result with free(3).
void* SettingsOfFile(H5FD_t* file) {
  auto* fapl = static_cast<weightfs_fapl_t*>(std::malloc(sizeof(weightfs_fapl_t)));
  if (fapl != nullptr) *fapl = ToFapl(ThisDriver::FileOf(file).settings());
  return fapl;
}

herr_t Terminate() {
  driver_id = H5I_INVALID_HID;
  return ThisDriver::Terminate();
}

#if WEIGHTFS_HAS_LOADABLE_DRIVERS
// The plugin's own declarations match these headers.
static_assert(H5FD_CLASS_VERSION == abi::kClassVersion);
static_assert(sizeof(H5FD_class_t) == sizeof(abi::Class) && sizeof(H5FD_t) == sizeof(abi::FileBase));
static_assert(offsetof(H5FD_class_t, open) == offsetof(abi::Class, open));
static_assert(offsetof(H5FD_class_t, read_vector) == offsetof(abi::Class, read_vector));
static_assert(offsetof(H5FD_class_t, ctl) == offsetof(abi::Class, ctl));
static_assert(offsetof(H5FD_class_t, fl_map) == offsetof(abi::Class, fl_map));
static_assert(offsetof(H5FD_t, base_addr) == offsetof(abi::FileBase, base_addr));
#endif
static_assert(H5FD_MEM_DRAW == static_cast<int>(abi::kRawData) && H5FD_MEM_NTYPES == static_cast<int>(abi::kTypes));
static_assert(H5FD_MEM_SUPER == static_cast<int>(abi::kSuper) && H5FD_MEM_GHEAP == static_cast<int>(abi::kGlobalHeap));
static_assert(H5FD_FEAT_SUPPORTS_SWMR_IO == abi::kSupportsSwmr);
static_assert(H5FD_FEAT_DEFAULT_VFD_COMPATIBLE == abi::kDefaultDriverCompatible);
static_assert(H5FD_FEAT_DATA_SIEVE == abi::kDataSieve && H5FD_FEAT_POSIX_COMPAT_HANDLE == abi::kPosixCompatibleHandle);

H5FD_class_t MakeClass() {
  auto driver = ThisDriver::MakeClass<H5FD_class_t>();
  driver.terminate = Terminate;
  driver.fapl_size = sizeof(weightfs_fapl_t);
  driver.fapl_get = SettingsOfFile;
  return driver;
}

}  // namespace
}  // namespace weightfs::hdf5

hid_t H5FD_weightfs_init(void) {
  using weightfs::hdf5::driver_id;
  static const H5FD_class_t driver = weightfs::hdf5::MakeClass();
  // The ID no longer has this type after HDF5 was closed and reopened.
  if (H5Iget_type(driver_id) != H5I_VFL) driver_id = H5FDregister(&driver);
  return driver_id;
}

herr_t H5Pset_fapl_weightfs(hid_t fapl_id, const weightfs_fapl_t* settings) {
  using namespace weightfs::hdf5;
  const hid_t driver = H5FD_weightfs_init();
  if (driver < 0) return -1;
  weightfs::Result<Settings> checked = settings == nullptr ? Settings() : ToSettings(*settings);
  if (!checked.has_value()) {
    LinkedAbi::Report(checked.error(), "H5Pset_fapl_weightfs", nullptr);
    return -1;
  }
  const weightfs_fapl_t fapl = ToFapl(*checked);
  return H5Pset_driver(fapl_id, driver, &fapl);
}

herr_t H5Pget_fapl_weightfs(hid_t fapl_id, weightfs_fapl_t* settings) {
  using namespace weightfs::hdf5;
  const auto fail = [](const char* why) {
    LinkedAbi::Report({weightfs::ErrorCode::kInvalid, why}, "H5Pget_fapl_weightfs", nullptr);
    return -1;
  };
  if (settings == nullptr) return fail("the argument settings is NULL");
  if (driver_id < 0 || H5Pget_driver(fapl_id) != driver_id) return fail("the list has a driver other than weightfs");
  const auto* found = static_cast<const weightfs_fapl_t*>(H5Pget_driver_info(fapl_id));
  if (found == nullptr) return fail("the list has no settings of the driver weightfs");
  *settings = *found;
  return 0;
}

uint64_t weightfs_fapl_direct_operations(void) { return weightfs::hdf5::Engine::Shared().direct_operations(); }

// SPDX-License-Identifier: Apache-2.0
// The options of a mount.
#include <algorithm>
#include <chrono>

#include "common/assert.h"
#include "fs/kernel_features.h"
#include "fs/mount_options.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The ranges that --help states.
void CheckLimits(const MountOptions& mount, const StoreOptions& store) {
  WEIGHTFS_ASSERT(mount.threads >= 1 && mount.threads <= 64);
  WEIGHTFS_ASSERT(mount.spin >= microseconds(0) && mount.spin <= microseconds(1000));
  WEIGHTFS_ASSERT(mount.write_buffers.value >= 4 * kMiB);
  WEIGHTFS_ASSERT(mount.read_only == store.read_only);
  WEIGHTFS_ASSERT(ParseFeatureMask(mount.without).has_value());
  WEIGHTFS_ASSERT(store.memory >= kLeastMemory);
  WEIGHTFS_ASSERT(store.resident_inodes >= 16 && store.resident_inodes <= uint64_t{1} << 32);
  WEIGHTFS_ASSERT(store.commit_interval >= milliseconds(1) && store.commit_interval <= milliseconds(3'600'000));
  constexpr uint64_t kNoMachine = uint64_t{1} << 50;  // bytes
  if (store.memory.value > kNoMachine || mount.write_buffers.value > kNoMachine)
    WEIGHTFS_ASSERT(!CheckMemory(mount, store).has_value());
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  return {"ro,allow_other,threads=4,spin=100,cache=never,direct=root",
          "rw,memory=112M,write_buffers=4M,read_ahead=0,inodes=16,commit=0.001,sync_on_close,noverify",
          "without=max_pages,posix_acl,passthrough:over_io_uring,noatime",
          "remount,noexec,nosuid,dev,context=a\\,b,x-systemd.automount,defaults,user_id=0,seclabel,_netdev",
          "commit=3600,memory=8P,write_buffers=8000P,inodes=4294967296,,direct=owner"};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  const std::string_view text = fuzz::Text(data, size);
  MountOptions mount;
  StoreOptions store;
  const auto applied = ApplyMountOptions(text, mount, store);
  if (!applied.has_value())
    WEIGHTFS_ASSERT(applied.error().code == ErrorCode::kInvalid && !applied.error().what.empty());
  // The options before an invalid one are applied, so the limits hold in any case.
  CheckLimits(mount, store);
  // The later option wins, so the same options once more change nothing.
  const auto threads = mount.threads;
  const auto memory = store.memory;
  const auto commit = store.commit_interval;
  const auto again = ApplyMountOptions(text, mount, store);
  if (!mount.remount) WEIGHTFS_ASSERT(again.has_value() == applied.has_value());
  if (applied.has_value())
    WEIGHTFS_ASSERT(mount.threads == threads && store.memory == memory && store.commit_interval == commit);
  return 0;
}

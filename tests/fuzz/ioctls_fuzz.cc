// SPDX-License-Identifier: Apache-2.0
// The ioctls of a mount, as a FUSE request may carry them. An input is a byte that selects the command (or, with the
// highest bit, four more bytes that are the command), a byte of flags, the size of the answer (two bytes), and the
// argument.
#include <fcntl.h>
#include <linux/fuse.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/log.h"
#include "engine/superblock.h"
#include "lease/ioctl.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/fs/fake_kernel.h"

namespace weightfs {
namespace {

constexpr std::array<unsigned, 11> kCommands = {
    WEIGHTFS_IOC_INFO,        WEIGHTFS_IOC_EXTENTS,      WEIGHTFS_IOC_STATS,         WEIGHTFS_IOC_SCRUB,
    WEIGHTFS_IOC_LEASE,       WEIGHTFS_IOC_READ_ONLY,    WEIGHTFS_IOC_LEASE_REQUEST, WEIGHTFS_IOC_DROP_CACHE,
    WEIGHTFS_IOC_EXTENT_LIST, WEIGHTFS_IOC_CHECK_CATALOG, WEIGHTFS_IOC_CHECK_RANGE};
constexpr unsigned kAnyCommand = 0x80, kDirectory = 1, kRightSize = 2;
constexpr uint64_t kRoot = 1;

// A mount with one file of two extents, and a handle of the file and of its directory.
struct Mount {
  Mount() {
    MountOptions options;
    options.without = {"max_pages_limit"};  // independent of the sysctl of this machine
    options.write_buffers = ByteCount{8 * kMiB};
    kernel = std::make_unique<FakeKernel>(FakeKernel::Offer{}, options);
    WEIGHTFS_ASSERT(kernel->negotiated().has_value());
    const KernelReply created = kernel->Create("file", O_RDWR);
    node = created.As<fuse_entry_out>().nodeid;
    handle = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
    for (const uint64_t offset : {uint64_t{0}, 64 * kKiB}) kernel->Write(node, handle, offset, std::string(8192, 'x'));
    WEIGHTFS_ASSERT(kernel->AskWith(FUSE_FSYNC, node, fuse_fsync_in{.fh = handle}).error == 0);
    directory = kernel->AskWith(FUSE_OPENDIR, kRoot, fuse_open_in{}).As<fuse_open_out>().fh;
    ExpectTwoExtents<weightfs_extents>(WEIGHTFS_IOC_EXTENTS);
    ExpectTwoExtents<weightfs_extent_list>(WEIGHTFS_IOC_EXTENT_LIST);
  }

  template <typename List>
  void ExpectTwoExtents(unsigned command) {
    const List asked{.version = WEIGHTFS_IOC_VERSION};
    const KernelReply extents =
        Ask(command, false, sizeof(asked), {reinterpret_cast<const char*>(&asked), sizeof(asked)});
    WEIGHTFS_ASSERT(extents.error == 0 && extents.As<List>(sizeof(fuse_ioctl_out)).count == 2);
  }

  KernelReply Ask(unsigned command, bool of_directory, uint32_t out_size, std::string_view argument) {
    const fuse_ioctl_in in{.fh = of_directory ? directory : handle,
                           .flags = of_directory ? FUSE_IOCTL_DIR : 0U,
                           .cmd = command,
                           .in_size = static_cast<uint32_t>(argument.size()),
                           .out_size = out_size};
    return kernel->AskWith(FUSE_IOCTL, of_directory ? kRoot : node, in, argument);
  }

  std::unique_ptr<FakeKernel> kernel;
  uint64_t node = 0, handle = 0, directory = 0;
};

template <typename List>
void CheckExtents(const List& found) {
  WEIGHTFS_ASSERT(found.count <= std::size(found.extents));
  uint64_t last = 0;
  for (uint32_t i = 0; i < found.count; ++i) {
    const weightfs_extent& extent = found.extents[i];
    WEIGHTFS_ASSERT(extent.first >= last && extent.length > 0 && extent.physical >= kDataOffset);
    last = extent.first + extent.length;
  }
  WEIGHTFS_ASSERT(found.count == 0 || found.start == last);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  std::vector<std::string> seeds;
  for (size_t index = 0; index < kCommands.size(); ++index) {
    std::string argument(_IOC_SIZE(kCommands[index]), '\0');
    if (!argument.empty()) argument[0] = kCommands[index] == WEIGHTFS_IOC_READ_ONLY ? 0 : WEIGHTFS_IOC_VERSION;
    for (const unsigned flags : {kRightSize, kRightSize | kDirectory})
      seeds.push_back(std::string{static_cast<char>(index), static_cast<char>(flags), 0, 0} + argument);
  }
  return seeds;
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  spdlog::set_level(spdlog::level::off);
  // Not destroyed: its thread serves until the process ends.
  static Mount& mount = *new Mount;
  Decoder input(fuzz::Text(data, size));
  const auto selected = input.Little<uint8_t>();
  const unsigned command =
      (selected & kAnyCommand) != 0 ? input.Little<uint32_t>() : kCommands[selected % kCommands.size()];
  const auto flags = input.Little<uint8_t>();
  const auto given_size = input.Little<uint16_t>();
  const uint32_t out_size = (flags & kRightSize) != 0 ? _IOC_SIZE(command) : given_size;
  const KernelReply reply = mount.Ask(command, (flags & kDirectory) != 0, out_size, input.rest().substr(0, _IOC_SIZEMASK));
  if (reply.error != 0) {
    constexpr std::array kErrors = {EINVAL, ENOTTY, EPERM, EOPNOTSUPP, EROFS};
    WEIGHTFS_ASSERT(std::find(kErrors.begin(), kErrors.end(), -reply.error) != kErrors.end());
    return 0;
  }
  // The kernel copies the answer into the caller's memory of this size.
  WEIGHTFS_ASSERT(std::find(kCommands.begin(), kCommands.end(), command) != kCommands.end());
  const size_t answer = (_IOC_DIR(command) & _IOC_READ) != 0 ? _IOC_SIZE(command) : 0;
  WEIGHTFS_ASSERT(answer <= out_size && reply.body.size() == sizeof(fuse_ioctl_out) + answer);
  if (command == WEIGHTFS_IOC_EXTENTS) CheckExtents(reply.As<weightfs_extents>(sizeof(fuse_ioctl_out)));
  if (command == WEIGHTFS_IOC_EXTENT_LIST) CheckExtents(reply.As<weightfs_extent_list>(sizeof(fuse_ioctl_out)));
  return 0;
}

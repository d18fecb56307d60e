// SPDX-License-Identifier: Apache-2.0
#include "io/direct_alignment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>
#include <map>
#include <utility>

#include "common/mutex.h"

namespace weightfs {
namespace {

// Asks each filesystem without a device once, because statfs(2) is a request to the server of a FUSE mount. A mount
// that takes the number and id of one that is gone may get its answer, which none of them minds: only they need no
// alignment.
bool IsInMemory(int descriptor, const struct statx& status) {
  if (status.stx_dev_major != 0) return false;
  static Mutex mutex;
  static std::map<std::pair<uint32_t, uint64_t>, bool> known;
  const auto mount = std::pair(status.stx_dev_minor, status.stx_mnt_id);
  {
    MutexLock lock(mutex);
    if (const auto found = known.find(mount); found != known.end()) return found->second;
  }
  struct statfs filesystem {};
  if (fstatfs(descriptor, &filesystem) != 0) return false;
  const bool in_memory = filesystem.f_type == TMPFS_MAGIC;
  constexpr size_t kMost = 64;
  MutexLock lock(mutex);
  if (known.size() == kMost) known.clear();
  known[mount] = in_memory;
  return in_memory;
}

}  // namespace

std::optional<DirectAlignment> QueryDirectAlignment(int descriptor) {
  struct statx answer {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN | STATX_MNT_ID, &answer) == 0 &&
      (answer.stx_mask & STATX_DIOALIGN) != 0) {
    if (!std::has_single_bit(answer.stx_dio_mem_align) || !std::has_single_bit(answer.stx_dio_offset_align)) {
      return std::nullopt;
    }
    return DirectAlignment{answer.stx_dio_offset_align, answer.stx_dio_mem_align};
  }
  // On in-memory filesystems the kernel copies from any address, in spite of O_DIRECT.
  if (IsInMemory(descriptor, answer)) return DirectAlignment{1, 1};
  return DirectAlignment{};  // an older kernel, or an unspecific filesystem: a page is always sufficient
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "io/direct_alignment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <bit>

namespace weightfs {

std::optional<DirectAlignment> QueryDirectAlignment(int descriptor) {
  struct statx answer {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &answer) == 0 && (answer.stx_mask & STATX_DIOALIGN) != 0) {
    if (!std::has_single_bit(answer.stx_dio_mem_align) || !std::has_single_bit(answer.stx_dio_offset_align)) {
      return std::nullopt;
    }
    return DirectAlignment{answer.stx_dio_offset_align, answer.stx_dio_mem_align};
  }
  // On in-memory filesystems the kernel copies from any address, in spite of O_DIRECT.
  struct statfs filesystem {};
  if (fstatfs(descriptor, &filesystem) == 0 && filesystem.f_type == TMPFS_MAGIC) return DirectAlignment{1, 1};
  return DirectAlignment{};  // an older kernel, or an unspecific filesystem: a page is always sufficient
}

}  // namespace weightfs

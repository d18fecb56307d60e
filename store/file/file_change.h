// SPDX-License-Identifier: Apache-2.0
// Helpers that the source files of FileIo share. Included by them only.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "store/file/file.h"
#include "store/file/file_io.h"

namespace weightfs {

template <typename Look>
std::invoke_result_t<Look, File&> FileIo::WhenLoaded(const InodePtr& inode, const Look& look) {
  while (true) {
    {
      MutexLock lock(inode->mutex);
      if (inode->file && inode->file->loaded()) return look(*inode->file);
    }
    RETURN_IF_ERROR(Load(inode));
  }
}

template <typename Plan, typename Apply>
Result<void> FileIo::Change(const InodePtr& inode, PendingWrites* writes, const Plan& plan, const Apply& apply,
                            BlockCount expected) {
  WriteSupplies supplies;
  SpaceSearch search{inode};
  // If this fails, the plan states the exact need.
  if (expected.value > 0) static_cast<void>(p_.space.Reserve(&supplies.space, expected).has_value());
  while (true) {
    WriteNeeds needs;
    {
      MutexLock lock(inode->mutex);
      RETURN_IF_ERROR(CheckWritable(*inode));
      if (!inode->file->loaded()) {
        lock.Unlock();
        RETURN_IF_ERROR(Load(inode));
        continue;
      }
      WritePlan write_plan(supplies);
      RETURN_IF_ERROR(plan(*inode->file, &write_plan));
      needs = write_plan.needs();
      if (needs.empty()) {
        apply(*inode->file, std::move(write_plan));
        return {};
      }
    }
    if (writes != nullptr) p_.write_back.Submit(writes);
    RETURN_IF_ERROR(Fetch(inode, needs, &supplies, &search));
  }
}

// Plans the zeroing that a move of the end of the file from `old` to `size` needs: the rest of the last block.
inline void PlanShrink(const File& file, uint64_t old, uint64_t size, WritePlan* plan) {
  if (size >= old || size % kBlockSize == 0) return;
  file.PlanZeros(size, std::min(old, RoundUp(size, kBlockSize)), plan);
}

}  // namespace weightfs

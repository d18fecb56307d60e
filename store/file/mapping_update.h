// SPDX-License-Identifier: Apache-2.0
// A helper that the source files of File share. Included by them only.
#pragma once

#include "store/file/file.h"

namespace weightfs {

// Keeps the inode's block count and the space statistics consistent with the mapping across a change.
class File::MappingUpdate {
 public:
  explicit MappingUpdate(File& file) : file_(file), before_(file.extents_.mapped()) {}
  ~MappingUpdate() {
    const BlockCount after = file_.extents_.mapped();
    file_.attributes_.blocks = after.value;
    if (after < before_) file_.CountLeaving();  // no block counts as free twice
    file_.services_.space.AddUsed(static_cast<int64_t>(after.value) - static_cast<int64_t>(before_.value));
    file_.CountLeaving();
    file_.CountExtents();
    file_.CountUncommitted();
  }
  MappingUpdate(const MappingUpdate&) = delete;
  MappingUpdate& operator=(const MappingUpdate&) = delete;

 private:
  File& file_;
  const BlockCount before_;
};

}  // namespace weightfs

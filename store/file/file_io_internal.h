// SPDX-License-Identifier: Apache-2.0
// What the source files of FileIo share; included by nobody else.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "store/file/file_io.h"

namespace weightfs {

inline FileBlock BlockOf(uint64_t offset) { return {offset / kBlockSize}; }
inline FileBlock BlockEnd(uint64_t end) { return {(end + kBlockSize - 1) / kBlockSize}; }

// Memory and block contents fetched without the inode's mutex for the next attempt.
struct FileIo::Spares {
  std::vector<Buffer> stripes, windows;
  struct Block {
    FileBlock block;
    ExtentRecord extent;  // where it was read: still there, or read again
    std::unique_ptr<std::byte[], void (*)(void*)> bytes{nullptr, std::free};
  };
  std::vector<Block> blocks;  // at most the two edges of a range
  int reclaims = 0;           // how often space was looked for
};

// Runs `step` under the inode's mutex until it needs nothing from outside. `step` may run many times: when it asks for
// something it has done nothing, or a part that stands by itself and is touched. What the last run put into `batch` is
// the caller's to send.
template <typename Step>
Result<void> FileIo::Retry(const InodePtr& inode, WriteBatch* batch, Step step) {
  RETURN_IF_ERROR(Load(inode));
  Spares spares;
  while (true) {
    Need need;
    bool loaded;
    {
      MutexLock lock(inode->mutex);
      RETURN_IF_ERROR(CheckWritable(*inode));
      loaded = inode->file->loaded;  // A failed write may have dropped it in between.
      if (loaded) {
        Result<Need> stepped = step(&spares);
        inode->file->reservation.TrimTo(inode->file->dirty.unfrozen());
        if (!stepped) return std::move(stepped).error();
        need = *stepped;
        if (need.kind == Need::Kind::kNothing) return {};
      }
    }
    batch->Send();
    RETURN_IF_ERROR(loaded ? Satisfy(inode, need, &spares) : Load(inode));
  }
}

}  // namespace weightfs

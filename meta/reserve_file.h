// SPDX-License-Identifier: Apache-2.0
// A file that holds free space of a filesystem for its owner, like a ballast: the space is used by making the file
// smaller. Private to meta/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/guarded_directory.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace weightfs {

// Not thread-safe.
class ReserveFile {
 public:
  // Opens the file, which is created empty if it is missing. Full-line errors: kPermission, kAccess, kReadOnly,
  // kNoSpace, kIo.
  static Result<ReserveFile> Open(const GuardedDirectory& directory, const std::string& name);

  uint64_t size() const { return size_; }  // bytes that the file holds

  // Changes the size to `target` bytes. Stops early if the filesystem has too little space. Has no effect on a
  // filesystem that cannot reserve space (fallocate), where the size stays 0.
  void Resize(uint64_t target);

 private:
  ReserveFile(std::string path, UniqueFd descriptor, uint64_t size)
      : path_(std::move(path)), descriptor_(std::move(descriptor)), size_(size) {}
  bool Grow(uint64_t bytes);
  void Shrink(uint64_t size);

  std::string path_;
  UniqueFd descriptor_;
  uint64_t size_;
  bool supported_ = true;
};

}  // namespace weightfs

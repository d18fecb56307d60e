// SPDX-License-Identifier: Apache-2.0
// FUSE passthrough (since Linux 6.9; https://docs.kernel.org/filesystems/fuse/fuse-passthrough.html): the kernel reads
// and maps a file's hot memory itself, without requests. Only for files that nobody can change: the kernel would not
// notice, and the stores of a writable mapping would reach the hot memory alone. Private to fs/.
#pragma once

#include <cstdint>
#include <memory>

#include "store/store.h"

namespace weightfs {

// The hot memory of one file, which the kernel knows by a number. Nobody can change the file while one exists
// (FileIo::Pass). Thread-safe.
class Backing {
 public:
  // Null if not all of the file is in hot memory, if somebody could change it, or if the kernel refuses; without
  // CAP_SYS_ADMIN it always does, and is not asked again. `connection` is the descriptor of /dev/fuse, and outlives the
  // Backing.
  static std::shared_ptr<Backing> Make(Store& store, const InodePtr& inode, int connection);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  int32_t id() const { return id_; }

 private:
  Backing(int connection, int32_t id) : connection_(connection), id_(id) {}

  const int connection_;
  const int32_t id_;
};

}  // namespace weightfs

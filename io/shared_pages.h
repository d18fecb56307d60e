// SPDX-License-Identifier: Apache-2.0
// Memory that other processes can map: files of a private tmpfs with huge pages.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace weightfs {

class SharedPages;

// One file of shared memory, mapped by this process. It has zeros where nothing was written. The file ends with its
// last byte; the mapping goes on to the end of its huge page. Externally synchronized; access to its bytes is not
// synchronized at all.
class SharedFile {
 public:
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  std::byte* data() const { return data_; }  // on a huge page, where the kernel has some
  ByteCount size() const { return size_; }
  ByteCount memory() const;  // that its pages take; 0 if that cannot be determined
  // A descriptor of the file's memory for another process. It can read, and so can whoever opens it anew by /proc.
  Result<UniqueFd> OpenForReading() const;
  // Gets the pages of a part of the mapping from the machine. Without it the first access gets them, and if the machine
  // has none, ends the process (vm.overcommit_memory=2). kNoMemory. Before Linux 5.14 it does nothing.
  Result<void> Populate(uint64_t offset, uint64_t size) const;
  // True if anybody else has the file open or mapped, also if that cannot be determined.
  bool IsShared() const;

 private:
  friend class SharedPages;
  SharedFile(UniqueFd file, UniqueFd reading, ByteCount size)
      : file_(std::move(file)), reading_(std::move(reading)), size_(size) {}

  const UniqueFd file_;
  const UniqueFd reading_;  // by the mount through which nobody can write, with O_PATH; none: a memfd
  const ByteCount size_;
  std::byte* data_ = nullptr;
};

// Makes such files: in a tmpfs that is mounted nowhere; without the right to mount, as memfds, which have huge pages
// only if the machine is set up so (/sys/kernel/mm/transparent_hugepage/shmem_enabled). Thread-safe.
class SharedPages {
 public:
  // Null if the kernel grants no leases of files (fs.leases-enable=0): nobody could say which memory is in use.
  // `may_mount` and `most` (of all files; 0: no limit) are for tests.
  static std::unique_ptr<SharedPages> Create(bool may_mount = true, ByteCount most = {});
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  Result<std::unique_ptr<SharedFile>> Make(ByteCount size);
  // True if the files are of a tmpfs, which FUSE accepts for passthrough.
  bool on_tmpfs() const { return static_cast<bool>(directory_); }

 private:
  SharedPages() = default;
  Result<void> Mount(ByteCount most);
  // Makes both mounts from `made`. The second one gives the calling thread a mount namespace of its own.
  Result<void> Clone(const UniqueFd& made);
  Result<void> CloneInNamespace(const UniqueFd& made);

  UniqueFd directory_, reading_directory_;  // two mounts of one tmpfs; through the second nobody can write
  std::atomic<uint64_t> made_{0};
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Many small reads at random offsets of one file: rows of embedding tables, pages of key-value caches, entries of an
// index. The file stays open.
//
// On a weightfs mount the reader keeps read leases of the file: the locations and checksums of its blocks. A read then
// makes no request to the mount. It transfers whole blocks of 4 KiB from the devices by libaio, and compares each with
// its checksum. On other filesystems, and if the mount grants no lease, whole blocks are read by libaio and O_DIRECT
// and the rest through the page cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "client/export.h"
#include "client/handle.h"
#include "client/memory_view.h"
#include "client/operation.h"
#include "common/error.h"

namespace weightfs::client {

struct RandomReaderOptions {
  unsigned queue_depth = 64;  // maximum number of transfers in the kernel
  // The maximum memory of the checksums that the reader keeps, in bytes: 4 bytes per 4 KiB of the file, so the default
  // suffices for 64 GiB. The leases of a larger file are windows of this size / 32, in least-recently-used order. While
  // a lease is taken, its answer needs as much memory again.
  uint64_t memory = uint64_t{64} << 20;
  // kAuto: reads the file without leases if there are none. kNever: the same always. kRequire: fails instead.
  Direct direct = Direct::kAuto;
};

// With leases, every read returns the bytes of one state of the file: that of Open, or of the last Reopen or Refresh.
// Their blocks stay as they were, whatever others write, truncate, rename over it or delete. Only a file larger than
// `memory` allows for is not leased completely: once it has been changed, reads that need another window of it fail
// with ESTALE. Without leases, a read sees the file as pread(2) does.
//
// A block that differs from its checksum is an error (EIO), which names the file and the offset of the block. It is
// damaged, and not changed by another program, because leased blocks are not overwritten.
//
// Thread-safe. The destructor waits for the transfers in the kernel and cancels all other reads: all operations are
// done when it returns. In a callback it does not wait for operations of many parts, which are done soon after. After
// fork() the child must not use its parent's reader (EPERM).
class WEIGHTFS_EXPORT RandomReader {
 public:
  // Opens the file and takes the first lease. Errors: those of open(2); EINVAL for a queue_depth of 0 or above 65536;
  // those of libaio's setup (EAGAIN); with kRequire, the reason why there is no lease. A descriptor is duplicated.
  static Result<std::unique_ptr<RandomReader>> Open(const FileName& file, const RandomReaderOptions& options = {});
  ~RandomReader();
  RandomReader(const RandomReader&) = delete;
  RandomReader& operator=(const RandomReader&) = delete;

  // Reads offsets.size() rows of `length` bytes into host memory of that size in total, one behind the other. Rows may
  // have any offsets, in any order, and may overlap. The bytes of a row must be contiguous in memory. Holes read as
  // zeros. After an error the memory may be partly filled. With leases, the call takes 8 bytes for each row, and 8 MiB.
  // Errors:
  //   ENODATA  a row reaches past the end of the file; nothing was read
  //   EIO      a block differs from its checksum, or the device reported an error
  //   EPIPE    the mount has ended, and with it the lease; Refresh opens the file again
  //   ESTALE   see above
  //   EAGAIN   too many leases are in use, here or in the mount
  //   EINVAL   memory of another size or kind
  //   ECANCELED `interrupted` returned true
  //   EPERM, EDEADLK  in a forked child, in a callback of an operation
  Result<void> ReadRows(std::span<const uint64_t> offsets, uint64_t length, const MemoryView& memory,
                        const Interrupted& interrupted = {});
  // One row.
  Result<void> Read(uint64_t offset, const MemoryView& memory, const Interrupted& interrupted = {}) {
    return ReadRows(std::span(&offset, 1), memory.size(), memory, interrupted);
  }
  // Starts the same. The memory must stay valid until the operation is done, the offsets only during the call. Rows in
  // more than 32 windows, and more than 65,536 rows, are read in parts by a thread that the call starts (EAGAIN: there
  // cannot be another one).
  Result<std::shared_ptr<Operation>> StartRows(std::span<const uint64_t> offsets, uint64_t length,
                                               const MemoryView& memory);

  // Opens the path again and takes new leases, so that later reads see the file as it is now, also if it was replaced
  // or if the mount was restarted. A reader of a descriptor stays at its file. Reads under way end in the old state.
  // After an error the reader is unchanged.
  Result<void> Refresh();
  // Opens another file instead, with the errors of Open. Much quicker than another reader, whose thread and kernel
  // queue take tens of milliseconds to end. After an error the reader stays at its file.
  Result<void> Reopen(const FileName& file);

  // The size of the file as of Open, Reopen or Refresh, in bytes.
  uint64_t file_size() const;
  // The same with a lease; otherwise the size now, because the file may have changed.
  Result<uint64_t> present_size() const;
  // True if reads bypass the mount.
  bool leased() const;
  // Why there is no lease; none with a lease, or with Direct::kNever.
  std::optional<Error> no_lease() const;

 private:
  class Impl;
  explicit RandomReader(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace weightfs::client

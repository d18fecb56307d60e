// SPDX-License-Identifier: Apache-2.0
// A Target on an ordinary file of any filesystem, opened by path or by a descriptor of the caller.
//
// Aligned ranges go through O_DIRECT. Partial blocks at the head and tail, small unaligned transfers, and everything on
// a filesystem without O_DIRECT go through a buffered descriptor of the same file. Linux keeps the two coherent as long
// as they do not access one page at the same time, so no page is accessed both ways.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/checksum_attribute.h"
#include "client/operation.h"
#include "client/target.h"

namespace weightfs::client {

class GatheredBlocks;

class FileTarget {
 public:
  struct Options {
    Operation::Direction direction = Operation::Direction::kRead;
    std::string path = {};   // as given by the caller
    std::string where = {};  // the absolute path, because the working directory may change; empty: same as `path`
    int descriptor = -1;     // used instead of the path; the caller keeps it and may close it at once
    uint64_t offset = 0;
    bool appends = false;  // used instead of the offset: write at the end of the file as of Target::Prepare
    uint64_t size = 0;
    // The file will contain exactly the written bytes. Requires a path and offset 0. Longer old content is truncated
    // after success, and a file that a failed write created is removed. If false, the rest of the file is kept.
    bool whole_file = false;
    bool atomic = false;       // with whole_file: write a temporary file, then rename it over the target
    bool durable = false;      // fsync before success is reported
    bool durable_name = true;  // with durable: also fsync the directory if the write creates the file
    // A read of several ranges of [offset, offset + size); null: all of it is read.
    std::shared_ptr<const GatheredBlocks> gathered = nullptr;
    std::shared_ptr<ChecksumAttribute> checksums = nullptr;  // stored by a write, compared by a read; may be null
  };

  // A smaller unaligned transfer is one buffered call: opening two descriptors would cost more than O_DIRECT saves.
  static constexpr uint64_t kSmallTransfer = 64 * 1024;

  // Opens the file. A missing file is created with mode 0666 minus the umask, or the call fails with ENOENT if
  // `may_create` is false. Nothing else is changed. Errors are the errnos of the system calls, and EINVAL for an
  // impossible combination of options. Prepare reserves blocks; for a read it checks that the file contains all bytes
  // (ENODATA).
  static Result<std::unique_ptr<Target>> Open(const Options& options, bool may_create = true);
};

// Returns the error "read of 10 bytes at offset 20 of PATH: only 5 bytes there".
Error PastTheEnd(const Target& target, uint64_t size, uint64_t offset, uint64_t file_size);

}  // namespace weightfs::client

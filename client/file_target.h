// SPDX-License-Identifier: Apache-2.0
// A Target on an ordinary file, of whatever filesystem, opened by path or by a descriptor of the caller.
//
// O_DIRECT reaches what is aligned; partial blocks at the head and tail, small unaligned transfers, and
// everything on a filesystem without O_DIRECT go by a buffered descriptor of the same file. Linux keeps the
// two coherent where they are not under way on one page together: no page is for both.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "client/checksum_attribute.h"
#include "client/operation.h"
#include "client/target.h"

namespace weightfs::client {

class FileTarget {
 public:
  struct Options {
    Operation::Direction direction = Operation::Direction::kRead;
    std::string path = {};   // as the caller names it
    std::string where = {};  // the same from the root, for the working directory may change; empty: as `path` says
    int descriptor = -1;     // instead of the path; the caller keeps it and may close it at once
    uint64_t offset = 0;
    bool appends = false;  // instead of the offset: behind what the file has when Target::Prepare is called
    uint64_t size = 0;
    // The file becomes exactly the bytes written (the offset is 0, and there is a path): a longer old content
    // is cut off after a success, and a file that a failed write created is removed. Otherwise what lies
    // around them stays.
    bool whole_file = false;
    bool atomic = false;   // with whole_file: written beside the file, then renamed over it
    bool durable = false;  // fsync, before success is reported
    bool durable_name = true;  // with durable: of its directory, too, for a file that the write makes
    std::shared_ptr<ChecksumAttribute> checksums = nullptr;  // written with it, or compared; may be null
  };

  // An unaligned transfer below this is one buffered call: two descriptors would cost more than O_DIRECT gains.
  static constexpr uint64_t kSmallTransfer = 64 * 1024;

  // Opens. A file that is not there is created with mode 0600, or ENOENT where it may not be; nothing else is changed.
  // Errors are errno's of the system calls, EINVAL for impossible options. Prepare reserves blocks, and for a read
  // checks that the file has all the bytes (ENODATA).
  static Result<std::unique_ptr<Target>> Open(const Options& options, bool may_create = true);
};

// "read of 10 bytes at offset 20 of PATH: only 5 bytes there".
Error PastTheEnd(const Target& target, uint64_t size, uint64_t offset, uint64_t file_size);

}  // namespace weightfs::client

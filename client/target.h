// SPDX-License-Identifier: Apache-2.0
// An opened file as the I/O loop sees it: where the bytes of a range lie, by which descriptors they are
// reached, and what is to be done when the last transfer has ended.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "common/result.h"
#include "io/direct_alignment.h"

namespace weightfs::client {

// Which file it is, whatever its names are.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};

// Made for one operation, and owned by it. What is const may be called from any thread.
class Target {
 public:
  // Bytes of the file that lie in one piece for O_DIRECT.
  struct Run {
    int descriptor = -1;  // opened with O_DIRECT; -1: only the buffered descriptor reaches them
    uint64_t offset = 0;  // on that descriptor; as far from an aligned offset as the place in the file
    uint64_t length = 0;  // at least 1
  };

  virtual ~Target() = default;

  virtual const std::string& path() const = 0;
  // The run at `offset` of the file, `length` bytes long at most.
  virtual Run Locate(uint64_t offset, uint64_t length) const = 0;
  // What O_DIRECT needs there.
  virtual DirectAlignment alignment() const = 0;
  // A descriptor of the file, to ask the filesystem about it; open until Finish, and perhaps for O_DIRECT. -1: it has
  // none.
  virtual int any() const { return -1; }
  // None where the order of what is written does not matter.
  virtual std::optional<FileId> id() const { return std::nullopt; }
  // A descriptor for the file's own offsets that takes any offset and length: partial blocks, and what
  // O_DIRECT refused. -1 with the errno in *error_number when there is none.
  virtual int Buffered(int* error_number) const = 0;
  // The file's size now.
  virtual Result<uint64_t> Size() const = 0;

  // Before the first transfer, when nothing that overlaps is pending any more: what depends on what the file is then.
  // Returns where in the file the operation begins. ESTALE: the path names another file by now.
  virtual Result<uint64_t> Prepare() { return 0; }

  // The operation opens the file again when it begins: Finish and the destructor of this target leave the file as it
  // is.
  virtual void KeepOnFailure() {}

  // True when transfers bypass the filesystem, by a lease. Then whole blocks of kBlockSize are transferred, whatever
  // the ends of the operation, and their checksums go through the two calls below. A Run without a descriptor is a hole
  // of a read, and in a write what the buffered descriptor has to write.
  virtual bool leased() const { return false; }
  // True when a write needs checksums of its bytes. The bytes are then copied first, and the copy is sent: a program
  // may change its memory at any time, and no other checksum is certain to be that of what was sent.
  virtual bool needs_checksums() const { return leased(); }
  // Takes the bytes that are sent to `offset` of the file, each byte once; several threads, each its own. By a lease
  // they are whole blocks, without the parts of blocks that the buffered descriptor writes.
  virtual void NoteWritten(uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) const {}
  // After they were read: EIO where one is not what was written. `last`: they are not going to be read again.
  virtual Result<void> CheckRead(uint64_t /*offset*/, std::span<const std::byte> /*blocks*/, bool /*last*/) const {
    return {};
  }

  // Called once, when nothing is in flight any more: makes a success final (size, durability, name) or takes
  // a failure back as far as that is possible. Its error becomes the operation's.
  virtual Result<void> Finish(bool success) = 0;
};

}  // namespace weightfs::client

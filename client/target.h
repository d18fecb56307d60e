// SPDX-License-Identifier: Apache-2.0
// The file of an operation as the I/O loop sees it: where its bytes are (Layout), how they are transferred (Access).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/result.h"
#include "io/direct_alignment.h"

namespace weightfs::client {

// Identifies a file independently of its names.
struct FileId {
  uint64_t device = 0;
  uint64_t inode = 0;
  auto operator<=>(const FileId&) const = default;
};

// Where the bytes of an operation are. Immutable during the operation.
class Layout {
 public:
  // A contiguous range of the file for O_DIRECT.
  struct Run {
    int descriptor = -1;  // opened with O_DIRECT; -1: use the buffered descriptor
    uint64_t offset = 0;  // offset for that descriptor; it has the same alignment as the offset in the file
    uint64_t length = 0;  // at least 1
    bool is_memory = false;  // it needs no alignment of the program's memory
  };

  virtual ~Layout() = default;
  // The run at `offset` of the operation's file, at most `length` bytes long.
  virtual Run Locate(uint64_t offset, uint64_t length) const = 0;
  // The alignment that O_DIRECT needs.
  virtual DirectAlignment alignment() const = 0;
  // The offset in the file of an offset of the operation. They differ only where an operation reads several ranges.
  virtual uint64_t FileOffset(uint64_t offset) const { return offset; }
};

// How the bytes of a file are transferred, and what makes them final. Const functions are thread-safe. All offsets are
// those of the file.
class Access {
 public:
  virtual ~Access() = default;
  virtual const std::string& path() const = 0;
  // Where the bytes of the whole file are.
  virtual const Layout& layout() const = 0;
  // A descriptor of the file for queries about the filesystem, or -1. It stays open until Finish, and may have O_DIRECT
  // set.
  virtual int any() const { return -1; }
  // A descriptor for the file's own offsets that accepts any offset and length, for partial blocks and for pieces that
  // O_DIRECT refused. Returns -1 with the errno in *error_number if there is none.
  virtual int Buffered(int* error_number) const = 0;
  // The current size of the file.
  virtual Result<uint64_t> Size() const = 0;

  // True if transfers bypass the filesystem through a lease. Then whole blocks of kBlockSize are transferred,
  // regardless of the ends of the operation, and their checksums go through NoteWritten and CheckRead. A Run without a
  // descriptor is a hole in a read; in a write it is a part that the buffered descriptor must write.
  virtual bool leased() const { return false; }
  // True if a write needs checksums of its bytes. The bytes are then copied first, and the copy is sent: a program may
  // change its memory at any time, so only the checksum of the copy is certain to match the bytes that were sent.
  virtual bool needs_checksums() const { return leased(); }
  // Adds the bytes that are sent to `offset`. Each byte is passed once; several threads may call it for different
  // bytes. With a lease the bytes are whole blocks, without the partial blocks that the buffered descriptor writes.
  virtual void NoteWritten(uint64_t /*offset*/, std::span<const std::byte> /*bytes*/) const {}
  // Called after a read: EIO if a block's checksum does not match. `last`: the blocks will not be read again.
  virtual Result<void> CheckRead(uint64_t /*offset*/, std::span<const std::byte> /*blocks*/, bool /*last*/) const {
    return {};
  }

  // Called once, when nothing is in flight any more. After success it makes the result final (size, durability, name).
  // After a failure it rolls back as far as possible. Its error becomes the operation's error.
  virtual Result<void> Finish(bool success) = 0;
  // True if Finish after success makes no request that may take long: it closes the file at most.
  virtual bool FinishesAtOnce() const { return false; }
};

// Created for one operation, which owns it.
struct Target {
  std::unique_ptr<Access> access = nullptr;         // null: there is no file yet
  std::unique_ptr<const Layout> ranges = nullptr;   // the parts of the file that a read gathers; null: it is the file

  explicit operator bool() const { return access != nullptr; }
  const Layout& layout() const { return ranges != nullptr ? *ranges : access->layout(); }
  bool leased() const { return access != nullptr && access->leased(); }
};

}  // namespace weightfs::client

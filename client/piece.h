// SPDX-License-Identifier: Apache-2.0
// Operations are split into slices, one per ring, and slices into pieces, one per transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>

#include "client/operation.h"
#include "client/target.h"
#include "io/buffer.h"

namespace weightfs::client {

// A part of an operation. Externally synchronized; its pieces point to it.
struct Slice {
  std::shared_ptr<Operation> operation;
  uint64_t next = 0;  // first byte of the operation's memory that is not in a piece yet
  uint64_t end = 0;
  size_t pieces = 0;  // number of pieces cut but not ended
  std::list<Slice>::iterator self = {};
};

// The range of a piece, in bytes.
struct PieceRange {
  uint64_t at = 0;  // position in the operation's memory
  uint64_t size = 0;
  uint64_t lead = 0;      // bytes of the transfer before this range: with a lease, whole blocks are transferred
  uint64_t transfer = 0;  // bytes transferred, including the lead and the bytes behind the range
  int descriptor = -1;    // -1: use the buffered descriptor
  uint64_t offset = 0;    // offset for the descriptor
};

// Externally synchronized. A write takes the steps kCopyOut and kTransfer, a read the steps kTransfer and kCopyIn. Only
// GPU memory that passes through a bounce buffer needs the copy steps.
struct Piece : PieceRange {
  enum class Step : unsigned char { kCopyOut, kTransfer, kCopyIn };

  Operation& operation() const { return *slice->operation; }
  const Target& target() const { return operation().target(); }
  bool writes() const { return operation().direction() == Operation::Direction::kWrite; }
  // blocks() is everything that is transferred; bytes() is the operation's part of it.
  std::span<std::byte> blocks() const { return {data, transfer}; }
  std::span<std::byte> bytes() const { return {data + lead, size}; }

  Slice* slice = nullptr;
  Step step = Step::kTransfer;
  uint64_t done = 0;          // bytes transferred so far
  unsigned tries = 0;         // number of reads that returned damaged blocks
  std::byte* data = nullptr;  // the caller's memory or the bounce buffer; null for GPU memory
  Buffer bounce;
  bool by_cufile = false;
};

// True if the target takes the checksums of this write. A copy of the memory is then sent unless it is stable.
bool NeedsChecksums(const Operation& operation);
bool NeedsCopy(const Operation& operation);

// Returns the range of the next piece, of at most `block_size` bytes. The slice must have bytes left.
PieceRange ChooseRange(const Slice& slice, uint64_t block_size);

// Copies the bytes of a write to the bounce buffer, if the piece has one, and passes them to the target's checksums.
void PrepareWrite(const Piece& piece);

// Adds transferred bytes to the operation's progress and to the GPU's traffic.
void CountTransferred(Operation& operation, bool by_cufile, uint64_t size);

// Fails the operation at an offset of its target. An errno of 0 means the end of the file in a read.
void FailAt(Operation& operation, uint64_t position, const Error& error);

}  // namespace weightfs::client

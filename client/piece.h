// SPDX-License-Identifier: Apache-2.0
// Operations are cut into slices, one a ring, and slices into pieces, one a transfer.
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

// A part of an operation. Externally synchronised; its pieces point to it.
struct Slice {
  std::shared_ptr<Operation> operation;
  uint64_t next = 0;  // the first byte of the operation's memory that is in no piece yet
  uint64_t end = 0;
  size_t pieces = 0;  // cut and not ended
  std::list<Slice>::iterator self = {};
};

// The range of a piece, in bytes.
struct PieceRange {
  uint64_t at = 0;  // in the operation's memory
  uint64_t size = 0;
  uint64_t lead = 0;      // bytes of the transfer before them. By a lease whole blocks are transferred,
  uint64_t transfer = 0;  // with the lead and what lies behind
  int descriptor = -1;    // -1: by the buffered descriptor
  uint64_t offset = 0;    // on the descriptor
};

// Externally synchronised. A write takes the steps kCopyOut and kTransfer, a read kTransfer and kCopyIn; the copies are
// for memory of a GPU that passes through a bounce buffer.
struct Piece : PieceRange {
  enum class Step : unsigned char { kCopyOut, kTransfer, kCopyIn };

  Operation& operation() const { return *slice->operation; }
  const Target& target() const { return operation().target(); }
  bool writes() const { return operation().direction() == Operation::Direction::kWrite; }
  // All that is transferred, and what of it is the operation's.
  std::span<std::byte> blocks() const { return {data, transfer}; }
  std::span<std::byte> bytes() const { return {data + lead, size}; }

  Slice* slice = nullptr;
  Step step = Step::kTransfer;
  uint64_t done = 0;          // of the transfer
  unsigned tries = 0;         // that brought damaged blocks
  std::byte* data = nullptr;  // the caller's memory, or the bounce buffer's; null for memory of a GPU
  Buffer bounce;
  bool by_cufile = false;
};

// True when a copy is sent whose checksums the target takes.
bool NeedsChecksums(const Operation& operation);

// The next piece of a slice that has bytes left, of at most `block_size` bytes.
PieceRange ChooseRange(const Slice& slice, uint64_t block_size);

// Copies the bytes of a write to its bounce buffer, if it has one, and hands them to the target's checksums.
void PrepareWrite(const Piece& piece);

// Adds transferred bytes to the operation's progress and the GPU's traffic.
void CountTransferred(Operation& operation, bool by_cufile, uint64_t size);

// The operation fails at an offset of the file. An errno of 0 stands for the end of the file in a read.
void FailAt(Operation& operation, uint64_t offset, const Error& error);

}  // namespace weightfs::client

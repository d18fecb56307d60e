// SPDX-License-Identifier: Apache-2.0
// Operations are split into slices, one per ring, and slices into steps. A piece is a transfer under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>

#include "client/operation.h"
#include "client/plan/step.h"
#include "client/target.h"
#include "common/checksum.h"
#include "io/buffer.h"

namespace weightfs::client {

// A part of an operation. Externally synchronized; its pieces point to it.
struct Slice {
  std::shared_ptr<Operation> operation;
  uint64_t next = 0;  // first byte of the operation's memory that is not in a step yet
  uint64_t end = 0;
  size_t pieces = 0;  // number of pieces that have not ended
  std::list<Slice>::iterator self = {};
};

// Externally synchronized. A write has the phases kCopyOut and kTransfer, a read the phases kTransfer and kCopyIn. Only
// GPU memory that passes through a bounce buffer needs the copy phases.
struct Piece : Step {
  enum class Phase : unsigned char { kCopyOut, kTransfer, kCopyIn };

  Operation& operation() const { return *slice->operation; }
  const Layout& layout() const { return operation().layout(); }
  const Access& access() const { return operation().access(); }
  bool writes() const { return operation().direction() == Operation::Direction::kWrite; }
  bool by_cufile() const { return kind == Kind::kDirect && data == nullptr; }
  // blocks() is everything that is transferred; bytes() is the operation's part of it.
  std::span<std::byte> blocks() const { return {data, transfer}; }
  std::span<std::byte> bytes() const { return {data + lead, size}; }

  Slice* slice = nullptr;
  Phase phase = Phase::kTransfer;
  uint64_t done = 0;      // bytes transferred so far
  ReadAttempts attempts;  // of a read by a lease
  Buffer bounce;          // `data` points to it
};

// Copies the bytes of a write to the bounce buffer, if the piece has one, and passes them to the target's checksums.
void PrepareWrite(const Piece& piece);

// Adds transferred bytes to the operation's progress and the GPU's traffic. Returns true if Operation::Report is due.
[[nodiscard]] bool CountTransferred(Operation& operation, bool by_cufile, uint64_t size);

// Writes the edges of an operation whose slices are done. Blocks. Returns true if Operation::Report is due.
[[nodiscard]] bool WriteEdges(Operation& operation);

// Fails the operation at an offset of its layout. An errno of 0 means the end of the file in a read.
void FailAt(Operation& operation, uint64_t position, const Error& error);

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// The part of the ring that cuts operations into pieces: where each begins and ends, and the memory it uses.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "client/ring.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

// Memory for transfers that cannot use the caller's: enough in flight to keep a device busy while others are
// copied (how many: RingOptions).
constexpr uint64_t kBounceSize = DeviceLane::kBounceSize;
// Blocking transfers waiting; more of them would only take slots from the others.
constexpr size_t kBufferedLimit = 8;

// Bytes: both the memory and its copy are still in the processor's first cache when the copy is summed. To copy and sum
// costs half as much more than to sum alone then; summing the memory again after the transfer would cost twice.
constexpr uint64_t kCopiedAtOnce = 8 * kKiB;

// Whether what is sent is a copy whose checksums the target takes.
bool IsSummed(const Operation& operation) {
  return operation.direction() == Direction::kWrite && operation.target().sums_writes();
}

}  // namespace

// Pieces with checksums are cut ahead of what the kernel has room for: those of a write are computed while the device
// is busy, and the next reads begin before those of the last are looked at.
bool Ring::MayCut(const Slice& slice) const {
  if (free_.empty() || buffered_.size() >= kBufferedLimit) return false;
  return slice.operation->target().leased() || pieces_.size() - free_.size() < io_->depth();
}

bool Ring::CutPiece(Slice& slice, unsigned slot) {
  Piece& piece = pieces_[slot];
  piece.slice = &slice;
  ChooseRange(slice, piece);
  if (!FindMemory(piece)) {
    piece = {};
    return false;
  }
  const Operation& operation = *slice.operation;
  const bool write = operation.direction() == Direction::kWrite;
  if (operation.target().leased()) ++leased_pieces_;
  free_.pop_back();
  slice.next += piece.size;
  ++slice.pieces;
  if (write && piece.bounce && operation.device() != nullptr) {
    CopyFromDevice(slot);
    return true;
  }
  if (write) ReadyToWrite(operation, piece);
  Send(slot);
  return true;
}

void Ring::ReadyToWrite(const Operation& operation, const Piece& piece) {
  const bool summed = IsSummed(operation);
  // What is copied is looked at again while it is in the cache.
  const uint64_t step = piece.bounce && summed ? kCopiedAtOnce : piece.transfer;
  for (uint64_t done = 0; done < piece.transfer; done += step) {
    const std::span<std::byte> part(piece.data + done, std::min(step, piece.transfer - done));
    if (piece.bounce) {
      const auto bytes = part.first(std::min<uint64_t>(part.size(), piece.size - std::min(piece.size, done)));
      // A GPU's were copied here before.
      if (operation.device() == nullptr) operation.memory().Gather(piece.at + done, bytes);
      std::fill(part.begin() + static_cast<long>(bytes.size()), part.end(), std::byte{0});
    }
    if (summed) operation.target().NoteWritten(operation.offset() + piece.at + done, part);
  }
}

// The longest run of whole blocks for O_DIRECT, or what lies before or after one; to the next border of
// block_size.
void Ring::ChooseRange(const Slice& slice, Piece& piece) const {
  const Operation& operation = *slice.operation;
  const Target& target = operation.target();
  if (target.leased()) return ChooseBlocks(slice, piece);
  const uint64_t file = operation.offset() + slice.next;
  const uint64_t left = slice.end - slice.next;
  const uint64_t unit = target.alignment().offset;
  const Target::Run run = operation.direct_refused() ? Target::Run{-1, 0, left} : target.Locate(file, left);
  uint64_t size = std::min(run.length, left);
  piece.descriptor = -1;
  if (run.descriptor >= 0 && run.offset % unit != 0) {
    size = std::min(size, RoundUp(run.offset, unit) - run.offset);
  } else if (run.descriptor >= 0 && size >= unit) {
    size = RoundDown(size, unit);
    piece.descriptor = run.descriptor;
  }
  const uint64_t block = std::max(RoundDown(options_.block_size, unit), unit);
  piece.at = slice.next;
  piece.size = piece.transfer = std::min(size, block - file % block);
  piece.offset = run.offset;
}

// Whole blocks around what is asked for: a checksum covers a block, and behind a file's last byte its block is filled
// with zeros. Where memory can take those between the ends as they are, the ends are pieces of their own.
void Ring::ChooseBlocks(const Slice& slice, Piece& piece) const {
  const Operation& operation = *slice.operation;
  const Target& target = operation.target();
  const uint64_t left = slice.end - slice.next;
  const uint64_t file = operation.offset() + slice.next;
  piece.lead = file % kBlockSize;
  const Target::Run run = target.Locate(file - piece.lead, RoundUp(piece.lead + left, kBlockSize));
  piece.descriptor = run.descriptor;
  piece.offset = run.offset;
  piece.at = slice.next;
  const uint64_t step = std::max(RoundDown(options_.block_size, kBlockSize), kBlockSize);
  const uint64_t length = std::min(run.length, step - (file - piece.lead) % step);
  piece.size = std::min(length - piece.lead, left);
  const auto usable = [&](uint64_t at, uint64_t size) {
    const std::byte* data = size > 0 ? operation.memory().Direct(at, size) : nullptr;
    return data != nullptr && reinterpret_cast<uintptr_t>(data) % target.alignment().memory == 0;
  };
  const uint64_t head = piece.lead == 0 ? 0 : std::min(kBlockSize - piece.lead, piece.size);
  const uint64_t whole = RoundDown(piece.size - head, kBlockSize);
  if (!IsSummed(operation) && usable(piece.at + head, whole)) piece.size = head > 0 ? head : whole;
  piece.transfer = RoundUp(piece.lead + piece.size, kBlockSize);
}

// What no block of the device holds reads as zeros.
bool Ring::FillHole(Slice& slice) {
  Operation& operation = *slice.operation;
  const Target& target = operation.target();
  if (!target.leased() || operation.direction() == Direction::kWrite) return false;
  const Target::Run run = target.Locate(operation.offset() + slice.next, slice.end - slice.next);
  if (run.descriptor >= 0) return false;
  static constexpr std::array<std::byte, 64 * kKiB> kZeros{};
  const uint64_t end = slice.next + run.length;
  while (slice.next < end) {
    const auto zeros = std::span(kZeros).first(std::min<uint64_t>(end - slice.next, kZeros.size()));
    if (operation.device() == nullptr) {
      operation.memory().Scatter(slice.next, zeros);
    } else if (const auto copied = device_.CopyInNow(*operation.device(), slice.next, zeros); !copied.has_value()) {
      FailAt(operation, operation.offset() + slice.next, copied.error().error_number, copied.error().what);
      slice.next = slice.end;
      return true;
    }
    slice.next += zeros.size();
  }
  CountArrived(operation, false, run.length);
  return true;
}

// A part of a block at an end of a write goes through the page cache, and only after all that goes past it: a page that
// is dirty keeps the rest of its folio, which may be megabytes, in the cache while a direct write beside it changes the
// device, and that rest would be stale for ever.
bool Ring::DeferEdge(Slice& slice) const {
  Operation& operation = *slice.operation;
  if (operation.direction() != Direction::kWrite || operation.direct_refused()) return false;
  const Target& target = operation.target();
  const Target::Run run = target.Locate(operation.offset() + slice.next, slice.end - slice.next);
  uint64_t size = run.length;
  if (target.leased()) {
    if (run.descriptor >= 0) return false;
  } else {
    Piece piece;
    ChooseRange(slice, piece);
    if (piece.descriptor >= 0 || run.descriptor < 0) return false;
    size = piece.size;
  }
  operation.DeferEdge({slice.next, size});
  slice.next += size;
  return true;
}

// The caller's memory where it is one run, aligned as O_DIRECT asks, or cuFile reaches it; else a bounce buffer, and as
// much as it holds. Always a bounce buffer for what is to be summed.
bool Ring::FindMemory(Piece& piece) {
  Operation& operation = *piece.slice->operation;
  if (operation.device() != nullptr) {
    piece.by_cufile = piece.descriptor >= 0 && operation.device()->direct();
    return piece.by_cufile || FindBounce(piece);
  }
  const uint64_t alignment = piece.descriptor >= 0 ? operation.target().alignment().memory : 1;
  if (!IsSummed(operation) && piece.transfer == piece.size) {
    piece.data = operation.memory().Direct(piece.at, piece.size);
    if (piece.data != nullptr && reinterpret_cast<uintptr_t>(piece.data) % alignment == 0) return true;
  }
  return FindBounce(piece);
}

bool Ring::FindBounce(Piece& piece) {
  Operation& operation = *piece.slice->operation;
  auto bounce = operation.device() != nullptr ? device_.TryBounce(*operation.device()) : TryBounce();
  if (!bounce.has_value()) {
    FailAt(operation, operation.offset() + piece.at, bounce.error().error_number, bounce.error().what);
    piece.slice->next = piece.slice->end;
    return false;
  }
  if (!*bounce) return false;
  piece.bounce = std::move(*bounce);
  piece.data = piece.bounce.data();
  piece.transfer = std::min(piece.transfer, kBounceSize);
  piece.size = std::min(piece.size, piece.transfer - piece.lead);
  return true;
}

IoResult<Buffer> Ring::TryBounce() {
  if (bounces_ == nullptr) {
    auto made = BufferPool::Create({.buffer_size = {kBounceSize}, .count = options_.bounces, .name = "bounce buffers"});
    if (!made.has_value()) {
      return IoError{ENOMEM, fmt::format("no memory for the {} MiB of bounce buffers that the operation takes: "
                                         "free some, or raise the limit of this process (ulimit -v)",
                                         options_.bounces * kBounceSize / kMiB)};
    }
    bounces_ = std::move(*made);
  }
  return bounces_->TryAllocate();
}

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
#include "client/piece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "client/file_target.h"
#include "client/lane.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Bytes. The memory and its copy are both still in the L1 cache when the checksum of the copy is computed. Copying and
// computing then costs 1.5 times as much as computing alone; a second pass over the memory after the transfer would
// cost twice as much.
constexpr uint64_t kCopiedAtOnce = 8 * kKiB;

// Returns whole blocks around the requested range, because a checksum covers a block and the last block of a file ends
// with zeros. If O_DIRECT can use the memory of the blocks between the ends, the ends become pieces of their own.
PieceRange ChooseBlocks(const Slice& slice, uint64_t block_size) {
  const Operation& operation = *slice.operation;
  const Target& target = operation.target();
  const uint64_t left = slice.end - slice.next;
  const uint64_t file = operation.offset() + slice.next;
  PieceRange range{.at = slice.next, .lead = file % kBlockSize};
  const Target::Run run = target.Locate(file - range.lead, RoundUp(range.lead + left, kBlockSize));
  range.descriptor = run.descriptor;
  range.offset = run.offset;
  const uint64_t step = std::max(RoundDown(block_size, kBlockSize), kBlockSize);
  const uint64_t length = std::min(run.length, step - (file - range.lead) % step);
  range.size = std::min(length - range.lead, left);
  const auto usable = [&](uint64_t at, uint64_t size) {
    const std::byte* data = size > 0 ? operation.memory().Direct(at, size) : nullptr;
    return data != nullptr && reinterpret_cast<uintptr_t>(data) % target.alignment().memory == 0;
  };
  const uint64_t head = range.lead == 0 ? 0 : std::min(kBlockSize - range.lead, range.size);
  const uint64_t whole = RoundDown(range.size - head, kBlockSize);
  if (!NeedsCopy(operation) && usable(range.at + head, whole)) range.size = head > 0 ? head : whole;
  range.transfer = RoundUp(range.lead + range.size, kBlockSize);
  return range;
}

}  // namespace

bool NeedsChecksums(const Operation& operation) {
  return operation.direction() == Operation::Direction::kWrite && operation.target().needs_checksums();
}

bool NeedsCopy(const Operation& operation) { return NeedsChecksums(operation) && !operation.stable(); }

// Returns the longest run of whole blocks for O_DIRECT, or the part before or after one, up to the next multiple of
// block_size.
PieceRange ChooseRange(const Slice& slice, uint64_t block_size) {
  const Operation& operation = *slice.operation;
  const Target& target = operation.target();
  if (target.leased()) return ChooseBlocks(slice, block_size);
  const uint64_t file = operation.offset() + slice.next;
  const uint64_t left = slice.end - slice.next;
  const uint64_t unit = target.alignment().offset;
  Target::Run run = target.Locate(file, left);
  if (operation.direct_refused()) run.descriptor = -1;
  PieceRange range{.at = slice.next, .size = std::min(run.length, left), .offset = run.offset};
  if (run.descriptor >= 0 && run.offset % unit != 0) {
    range.size = std::min(range.size, RoundUp(run.offset, unit) - run.offset);
  } else if (run.descriptor >= 0 && range.size >= unit) {
    range.size = RoundDown(range.size, unit);
    range.descriptor = run.descriptor;
  }
  const uint64_t block = std::max(RoundDown(block_size, unit), unit);
  range.size = range.transfer = std::min(range.size, block - file % block);
  return range;
}

void PrepareWrite(const Piece& piece) {
  const Operation& operation = piece.operation();
  const bool checksums = NeedsChecksums(operation);
  // Each checksum is computed while the copy is in the cache.
  const uint64_t step = piece.bounce && checksums ? kCopiedAtOnce : piece.transfer;
  for (uint64_t done = 0; done < piece.transfer; done += step) {
    const auto part = piece.blocks().subspan(done, std::min(step, piece.transfer - done));
    if (piece.bounce) {
      const auto bytes = part.first(std::min<uint64_t>(part.size(), piece.size - std::min(piece.size, done)));
      // GPU memory was already copied to the buffer.
      if (operation.device() == nullptr) operation.memory().Gather(piece.at + done, bytes);
      std::fill(part.begin() + static_cast<long>(bytes.size()), part.end(), std::byte{0});
    }
    if (checksums) operation.target().NoteWritten(operation.offset() + piece.at + done, part);
  }
}

void CountTransferred(Operation& operation, bool by_cufile, uint64_t size) {
  if (operation.device() != nullptr) operation.device()->CountTraffic(by_cufile, size);
  operation.AddTransferred(size);
}

void FailAt(Operation& operation, uint64_t position, const Error& error) {
  const Target& target = operation.target();
  const uint64_t begin = operation.size() > 0 ? target.FileOffset(operation.offset()) : operation.offset();
  const uint64_t offset = target.FileOffset(position);
  if (error.code == kEndOfFile) {
    const auto size = target.Size();
    return operation.Fail(PastTheEnd(target, operation.size(), begin, size.value_or(offset)));
  }
  // The kernel's ENODATA is a damaged sector of a disk. That of an operation says that the file ends.
  const ErrorCode code = error.code == ErrorCode::kNoAttribute ? ErrorCode::kIo : error.code;
  const std::string reason = error.what.empty() ? std::strerror(static_cast<int>(code)) : error.what;
  operation.Fail({code,
                  fmt::format("{} of {} bytes at offset {} of {} failed at offset {}: {}",
                              operation.direction() == Operation::Direction::kWrite ? "write" : "read",
                              operation.size(), begin, target.path(), offset, reason),
                  target.path(), offset});
}

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
#include "client/piece.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "client/file_lane.h"
#include "client/lane.h"
#include "client/open/opened_file.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

// Bytes. The memory and its copy are both still in the L1 cache when the checksum of the copy is computed. Copying and
// computing then costs 1.5 times as much as computing alone; a second pass over the memory after the transfer would
// cost twice as much.
constexpr uint64_t kCopiedAtOnce = 8 * kKiB;

}  // namespace

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
    if (checksums) operation.access().NoteWritten(operation.offset() + piece.at + done, part);
  }
}

bool CountTransferred(Operation& operation, bool by_cufile, uint64_t size) {
  if (operation.device() != nullptr) operation.device()->CountTraffic(by_cufile, size);
  return operation.AddTransferred(size);
}

bool WriteEdges(Operation& operation) {
  bool report = false;
  for (Operation::Edge& edge : operation.TakeEdges()) {
    if (operation.stopped()) break;
    const Access& access = operation.access();
    const uint64_t offset = operation.offset() + edge.at;
    if (access.needs_checksums() && !access.leased()) access.NoteWritten(offset, edge.bytes);
    uint64_t done = 0;
    const int error_number = TransferBuffered(access, true, edge.bytes, offset, &done);
    if (error_number != 0) {
      FailAt(operation, offset + done, Error{ErrorCode{error_number}});
      break;
    }
    report |= CountTransferred(operation, false, edge.bytes.size());
  }
  return report;
}

void FailAt(Operation& operation, uint64_t position, const Error& error) {
  const Layout& layout = operation.layout();
  const std::string& path = operation.access().path();
  const uint64_t begin = layout.FileOffset(operation.offset());
  const uint64_t offset = layout.FileOffset(position);
  if (error.code == kEndOfFile) {
    const auto size = operation.access().Size();
    return operation.Fail(PastTheEnd(path, operation.size(), begin, size.value_or(offset)));
  }
  // The kernel's ENODATA is a damaged sector of a disk. That of an operation says that the file ends.
  const ErrorCode code = error.code == ErrorCode::kNoAttribute ? ErrorCode::kIo : error.code;
  const std::string reason = error.what.empty() ? std::strerror(static_cast<int>(code)) : error.what;
  operation.Fail({code,
                  fmt::format("{} of {} bytes at offset {} of {} failed at offset {}: {}",
                              operation.direction() == Operation::Direction::kWrite ? "write" : "read",
                              operation.size(), begin, path, offset, reason),
                  path, offset});
}

}  // namespace weightfs::client

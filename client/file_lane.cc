// SPDX-License-Identifier: Apache-2.0
#include "client/file_lane.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "client/piece.h"

namespace weightfs::client {

Result<std::unique_ptr<FileLane>> FileLane::Create(const HandleOptions& options) {
  auto io = IoRing::Create({.depth = options.queue_depth, .may_shrink = true, .wakeable = true});
  if (io.has_value()) return std::unique_ptr<FileLane>(new FileLane(options, std::move(*io)));
  const unsigned threads = options.intra_op_parallelism;
  return Error{io.error().code,
               fmt::format("{}; this handle wants {} ({} threads with a queue_depth of {}): want fewer, or close other "
                           "handles",
                           io.error().what, size_t{threads} * options.queue_depth, threads, options.queue_depth)};
}

void FileLane::Start(Piece& piece) {
  if (piece.descriptor < 0) return buffered_.push_back(&piece);
  QueueDirect(piece);
}

bool FileLane::idle() const { return io_->idle() && buffered_.empty() && ended() == 0; }

void FileLane::QueueDirect(Piece& piece) {
  const IoRing::Transfer transfer{.write = piece.writes(),
                                  .descriptor = piece.descriptor,
                                  .data = piece.data + piece.done,
                                  .size = piece.transfer - piece.done,
                                  .offset = piece.offset + piece.done,
                                  .unit = piece.layout().alignment().offset,
                                  .owner = &piece};
  io_->Queue({&transfer, 1});
}

void FileLane::Submit() {
  const auto stopped = [](void* owner) { return static_cast<Piece*>(owner)->operation().stopped(); };
  for (void* owner : io_->Withdraw(stopped)) ended_.push_back({.piece = static_cast<Piece*>(owner), .withdrawn = true});
  if (in_kernel() == 0 && reaped_.empty()) batch_left_ = depth();
  const size_t sent =
      io_->Submit(options_.overlap_events ? SIZE_MAX : batch_left_, options_.single_submit ? 1 : IoRing::kMaxBatch);
  batch_left_ -= std::min(batch_left_, sent);
}

void FileLane::Reap(size_t minimum, std::optional<std::chrono::nanoseconds> timeout) {
  std::array<IoRing::Completion, IoRing::kMaxBatch> completions;
  const size_t count = io_->Reap(completions, minimum, timeout);
  reaped_.insert(reaped_.end(), completions.begin(), completions.begin() + count);
}

std::optional<Lane::Ended> FileLane::Next() {
  while (ended_.empty() && !reaped_.empty()) {
    const IoRing::Completion completion = reaped_.front();
    reaped_.pop_front();
    OnCompletion(completion);
  }
  if (ended_.empty()) return std::nullopt;
  Ended ended = std::move(ended_.front());
  ended_.pop_front();
  return ended;
}

void FileLane::OnCompletion(const IoRing::Completion& completion) {
  Piece& piece = *static_cast<Piece*>(completion.transfer.owner);
  const int error_number = completion.error_number;
  piece.done += completion.done;
  if (error_number == EINVAL || error_number == EAGAIN || error_number == EINTR) return FallBack(piece, error_number);
  if (error_number != 0) return ended_.push_back({&piece, Error{ErrorCode{error_number}}});
  if (piece.done >= piece.transfer) return ended_.push_back({&piece});
  // A short transfer: the buffered descriptor finds the end of the file, or the reason for a short write.
  FallBack(piece, EIO);
}

void FileLane::FallBack(Piece& piece, int error_number) {
  Operation& operation = piece.operation();
  if (!piece.access().leased()) {
    if (error_number == EINVAL) operation.RefuseDirect();
    return buffered_.push_back(&piece);
  }
  // A lease has no fallback, because the file may have been replaced.
  const bool for_now = error_number == EAGAIN || error_number == EINTR;
  if (for_now && !operation.stopped()) return QueueDirect(piece);
  ended_.push_back({&piece, Error{ErrorCode{error_number}}});
}

bool FileLane::TransferBuffered() {
  if (buffered_.empty()) return false;
  Piece& piece = *buffered_.front();
  buffered_.pop_front();
  if (piece.operation().stopped()) {
    ended_.push_back({.piece = &piece, .withdrawn = true});
    return true;
  }
  const int error_number =
      client::TransferBuffered(piece.access(), piece.writes(), {piece.data, piece.size},
                               piece.layout().FileOffset(piece.operation().offset() + piece.at), &piece.done);
  ended_.push_back({&piece, piece.done < piece.size ? std::optional(Error{ErrorCode{error_number}}) : std::nullopt});
  return true;
}

int TransferBuffered(const Access& access, bool write, std::span<std::byte> bytes, uint64_t offset, uint64_t* done) {
  int error_number = 0;
  const int descriptor = access.Buffered(&error_number);
  if (descriptor < 0) return error_number;
  while (*done < bytes.size()) {
    const auto left = bytes.subspan(*done);
    const auto at = static_cast<off_t>(offset + *done);
    const ssize_t rc =
        write ? pwrite(descriptor, left.data(), left.size(), at) : pread(descriptor, left.data(), left.size(), at);
    if (rc < 0 && errno == EINTR) continue;
    if (rc < 0) return errno;
    if (rc == 0) return write ? EIO : 0;
    *done += static_cast<uint64_t>(rc);
  }
  return 0;
}

}  // namespace weightfs::client

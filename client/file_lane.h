// SPDX-License-Identifier: Apache-2.0
// Moves pieces between host memory and files. Pieces with an O_DIRECT descriptor go through an IoRing; the others are
// transferred by blocking calls on the buffered descriptor.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "client/handle.h"
#include "client/lane.h"
#include "client/target.h"
#include "io/io_ring.h"

namespace weightfs::client {

class FileLane final : public Lane {
 public:
  // EAGAIN, with the values of fs.aio-max-nr, if the system has no aio events left. If it has only a few, the depth is
  // smaller.
  static Result<std::unique_ptr<FileLane>> Create(const HandleOptions& options);

  // Queues the piece for Submit or for TransferBuffered.
  void Start(Piece& piece) override;
  std::optional<Ended> Next() override;
  bool idle() const override;

  // Submits as many queued pieces as the kernel accepts. Pieces of stopped operations end as withdrawn.
  void Submit();
  // Reaps completed transfers for Next. Waits for `minimum` of them (0 or 1), but not longer than `timeout`.
  void Reap(size_t minimum, std::optional<std::chrono::nanoseconds> timeout);
  // Ends the current wait of Reap, or the next one if none is in progress. Thread-safe.
  void Wake() { io_->Wake(); }
  // Carries out one piece that uses the buffered descriptor. Returns false if there is none.
  bool TransferBuffered();

  unsigned depth() const { return io_->depth(); }
  size_t queued() const { return io_->queued(); }
  size_t in_kernel() const { return io_->in_kernel(); }
  size_t buffered() const { return buffered_.size(); }
  // ended() counts the pieces and completions that Next has not returned yet. withdrawn() counts those of them that
  // need no further work.
  size_t ended() const { return ended_.size() + reaped_.size(); }
  size_t withdrawn() const { return ended_.size(); }

 private:
  FileLane(const HandleOptions& options, std::unique_ptr<IoRing> io) : options_(options), io_(std::move(io)) {}
  void QueueDirect(Piece& piece);
  // Queues the piece for the buffered descriptor, because O_DIRECT failed with `error_number`.
  void FallBack(Piece& piece, int error_number);
  void OnCompletion(const IoRing::Completion& completion);

  const HandleOptions options_;
  const std::unique_ptr<IoRing> io_;
  std::deque<Piece*> buffered_;  // waiting for their blocking transfer
  std::deque<IoRing::Completion> reaped_;
  std::deque<Ended> ended_;
  size_t batch_left_ = 0;  // without overlap_events: transfers left in the current batch
};

// Reads or writes all bytes through the file's buffered descriptor, starting behind the first `*done` bytes, and adds
// the transferred bytes to `*done`. Returns an errno. A return value of 0 with fewer bytes done means the end of the
// file.
int TransferBuffered(const Access& access, bool write, std::span<std::byte> bytes, uint64_t offset, uint64_t* done);

}  // namespace weightfs::client

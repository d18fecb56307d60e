// SPDX-License-Identifier: Apache-2.0
// Moves pieces between the host's memory and files: by an IoRing what has a descriptor for O_DIRECT, and by blocking
// calls of the buffered descriptor the rest.
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
  // EAGAIN with the numbers of fs.aio-max-nr. The depth is smaller where the system has no more left.
  static Result<std::unique_ptr<FileLane>> Create(const HandleOptions& options);

  // Queues it for Submit, or for TransferBuffered.
  void Start(Piece& piece) override;
  std::optional<Ended> Next() override;
  bool idle() const override;

  // Hands queued pieces to the kernel, as many as it has room for. Those of stopped operations end withdrawn.
  void Submit();
  // Takes completed transfers from the kernel, for Next. Waits for `minimum` of them (0 or 1), at most so long.
  void Reap(size_t minimum, std::optional<std::chrono::nanoseconds> timeout);
  // Ends the current wait of Reap, or else the next one. Any thread.
  void Wake() { io_->Wake(); }
  // Carries out one piece that takes the buffered descriptor; false when there is none.
  bool TransferBuffered();

  unsigned depth() const { return io_->depth(); }
  size_t queued() const { return io_->queued(); }
  size_t in_kernel() const { return io_->in_kernel(); }
  size_t buffered() const { return buffered_.size(); }
  // Pieces and completions that Next has not handled; those of the first kind need no work.
  size_t ended() const { return ended_.size() + reaped_.size(); }
  size_t withdrawn() const { return ended_.size(); }

 private:
  FileLane(const HandleOptions& options, std::unique_ptr<IoRing> io) : options_(options), io_(std::move(io)) {}
  void QueueDirect(Piece& piece);
  // O_DIRECT did not carry it out.
  void FallBack(Piece& piece, int error_number);
  void OnCompletion(const IoRing::Completion& completion);

  const HandleOptions options_;
  const std::unique_ptr<IoRing> io_;
  std::deque<Piece*> buffered_;  // waiting for their blocking transfer
  std::deque<IoRing::Completion> reaped_;
  std::deque<Ended> ended_;
  size_t batch_left_ = 0;  // without overlap_events: transfers that still belong to this batch
};

// Reads or writes all bytes by the target's buffered descriptor. Returns an errno; 0 with fewer bytes done is the end
// of the file. Adds to `done` what was transferred, of which that much was done before.
int TransferBuffered(const Target& target, bool write, std::span<std::byte> bytes, uint64_t offset, uint64_t* done);

}  // namespace weightfs::client

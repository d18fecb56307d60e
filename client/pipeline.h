// SPDX-License-Identifier: Apache-2.0
// Carries out the slices of operations: plans them step by step, and moves the pieces by lanes.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/file_lane.h"
#include "client/lane.h"
#include "client/operation.h"
#include "client/piece.h"
#include "io/buffer.h"

namespace weightfs::client {

struct PipelineOptions {
  HandleOptions handle = {};
  // Buffers for memory that O_DIRECT cannot use, and for writes with checksums: how many, and the bytes of each, a
  // multiple of the alignment of every file.
  size_t bounces = 32;
  uint64_t bounce_size = DeviceLane::kBounceSize;
  DeviceMemory::LaneOptions device = {};
};

// Externally synchronized: one thread drives it at a time. It finishes no file and runs no callback; its owner takes
// what is due for other threads (TakeDue).
//
// A slice is *held* while earlier GPU work on its tensor is under way, then *cutting* until its last byte is in a
// step, then *cut* until its last piece has ended. With its last slice, an operation is due to be ended.
class Pipeline {
 public:
  struct Due {
    std::vector<std::shared_ptr<Operation>> reports;  // Operation::Report
    std::vector<std::shared_ptr<Operation>> ends;     // WriteEdges and Operation::Complete; the last slice is done
    bool empty() const { return reports.empty() && ends.empty(); }
  };
  static Result<std::unique_ptr<Pipeline>> Create(const PipelineOptions& options);

  // Adds the bytes [begin, end) of an operation's memory. The range is empty only for an operation of 0 bytes.
  void Add(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end);
  // Cancels all operations but those whose bytes are all transferred, or in the kernel.
  void Cancel();

  // Splits and submits as many pieces as there is capacity for.
  void Fill();
  Due TakeDue() { return std::exchange(due_, {}); }
  // Waits for a piece to end, no longer than `limit`, and handles it.
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit);
  // Ends the current wait of AwaitProgress, or the next one if none is in progress. Thread-safe.
  void Wake() { file_->Wake(); }

  // True while a slice is under way.
  bool busy() const { return !cutting_.empty() || !cut_.empty() || !held_.empty(); }

 private:
  using Slices = std::list<Slice>;

  Pipeline(const PipelineOptions& options, std::unique_ptr<FileLane> file);

  // True if the operation's tensor may be accessed, or if the operation has already ended.
  bool Ready(Operation& operation);
  // Moves the held slices that are ready to `cutting_`.
  void TakeReady();
  void CutSlices();
  bool MayCut(const Slice& slice) const;
  // Carries out the next step of the slice, or starts it. Returns false if it has to wait for a bounce buffer.
  bool RunStep(Slice& slice, const Step& step);
  Result<void> FillHole(const Slice& slice, const Step& step);
  Result<void> KeepEdge(Operation& operation, const Step& step);
  bool StartPiece(Slice& slice, const Step& step);
  // Gives up the rest of the slice.
  static void Abandon(Slice& slice, const Error& error);
  Result<Buffer> TryBounce(const Operation& operation);
  DeviceLane& LaneOf(const DeviceMemory& memory);
  void Count(const Slice& slice, bool by_cufile, uint64_t size);

  // Starts the piece's phase on the lane responsible for it.
  void Start(Piece& piece, Piece::Phase phase);
  void Submit();
  void SubmitGroup();
  bool PollDevice();
  // Handles one ended piece of the file lane. Returns false if there is none.
  bool HandleOne();
  void OnEnded(const Lane::Ended& ended);
  void OnTransferred(Piece& piece);
  // True if the checksums of blocks read through a lease do not match: the piece is then read again, or has failed.
  bool IsDamaged(Piece& piece);
  // Called when all bytes of the piece have been transferred.
  void Complete(Piece& piece);
  void Release(Piece& piece);
  void RetireIfEnded(Slice& slice);
  bool bouncing() const { return bounces_ != nullptr && bounces_->in_use() > 0; }

  const PipelineOptions options_;
  const PlanLimits limits_;
  const uint64_t group_;  // number of leased transfers that are handled and submitted together
  std::unique_ptr<BufferPool> bounces_;  // allocated when the first piece needs one
  const std::unique_ptr<FileLane> file_;
  std::unique_ptr<DeviceLane> device_;  // created for the first GPU memory
  std::vector<Piece> pieces_;           // never resized, because lanes point to its elements
  std::vector<Piece*> free_;
  Slices held_;
  Slices cutting_;  // in order of arrival
  Slices cut_;
  Due due_;
  size_t leased_pieces_ = 0;
  bool hole_left_ = false;  // Fill has filled a large hole, and must be called again
  unsigned polls_ = 0;      // consecutive polls of the GPU that found nothing
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Carries out the slices of operations: cuts them into pieces, moves these by lanes and completes the operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "client/file_lane.h"
#include "client/lane.h"
#include "client/operation.h"
#include "client/piece.h"
#include "io/buffer.h"

namespace weightfs::client {

struct PipelineOptions {
  HandleOptions handle = {};
  size_t bounces = 32;  // buffers of 1 MiB for memory that O_DIRECT cannot use, and for writes with checksums
  DeviceMemory::LaneOptions device = {};
};

// Externally synchronised: one thread drives it at a time. Callbacks of operations run in Fill and AwaitProgress.
// Those of an operation that is done may call it again, and a progress may call Drain.
//
// A slice is held while earlier work of the GPU on its tensor is under way, then cutting until its last byte is in a
// piece, then cut until its last piece has ended. The last slice of an operation completes it.
class Pipeline {
 public:
  static Result<std::unique_ptr<Pipeline>> Create(const PipelineOptions& options);

  // Takes the bytes [begin, end) of an operation's memory, not empty but for an operation of no bytes.
  void Add(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end);
  // Cancels all operations.
  void Cancel();
  // Cancels all operations and waits until no transfer is under way, without completing any: for a callback in the
  // middle of an operation, which Fill may not be called in.
  void Drain();
  // True in the callbacks of an operation that is done.
  bool completing() const { return completing_; }

  // Cuts and submits what it has room for, and completes operations.
  void Fill();
  // Waits for a piece to end, no longer than `limit`, and handles it.
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit);
  // Ends the current wait of AwaitProgress, or else the next one. Any thread.
  void Wake() { file_->Wake(); }

  // True while a slice is under way.
  bool busy() const { return !cutting_.empty() || !cut_.empty() || !held_.empty(); }
  // True when there is nothing to do: also all operations are completed.
  bool idle() const { return !busy() && ended_.empty(); }

 private:
  using Slices = std::list<Slice>;

  Pipeline(const PipelineOptions& options, std::unique_ptr<FileLane> file);

  // True when the operation's tensor may be touched, or the operation has ended otherwise.
  bool Ready(Operation& operation);
  // Brings back what was held and is ready.
  void TakeReady();
  void CutSlices();
  bool MayCut(const Slice& slice) const;
  // Cuts the next piece of the slice, and starts it. False when it has to wait for a bounce buffer.
  bool CutPiece(Slice& slice);
  bool FindMemory(Piece& piece);
  bool FindBounce(Piece& piece);
  Result<Buffer> TryBounce();
  DeviceLane& LaneOf(const DeviceMemory& memory);
  bool FillHole(Slice& slice);
  bool DeferEdge(Slice& slice) const;
  void WriteEdges(Operation& operation);
  void CompleteEnded();

  // Lets a lane carry out the piece's step.
  void Start(Piece& piece, Piece::Step step);
  void Submit();
  void SubmitGroup();
  bool PollDevice();
  // Handles one ended piece of the file lane; false when there is none.
  bool HandleOne();
  void OnEnded(const Lane::Ended& ended);
  void OnTransferred(Piece& piece);
  // True when blocks read by a lease are not what was written: the piece is read again, or has failed.
  bool IsDamaged(Piece& piece);
  // All bytes of the piece are where they belong.
  void Complete(Piece& piece);
  void Release(Piece& piece);
  void RetireIfEnded(Slice& slice);
  bool bouncing() const { return bounces_ != nullptr && bounces_->in_use() > 0; }

  const PipelineOptions options_;
  std::unique_ptr<BufferPool> bounces_;  // made when the first piece needs one
  const std::unique_ptr<FileLane> file_;
  std::unique_ptr<DeviceLane> device_;  // made for the first memory of a GPU
  std::vector<Piece> pieces_;           // never resized: lanes point to them
  std::vector<Piece*> free_;
  Slices held_;
  Slices cutting_;  // in the order of their arrival
  Slices cut_;
  std::deque<std::shared_ptr<Operation>> ended_;  // to be completed
  bool completing_ = false;
  size_t leased_pieces_ = 0;
  unsigned polls_ = 0;  // of the GPU in a row that found nothing ended
};

}  // namespace weightfs::client

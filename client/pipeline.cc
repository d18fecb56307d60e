// SPDX-License-Identifier: Apache-2.0
#include "client/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/assert.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

// Maximum number of queued blocking transfers. More of them would only occupy pieces that others need.
constexpr size_t kBufferedLimit = 8;

// Number of polls of the GPU before the thread sleeps between polls, and the sleep time: a copy of a bounce buffer
// takes tens of microseconds.
constexpr unsigned kPolls = 64;
constexpr auto kPollPause = std::chrono::microseconds(20);
// A longer wait means that the program's own work on a tensor is still running, so the thread sleeps longer.
constexpr unsigned kShortPolls = 256;
constexpr auto kLongPollPause = std::chrono::microseconds(200);
// The longest time for which a ring that waits only for cuFile does not check its queue.
constexpr auto kTransferPause = std::chrono::milliseconds(1);

// Small transfers with checksums are handled and submitted in groups of this many bytes or this many transfers: a
// system call for each of them would cost more than the wait for the others.
constexpr uint64_t kGroupSize = 1 << 20;
constexpr uint64_t kGroup = 8;

// Bytes of a hole that are filled with zeros before the operation may be canceled and other work is looked at.
constexpr uint64_t kHoleAtOnce = 16 * kMiB;

constexpr unsigned kReadTries = 3;  // reads of a block whose checksum does not match

constexpr auto kNow = std::chrono::nanoseconds(0);

std::chrono::nanoseconds PauseAfter(unsigned polls) {
  if (polls < kPolls) return kNow;
  return polls < kShortPolls ? kPollPause : kLongPollPause;
}

}  // namespace

Result<std::unique_ptr<Pipeline>> Pipeline::Create(const PipelineOptions& options) {
  ASSIGN_OR_RETURN(auto file, FileLane::Create(options.handle));
  return std::unique_ptr<Pipeline>(new Pipeline(options, std::move(file)));
}

// Twice as many pieces as the kernel takes; see MayCut.
Pipeline::Pipeline(const PipelineOptions& options, std::unique_ptr<FileLane> file)
    : options_(options),
      group_(std::clamp<uint64_t>(kGroupSize / options.handle.block_size, 1, kGroup)),
      file_(std::move(file)),
      pieces_(size_t{2} * file_->depth()) {
  for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) free_.push_back(&*piece);
}

void Pipeline::Add(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end) {
  cutting_.push_back({.operation = std::move(operation), .next = begin, .end = end});
  cutting_.back().self = std::prev(cutting_.end());
}

void Pipeline::Cancel() {
  for (Slices* slices : {&cutting_, &cut_, &held_}) {
    for (const Slice& slice : *slices) slice.operation->Fail(slice.operation->Cancellation());
  }
  for (const auto& operation : ended_) operation->Fail(operation->Cancellation());
}

void Pipeline::Drain() {
  Cancel();
  while (!file_->idle() || (device_ != nullptr && !device_->idle())) AwaitProgress(std::nullopt);
}

void Pipeline::Fill() {
  TakeReady();
  CutSlices();
  CompleteEnded();
}

void Pipeline::CutSlices() {
  // On a filesystem in memory a read completes during submission; its checksums are then computed while the data is in
  // the cache.
  bool at_once = file_->in_kernel() == 0 && file_->ended() == 0;
  hole_left_ = false;
  while (!cutting_.empty() && !hole_left_) {
    Slice& slice = cutting_.front();
    if (slice.operation->stopped()) slice.next = slice.end;
    if (slice.next == slice.end) {
      cut_.splice(cut_.end(), cutting_, slice.self);
      RetireIfEnded(slice);
      continue;
    }
    if (!Ready(*slice.operation)) {
      held_.splice(held_.end(), cutting_, slice.self);
      continue;
    }
    if (DeferEdge(slice) || FillHole(slice)) continue;
    if (!MayCut(slice) || !CutPiece(slice)) break;
    // Submit a piece that took time to copy or to checksum before preparing the next one.
    const bool leased_write = leased_pieces_ > 0 && slice.operation->direction() == Direction::kWrite;
    if (bouncing() && !leased_write && (leased_pieces_ == 0 || group_ == 1)) Submit();
    if (leased_pieces_ == 0) continue;
    if (leased_write) {
      SubmitGroup();
      // On a filesystem in memory the piece has completed by now, and the next copy finds its buffer in the cache.
      if (file_->ended() == 0) file_->Reap(0, kNow);
      HandleOne();
    } else if (at_once) {
      Submit();
      file_->Reap(0, kNow);
      at_once = HandleOne();
    }
  }
  SubmitGroup();
}

// Blocks with checksums become ready one by one. A system call and a doorbell write per small transfer would cost more
// than the wait for the rest of the group, as long as the device has enough to do. That is checked by reaping: a
// virtual disk may report no completion until all of its transfers have ended, and would then be idle.
void Pipeline::SubmitGroup() {
  if (leased_pieces_ == 0 || file_->queued() >= group_) return Submit();
  if (file_->queued() == 0) return;
  file_->Reap(0, kNow);
  if (file_->in_kernel() < 2 * group_) Submit();
}

void Pipeline::Submit() {
  file_->Submit();
  while (file_->withdrawn() > 0) HandleOne();
}

bool Pipeline::Ready(Operation& operation) {
  if (operation.device() == nullptr || operation.stopped()) return true;
  auto ready = operation.device()->Ready();
  if (ready.has_value()) return *ready;
  FailAt(operation, operation.offset(), ready.error());
  return true;
}

void Pipeline::TakeReady() {
  for (auto slice = held_.begin(); slice != held_.end();) {
    const auto next = std::next(slice);
    if (Ready(*slice->operation)) cutting_.splice(cutting_.end(), held_, slice);
    slice = next;
  }
}

// Pieces with checksums are cut ahead of the capacity of the kernel: the checksums of a write are computed while the
// device is busy, and the next reads start before the data of the previous ones is verified.
bool Pipeline::MayCut(const Slice& slice) const {
  if (free_.empty() || file_->buffered() >= kBufferedLimit) return false;
  return slice.operation->target().leased() || pieces_.size() - free_.size() < file_->depth();
}

bool Pipeline::CutPiece(Slice& slice) {
  Piece& piece = *free_.back();
  static_cast<PieceRange&>(piece) = ChooseRange(slice, options_.handle.block_size);
  piece.slice = &slice;
  if (!FindMemory(piece)) {
    piece = {};
    return false;
  }
  if (piece.target().leased()) ++leased_pieces_;
  free_.pop_back();
  slice.next += piece.size;
  ++slice.pieces;
  const bool copied_out = piece.writes() && piece.bounce && piece.operation().device() != nullptr;
  if (piece.writes() && !copied_out) PrepareWrite(piece);
  Start(piece, copied_out ? Piece::Step::kCopyOut : Piece::Step::kTransfer);
  return true;
}

void Pipeline::Start(Piece& piece, Piece::Step step) {
  piece.step = step;
  if (step == Piece::Step::kTransfer && !piece.by_cufile) return file_->Start(piece);
  LaneOf(*piece.operation().device()).Start(piece);
}

// Ranges without blocks on the device read as zeros.
bool Pipeline::FillHole(Slice& slice) {
  Operation& operation = *slice.operation;
  const Target& target = operation.target();
  if (!target.leased() || operation.direction() == Direction::kWrite) return false;
  const Target::Run run = target.Locate(operation.offset() + slice.next, slice.end - slice.next);
  if (run.descriptor >= 0) return false;
  static constexpr std::array<std::byte, 64 * kKiB> kZeros{};
  hole_left_ = run.length > kHoleAtOnce;
  const uint64_t begin = slice.next, end = begin + std::min(run.length, kHoleAtOnce);
  while (slice.next < end) {
    const auto zeros = std::span(kZeros).first(std::min<uint64_t>(end - slice.next, kZeros.size()));
    if (operation.device() == nullptr) {
      operation.memory().Scatter(slice.next, zeros);
    } else if (const auto copied = LaneOf(*operation.device()).CopyInNow(*operation.device(), slice.next, zeros);
               !copied.has_value()) {
      FailAt(operation, operation.offset() + slice.next, copied.error());
      slice.next = slice.end;
      return true;
    }
    slice.next += zeros.size();
  }
  CountTransferred(operation, false, end - begin);
  return true;
}

// A partial block at an end of a write goes through the page cache, but only after all direct transfers. A dirty page
// keeps the rest of its folio, which may be megabytes, in the cache while a direct write next to it changes the device;
// that rest would stay stale.
bool Pipeline::DeferEdge(Slice& slice) const {
  Operation& operation = *slice.operation;
  if (operation.direction() != Direction::kWrite || operation.direct_refused()) return false;
  const Target& target = operation.target();
  const Target::Run run = target.Locate(operation.offset() + slice.next, slice.end - slice.next);
  uint64_t size = run.length;
  if (target.leased()) {
    if (run.descriptor >= 0) return false;
  } else {
    const PieceRange range = ChooseRange(slice, options_.handle.block_size);
    if (range.descriptor >= 0 || run.descriptor < 0) return false;
    size = range.size;
  }
  operation.DeferEdge({slice.next, size});
  slice.next += size;
  return true;
}

// Uses the caller's memory if it is contiguous and aligned for O_DIRECT, or if cuFile can access it. Otherwise uses a
// bounce buffer and limits the piece to its size. A write that needs checksums uses a bounce buffer
// unless its memory is stable.
bool Pipeline::FindMemory(Piece& piece) {
  Operation& operation = piece.operation();
  if (operation.device() != nullptr) {
    piece.by_cufile = piece.descriptor >= 0 && operation.device()->direct();
    return piece.by_cufile || FindBounce(piece);
  }
  const uint64_t alignment = piece.descriptor >= 0 ? operation.target().alignment().memory : 1;
  if (!NeedsCopy(operation) && piece.transfer == piece.size) {
    piece.data = operation.memory().Direct(piece.at, piece.size);
    if (piece.data != nullptr && reinterpret_cast<uintptr_t>(piece.data) % alignment == 0) return true;
  }
  return FindBounce(piece);
}

bool Pipeline::FindBounce(Piece& piece) {
  Operation& operation = piece.operation();
  auto bounce =
      operation.device() != nullptr ? LaneOf(*operation.device()).TryBounce(*operation.device()) : TryBounce();
  if (!bounce.has_value()) {
    FailAt(operation, operation.offset() + piece.at, bounce.error());
    piece.slice->next = piece.slice->end;
    return false;
  }
  if (!*bounce) return false;
  piece.bounce = std::move(*bounce);
  piece.data = piece.bounce.data();
  const uint64_t size = operation.device() != nullptr ? DeviceLane::kBounceSize : options_.bounce_size;
  piece.transfer = std::min(piece.transfer, size);
  piece.size = std::min(piece.size, piece.transfer - piece.lead);
  return true;
}

Result<Buffer> Pipeline::TryBounce() {
  if (bounces_ == nullptr) {
    auto made = BufferPool::Create(
        {.buffer_size = {options_.bounce_size}, .count = options_.bounces, .name = "bounce buffers"});
    if (!made.has_value()) {
      return Error{ErrorCode::kNoMemory,
                   fmt::format("no memory for the {} MiB of bounce buffers that the operation takes: "
                               "free some, or raise the limit of this process (ulimit -v)",
                               options_.bounces * options_.bounce_size / kMiB)};
    }
    bounces_ = std::move(*made);
  }
  return bounces_->TryAllocate();
}

DeviceLane& Pipeline::LaneOf(const DeviceMemory& memory) {
  if (device_ == nullptr) device_ = memory.MakeLane(options_.device);
  return *device_;
}

void Pipeline::WriteEdges(Operation& operation) {
  const Target& target = operation.target();
  for (const Operation::Edge& edge : operation.TakeEdges()) {
    if (operation.stopped()) return;
    std::vector<std::byte> bytes(edge.size);
    const uint64_t offset = operation.offset() + edge.at;
    if (operation.device() == nullptr) {
      operation.memory().Gather(edge.at, bytes);
    } else if (const auto copied = LaneOf(*operation.device()).CopyOutNow(*operation.device(), edge.at, bytes);
               !copied.has_value()) {
      return FailAt(operation, offset, copied.error());
    }
    if (target.needs_checksums() && !target.leased()) target.NoteWritten(offset, bytes);
    uint64_t done = 0;
    const int error_number = TransferBuffered(target, true, bytes, offset, &done);
    if (error_number != 0) return FailAt(operation, offset + done, Error{ErrorCode{error_number}});
    CountTransferred(operation, false, edge.size);
  }
}

void Pipeline::AwaitProgress(std::optional<std::chrono::nanoseconds> limit) {
  if (file_->TransferBuffered()) HandleOne();
  const bool others = PollDevice() || file_->buffered() > 0 || file_->ended() > 0 || hole_left_;
  const bool polls = !held_.empty() || (device_ != nullptr && !device_->idle());
  if (!others && !polls && file_->idle()) return;
  file_->Reap(others ? 0 : 1, others ? kNow : polls ? PauseAfter(polls_) : limit);
  Submit();
  // One or one group at a time if handling is expensive, so that the next transfer starts before the next copy does.
  const size_t at_once = leased_pieces_ > 0 ? group_ : bouncing() ? 1 : file_->ended();
  for (size_t left = at_once; left > 0 && HandleOne(); --left) {
  }
}

// Returns true if something had ended.
bool Pipeline::PollDevice() {
  const bool idle = device_ == nullptr || device_->idle();
  polls_ = idle && held_.empty() ? 0 : polls_ + 1;
  if (idle) return false;
  const bool alone = file_->idle() && held_.empty();
  device_->Poll(alone ? kTransferPause : std::chrono::milliseconds(0));
  bool any = false;
  for (; const auto ended = device_->Next(); any = true) OnEnded(*ended);
  if (any) polls_ = 0;
  return any;
}

bool Pipeline::HandleOne() {
  const auto ended = file_->Next();
  if (ended) OnEnded(*ended);
  return ended.has_value();
}

void Pipeline::OnEnded(const Lane::Ended& ended) {
  Piece& piece = *ended.piece;
  Operation& operation = piece.operation();
  if (ended.withdrawn) return Release(piece);
  if (ended.error) {
    // With a lead, the first block begins before the requested range.
    const uint64_t begin = operation.offset() + piece.at;
    FailAt(operation, std::max(begin, begin - piece.lead + piece.done), *ended.error);
    return Release(piece);
  }
  switch (piece.step) {
    case Piece::Step::kCopyOut:
      if (operation.stopped()) return Release(piece);
      PrepareWrite(piece);
      return Start(piece, Piece::Step::kTransfer);
    case Piece::Step::kTransfer: return OnTransferred(piece);
    case Piece::Step::kCopyIn: return Complete(piece);
  }
}

void Pipeline::OnTransferred(Piece& piece) {
  if (IsDamaged(piece)) return;
  if (!piece.bounce || piece.writes()) return Complete(piece);
  if (piece.operation().device() != nullptr) return Start(piece, Piece::Step::kCopyIn);
  piece.operation().memory().Scatter(piece.at, piece.bytes());
  Complete(piece);
}

bool Pipeline::IsDamaged(Piece& piece) {
  if (!piece.target().leased() || piece.writes()) return false;
  Operation& operation = piece.operation();
  const bool last = ++piece.tries == kReadTries;
  auto checked = piece.target().CheckRead(operation.offset() + piece.at - piece.lead, piece.blocks(), last);
  if (checked.has_value()) return false;
  if (last) {
    operation.Fail(std::move(checked).error());
    Release(piece);
  } else {
    piece.done = 0;
    Start(piece, Piece::Step::kTransfer);
  }
  return true;
}

void Pipeline::Complete(Piece& piece) {
  CountTransferred(piece.operation(), piece.by_cufile, piece.size);
  Release(piece);
}

void Pipeline::Release(Piece& piece) {
  Slice& slice = *piece.slice;
  if (piece.target().leased()) --leased_pieces_;
  piece = {};
  free_.push_back(&piece);
  --slice.pieces;
  RetireIfEnded(slice);
}

void Pipeline::RetireIfEnded(Slice& slice) {
  // CutSlices itself retires the slice that it is cutting.
  if (slice.pieces > 0 || slice.next < slice.end || (!cutting_.empty() && &cutting_.front() == &slice)) return;
  if (slice.operation->SliceDone()) ended_.push_back(slice.operation);
  cut_.erase(slice.self);
}

void Pipeline::CompleteEnded() {
  while (!ended_.empty()) {
    // Stays in the list until its edges are written, so that Cancel finds it.
    const auto operation = ended_.front();
    WriteEdges(*operation);
    ended_.pop_front();
    completing_ = true;
    operation->Complete();
    completing_ = false;
  }
}

}  // namespace weightfs::client

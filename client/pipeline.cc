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
      limits_{.block_size = options.handle.block_size, .bounce_size = options.bounce_size},
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
}

void Pipeline::Fill() {
  TakeReady();
  CutSlices();
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
    if (!MayCut(slice)) break;
    const Step step = PlanStep(*slice.operation, slice.next, slice.end, limits_);
    if (!RunStep(slice, step)) break;
    if (step.kind == Step::Kind::kHole || step.kind == Step::Kind::kEdge) continue;
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
  return slice.operation->access().leased() || pieces_.size() - free_.size() < file_->depth();
}

bool Pipeline::RunStep(Slice& slice, const Step& step) {
  Operation& operation = *slice.operation;
  switch (step.kind) {
    case Step::Kind::kHole:
      hole_left_ = step.size == kLargestHole;
      if (auto filled = FillHole(slice, step); !filled.has_value()) {
        Abandon(slice, filled.error());
        return true;
      }
      break;
    case Step::Kind::kEdge:
      if (auto kept = KeepEdge(operation, step); !kept.has_value()) {
        Abandon(slice, kept.error());
        return true;
      }
      break;
    case Step::Kind::kDirect:
    case Step::Kind::kBounce:
      if (!StartPiece(slice, step)) return false;
  }
  slice.next += step.size;
  return true;
}

void Pipeline::Abandon(Slice& slice, const Error& error) {
  FailAt(*slice.operation, slice.operation->offset() + slice.next, error);
  slice.next = slice.end;
}

Result<void> Pipeline::FillHole(const Slice& slice, const Step& step) {
  const Operation& operation = *slice.operation;
  static constexpr std::array<std::byte, 64 * kKiB> kZeros{};
  for (uint64_t done = 0; done < step.size;) {
    const auto zeros = std::span(kZeros).first(std::min<uint64_t>(step.size - done, kZeros.size()));
    if (operation.device() == nullptr) {
      operation.memory().Scatter(step.at + done, zeros);
    } else {
      RETURN_IF_ERROR(LaneOf(*operation.device()).CopyInNow(*operation.device(), step.at + done, zeros));
    }
    done += zeros.size();
  }
  Count(slice, false, step.size);
  return {};
}

Result<void> Pipeline::KeepEdge(Operation& operation, const Step& step) {
  std::vector<std::byte> bytes(step.size);
  if (operation.device() == nullptr) {
    operation.memory().Gather(step.at, bytes);
  } else {
    RETURN_IF_ERROR(LaneOf(*operation.device()).CopyOutNow(*operation.device(), step.at, bytes));
  }
  operation.DeferEdge({step.at, std::move(bytes)});
  return {};
}

bool Pipeline::StartPiece(Slice& slice, const Step& step) {
  Buffer bounce;
  if (step.kind == Step::Kind::kBounce) {
    auto found = TryBounce(*slice.operation);
    if (!found.has_value()) Abandon(slice, found.error());
    if (!found.has_value() || !*found) return false;
    bounce = std::move(*found);
  }
  Piece& piece = *free_.back();
  free_.pop_back();
  static_cast<Step&>(piece) = step;
  piece.slice = &slice;
  if (bounce) piece.data = bounce.data();
  piece.bounce = std::move(bounce);
  ++slice.pieces;
  if (piece.access().leased()) ++leased_pieces_;
  const bool copied_out = piece.writes() && piece.bounce && piece.operation().device() != nullptr;
  if (piece.writes() && !copied_out) PrepareWrite(piece);
  Start(piece, copied_out ? Piece::Phase::kCopyOut : Piece::Phase::kTransfer);
  return true;
}

void Pipeline::Start(Piece& piece, Piece::Phase phase) {
  piece.phase = phase;
  if (phase == Piece::Phase::kTransfer && !piece.by_cufile()) return file_->Start(piece);
  LaneOf(*piece.operation().device()).Start(piece);
}

Result<Buffer> Pipeline::TryBounce(const Operation& operation) {
  if (const auto& device = operation.device(); device != nullptr) return LaneOf(*device).TryBounce(*device);
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

void Pipeline::Count(const Slice& slice, bool by_cufile, uint64_t size) {
  if (CountTransferred(*slice.operation, by_cufile, size)) due_.reports.push_back(slice.operation);
}

void Pipeline::AwaitProgress(std::optional<std::chrono::nanoseconds> limit) {
  if (file_->TransferBuffered()) HandleOne();
  const bool others =
      PollDevice() || file_->buffered() > 0 || file_->ended() > 0 || hole_left_ || !due_.empty();
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
  switch (piece.phase) {
    case Piece::Phase::kCopyOut:
      if (operation.stopped()) return Release(piece);
      PrepareWrite(piece);
      return Start(piece, Piece::Phase::kTransfer);
    case Piece::Phase::kTransfer: return OnTransferred(piece);
    case Piece::Phase::kCopyIn: return Complete(piece);
  }
}

void Pipeline::OnTransferred(Piece& piece) {
  if (IsDamaged(piece)) return;
  if (!piece.bounce || piece.writes()) return Complete(piece);
  if (piece.operation().device() != nullptr) return Start(piece, Piece::Phase::kCopyIn);
  piece.operation().memory().Scatter(piece.at, piece.bytes());
  Complete(piece);
}

bool Pipeline::IsDamaged(Piece& piece) {
  if (!piece.access().leased() || piece.writes()) return false;
  Operation& operation = piece.operation();
  const uint64_t offset = piece.layout().FileOffset(operation.offset() + piece.at - piece.lead);
  auto checked = piece.access().CheckRead(offset, piece.blocks(), piece.attempts.last());
  if (checked.has_value()) return false;
  if (piece.attempts.ReadAgain()) {
    piece.done = 0;
    Start(piece, Piece::Phase::kTransfer);
  } else {
    operation.Fail(std::move(checked).error());
    Release(piece);
  }
  return true;
}

void Pipeline::Complete(Piece& piece) {
  Count(*piece.slice, piece.by_cufile(), piece.size);
  Release(piece);
}

void Pipeline::Release(Piece& piece) {
  Slice& slice = *piece.slice;
  if (piece.access().leased()) --leased_pieces_;
  piece = {};
  free_.push_back(&piece);
  --slice.pieces;
  RetireIfEnded(slice);
}

void Pipeline::RetireIfEnded(Slice& slice) {
  // CutSlices itself retires the slice that it is cutting.
  if (slice.pieces > 0 || slice.next < slice.end || (!cutting_.empty() && &cutting_.front() == &slice)) return;
  if (slice.operation->SliceDone()) due_.ends.push_back(slice.operation);
  cut_.erase(slice.self);
}

}  // namespace weightfs::client

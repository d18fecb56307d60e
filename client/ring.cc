// SPDX-License-Identifier: Apache-2.0
#include "client/ring.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "client/file_target.h"
#include "client/io_thread.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

// How often the GPU is looked at before the thread sleeps in between, and how long: a copy of kBounceSize takes tens of
// microseconds.
constexpr unsigned kLooks = 64;
constexpr auto kLookPause = std::chrono::microseconds(20);
// What takes longer than copies is the program's own work on a tensor.
constexpr unsigned kShortLooks = 256;
constexpr auto kLongLookPause = std::chrono::microseconds(200);
// The longest time in which a ring that only waits for cuFile does not see what was queued meanwhile.
constexpr auto kTransferPause = std::chrono::milliseconds(1);

// Small transfers go to the kernel together, as many as have this size or this number.
constexpr uint64_t kGroupSize = 1 << 20;
constexpr uint64_t kGroup = 8;

// Of blocks whose checksum is another than it should be.
constexpr unsigned kReadTries = 3;

std::chrono::nanoseconds PauseAfter(unsigned looks) {
  if (looks < kLooks) return std::chrono::nanoseconds(0);
  return looks < kShortLooks ? kLookPause : kLongLookPause;
}

// All of it, by blocking calls. An errno; 0 with less than `size` done is the end of the file.
int TransferAll(bool write, int descriptor, std::byte* data, uint64_t size, uint64_t offset, uint64_t* done) {
  while (*done < size) {
    const auto at = static_cast<off_t>(offset + *done);
    const ssize_t rc =
        write ? pwrite(descriptor, data + *done, size - *done, at) : pread(descriptor, data + *done, size - *done, at);
    if (rc < 0 && errno == EINTR) continue;
    if (rc < 0) return errno;
    if (rc == 0) return write ? EIO : 0;
    *done += static_cast<uint64_t>(rc);
  }
  return 0;
}

}  // namespace

IoResult<std::shared_ptr<Ring>> Ring::Create(const RingOptions& options) {
  std::shared_ptr<Ring> ring(new Ring(options));
  RETURN_IF_ERROR(ring->Start(ring));
  return ring;
}

IoResult<void> Ring::Start(const std::shared_ptr<Ring>& self) {
  auto io = IoRing::Create({.depth = options_.queue_depth, .may_shrink = true});
  if (!io.has_value()) {
    return IoError{
        io.error().error_number,
        fmt::format("{}; this handle wants {} ({} threads with a queue_depth of {}): want fewer, or close "
                    "other handles",
                    io.error().what, options_.rings * options_.queue_depth, options_.rings, options_.queue_depth)};
  }
  io_ = std::move(*io);
  pieces_.resize(size_t{2} * io_->depth());
  for (size_t slot = pieces_.size(); slot > 0; --slot) free_.push_back(static_cast<unsigned>(slot - 1));
  // The thread keeps the ring alive: Stop may be called on it.
  ASSIGN_OR_RETURN(thread_, StartIoThread([self] { self->Run(); }));
  return {};
}

void Ring::BeginStop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
}

void Ring::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  const bool inside = driven_ && driver_ == std::this_thread::get_id();
  if (inside) {
    // In a callback: nobody else can drive. Afterwards nothing is in flight, and the loop around us ends.
    lock.Unlock();
    Drive(nullptr);
    if (thread_.get_id() == std::this_thread::get_id()) return thread_.detach();
    lock.Lock();
  }
  changed_.notify_all();
  lock.Unlock();
  thread_.join();
}

void Ring::Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) {
  MutexLock lock(mutex_);
  queue_.push_back({.operation = std::move(operation), .next = begin, .end = end});
  if (wake && !driven_) changed_.notify_all();
}

void Ring::Help(const Operation& operation, std::chrono::nanoseconds limit) {
  MutexLock lock(mutex_);
  if (driven_) return;
  driven_ = true;
  driver_ = std::this_thread::get_id();
  lock.Unlock();
  Drive(&operation, limit);
  lock.Lock();
  driven_ = false;
  work_left_ = busy() || !ended_.empty();
  const bool hand_over = work_left_ || !queue_.empty() || stopping_;
  lock.Unlock();
  if (hand_over) changed_.notify_all();
}

void Ring::Run() {
  MutexLock lock(mutex_);
  for (;;) {
    while (driven_ || (queue_.empty() && !work_left_ && !stopping_)) changed_.wait(lock.native());
    if (queue_.empty() && !work_left_) break;
    driven_ = true;
    driver_ = std::this_thread::get_id();
    work_left_ = false;
    lock.Unlock();
    Drive(nullptr);
    lock.Lock();
    driven_ = false;
  }
  lock.Unlock();
  // Here and not in the destructor: the kernel takes tens of milliseconds, and so all rings of a handle spend
  // them at once.
  io_.reset();
  device_.Close();
}

void Ring::Drive(const Operation* until, std::chrono::nanoseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = until != nullptr ? Clock::now() + limit : Clock::time_point::max();
  for (;;) {
    TakeQueued();
    TakeReady();
    Fill();
    CompleteEnded();
    if (until != nullptr && (until->done() || Clock::now() >= end)) return;
    if (!busy()) {
      MutexLock lock(mutex_);
      if (queue_.empty()) return;
      continue;
    }
    if (!buffered_.empty()) {
      const unsigned slot = buffered_.front();
      buffered_.pop_front();
      TransferBuffered(slot);
    }
    AwaitProgress(until != nullptr ? std::optional(limit) : std::nullopt);
  }
}

void Ring::TakeQueued() {
  MutexLock lock(mutex_);
  for (; !queue_.empty(); queue_.pop_front()) {
    cutting_.push_back(std::move(queue_.front()));
    cutting_.back().self = std::prev(cutting_.end());
  }
  if (!stopping_) return;
  lock.Unlock();
  for (Slices* slices : {&cutting_, &cut_, &held_}) {
    for (const Slice& slice : *slices) slice.operation->Cancel();
  }
}

void Ring::Fill() {
  // Where files are memory a read has ended when it is submitted: its checksums are computed while it is in the cache.
  bool at_once = io_->in_kernel() == 0 && reaped_.empty();
  while (!cutting_.empty()) {
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
    if (!MayCut(slice) || !CutPiece(slice, free_.back())) break;
    // What took time to copy, or to compute, is on its way while the next is prepared.
    const bool leased_write = leased_pieces_ > 0 && slice.operation->direction() == Direction::kWrite;
    if (bouncing() && !leased_write) SubmitReady();
    if (leased_pieces_ == 0) continue;
    if (leased_write) {
      SubmitGroup();
      // Where files are memory it has ended by now, and the next copy finds its buffer in the cache.
      if (reaped_.empty()) Reap(0, std::chrono::nanoseconds(0));
      HandleOne();
    } else if (at_once) {
      SubmitReady();
      Reap(0, std::chrono::nanoseconds(0));
      at_once = HandleOne();
    }
  }
  SubmitGroup();
}

// Blocks with checksums come one by one, as these are computed. A system call for each small one, and a signal to the
// device, would cost more than they wait here while it has enough to do. What it has is looked up: a virtual disk may
// report nothing until all it had has ended, and stands still then.
void Ring::SubmitGroup() {
  const uint64_t group = std::clamp<uint64_t>(kGroupSize / options_.block_size, 1, kGroup);
  if (leased_pieces_ == 0 || io_->queued() >= group) return SubmitReady();
  if (io_->queued() == 0) return;
  Reap(0, std::chrono::nanoseconds(0));
  if (io_->in_kernel() < 2 * group) SubmitReady();
}

bool Ring::Ready(Operation& operation) {
  if (operation.device() == nullptr || operation.stopped()) return true;
  auto ready = operation.device()->Ready();
  if (ready.has_value()) return *ready;
  FailAt(operation, operation.offset(), ready.error().error_number, ready.error().what);
  return true;
}

void Ring::TakeReady() {
  for (auto slice = held_.begin(); slice != held_.end();) {
    const auto next = std::next(slice);
    if (Ready(*slice->operation)) cutting_.splice(cutting_.end(), held_, slice);
    slice = next;
  }
}

void Ring::Send(unsigned slot) {
  const Piece& piece = pieces_[slot];
  if (piece.by_cufile) return TransferByCufile(slot);
  if (piece.descriptor < 0) return buffered_.push_back(slot);
  PrepareDirect(slot);
}

void Ring::WriteEdges(Operation& operation) {
  for (const Operation::Edge& edge : operation.TakeEdges()) {
    if (operation.stopped()) return;
    std::vector<std::byte> bytes(edge.size);
    if (operation.device() != nullptr) {
      const auto copied = device_.CopyOutNow(*operation.device(), edge.at, bytes);
      if (!copied.has_value()) {
        return FailAt(operation, operation.offset() + edge.at, copied.error().error_number, copied.error().what);
      }
    } else {
      operation.memory().Gather(edge.at, bytes);
    }
    int error_number = 0;
    const int descriptor = operation.target().Buffered(&error_number);
    const uint64_t offset = operation.offset() + edge.at;
    const Target& target = operation.target();
    if (target.sums_writes() && !target.leased()) target.NoteWritten(offset, bytes);
    uint64_t done = 0;
    if (descriptor >= 0) error_number = TransferAll(true, descriptor, bytes.data(), edge.size, offset, &done);
    if (error_number != 0) return FailAt(operation, offset + done, error_number);
    CountArrived(operation, false, edge.size);
  }
}

void Ring::PrepareDirect(unsigned slot) {
  Piece& piece = pieces_[slot];
  const Operation& operation = *piece.slice->operation;
  const IoRing::Transfer transfer{.write = operation.direction() == Direction::kWrite,
                                  .descriptor = piece.descriptor,
                                  .data = piece.data + piece.done,
                                  .size = piece.transfer - piece.done,
                                  .offset = piece.offset + piece.done,
                                  .unit = operation.target().alignment().offset,
                                  .owner = &piece};
  io_->Queue({&transfer, 1});
}

void Ring::SubmitReady() {
  const auto stopped = [](void* owner) { return static_cast<Piece*>(owner)->slice->operation->stopped(); };
  for (void* owner : io_->Withdraw(stopped)) Release(SlotOf(owner));
  if (io_->in_kernel() == 0 && reaped_.empty()) batch_left_ = io_->depth();
  const size_t sent =
      io_->Submit(options_.overlap_events ? SIZE_MAX : batch_left_, options_.single_submit ? 1 : IoRing::kMaxBatch);
  batch_left_ -= std::min(batch_left_, sent);
}

void Ring::AwaitProgress(std::optional<std::chrono::nanoseconds> limit) {
  const bool others = CollectFromDevice() || !buffered_.empty() || !reaped_.empty();
  if (!others && io_->idle() && device_.idle() && held_.empty()) return;
  auto timeout = limit;
  if (!device_.idle() || !held_.empty()) timeout = PauseAfter(looks_);
  if (others) timeout = std::chrono::nanoseconds(0);
  Reap(others ? 0 : 1, timeout);
  SubmitReady();
  // One at a time where each costs time: the next transfer begins before the next copy does.
  for (size_t left = bouncing() || leased_pieces_ > 0 ? 1 : reaped_.size(); left > 0 && HandleOne(); --left) {
  }
}

void Ring::Reap(size_t minimum, std::optional<std::chrono::nanoseconds> timeout) {
  std::array<IoRing::Completion, IoRing::kMaxBatch> completions;
  const size_t count = io_->Reap(completions, minimum, timeout);
  reaped_.insert(reaped_.end(), completions.begin(), completions.begin() + count);
}

bool Ring::HandleOne() {
  if (reaped_.empty()) return false;
  const IoRing::Completion completion = reaped_.front();
  reaped_.pop_front();
  OnCompletion(completion);
  return true;
}

void Ring::OnCompletion(const IoRing::Completion& completion) {
  const unsigned slot = SlotOf(completion.owner);
  Piece& piece = pieces_[slot];
  const int error_number = completion.error_number;
  piece.done += completion.done;
  if (error_number == EINVAL || error_number == EAGAIN || error_number == EINTR) return GoBuffered(slot, error_number);
  if (error_number != 0) return FailPiece(slot, error_number);
  if (piece.done >= piece.transfer) return Succeed(slot);
  // Short: the buffered descriptor shows the end of the file, and the reason for a short write.
  GoBuffered(slot, EIO);
}

// What O_DIRECT does not do the buffered descriptor does. Not for a lease: the file may be another by now.
void Ring::GoBuffered(unsigned slot, int error_number) {
  Operation& operation = *pieces_[slot].slice->operation;
  if (operation.target().leased()) {
    const bool for_now = error_number == EAGAIN || error_number == EINTR;
    return for_now && !operation.stopped() ? PrepareDirect(slot) : FailPiece(slot, error_number);
  }
  if (error_number == EINVAL) operation.RefuseDirect();
  buffered_.push_back(slot);
}

void Ring::TransferBuffered(unsigned slot) {
  Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  if (operation.stopped()) return Release(slot);
  int error_number = 0;
  const int descriptor = operation.target().Buffered(&error_number);
  if (descriptor < 0) return FailPiece(slot, error_number);
  error_number = TransferAll(operation.direction() == Direction::kWrite, descriptor, piece.data, piece.size,
                             operation.offset() + piece.at, &piece.done);
  if (piece.done < piece.size) return FailPiece(slot, error_number);
  Succeed(slot);
}

void Ring::TransferByCufile(unsigned slot) {
  const Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  const auto started = device_.Transfer(slot, operation.device(), operation.direction() == Direction::kWrite,
                                        {.at = piece.at + piece.done,
                                         .size = piece.size - piece.done,
                                         .descriptor = piece.descriptor,
                                         .offset = piece.offset + piece.done});
  if (!started.has_value()) FailPiece(slot, started.error());
}

void Ring::CopyFromDevice(unsigned slot) {
  const Piece& piece = pieces_[slot];
  const auto started = device_.CopyOut(slot, *piece.slice->operation->device(), piece.at, {piece.data, piece.size});
  if (!started.has_value()) FailPiece(slot, started.error());
}

// True when something had ended.
bool Ring::CollectFromDevice() {
  looks_ = device_.idle() && held_.empty() ? 0 : looks_ + 1;
  if (device_.idle()) return false;
  const bool alone =
      io_->idle() && reaped_.empty() && buffered_.empty() && held_.empty() && device_.copies_under_way() == 0;
  const auto transfers = device_.CollectTransfers(alone ? kTransferPause : std::chrono::milliseconds(0));
  for (const auto& ended : transfers) OnTransferred(ended.slot, ended.outcome);
  const auto copies = device_.CollectCopies();
  for (const auto& ended : copies) OnCopied(ended.slot, ended.outcome);
  const bool any = !transfers.empty() || !copies.empty();
  if (any) looks_ = 0;
  return any;
}

void Ring::OnCopied(unsigned slot, const IoResult<void>& outcome) {
  Operation& operation = *pieces_[slot].slice->operation;
  if (!outcome.has_value()) return FailPiece(slot, outcome.error());
  if (operation.direction() == Direction::kRead) return Arrive(slot);
  if (operation.stopped()) return Release(slot);
  ReadyToWrite(operation, pieces_[slot]);
  Send(slot);
}

void Ring::OnTransferred(unsigned slot, const IoResult<uint64_t>& outcome) {
  Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  if (!outcome.has_value()) return FailPiece(slot, outcome.error());
  if (*outcome == 0) return FailPiece(slot, operation.direction() == Direction::kWrite ? EIO : 0);
  piece.done += *outcome;
  if (piece.done >= piece.size) return Arrive(slot);
  if (operation.stopped()) return Release(slot);
  TransferByCufile(slot);
}

// Whether blocks read by a lease are not what was written; then the piece is read again, or has failed.
bool Ring::IsDamaged(unsigned slot) {
  Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  const Target& target = operation.target();
  if (!target.leased() || operation.direction() == Direction::kWrite) return false;
  const bool last = ++piece.tries == kReadTries;
  auto checked = target.CheckRead(operation.offset() + piece.at - piece.lead, {piece.data, piece.transfer}, last);
  if (checked.has_value()) return false;
  if (last) {
    operation.Fail(std::move(checked).error());
    Release(slot);
  } else {
    piece.done = 0;
    PrepareDirect(slot);
  }
  return true;
}

void Ring::Succeed(unsigned slot) {
  if (IsDamaged(slot)) return;
  const Piece& piece = pieces_[slot];
  const Operation& operation = *piece.slice->operation;
  if (!piece.bounce || operation.direction() == Direction::kWrite) return Arrive(slot);
  const std::span<std::byte> bytes(piece.data + piece.lead, piece.size);
  if (operation.device() == nullptr) {
    operation.memory().Scatter(piece.at, bytes);
    return Arrive(slot);
  }
  const auto started = device_.CopyIn(slot, *operation.device(), piece.at, bytes);
  if (!started.has_value()) FailPiece(slot, started.error());
}

void Ring::CountArrived(Operation& operation, bool by_cufile, uint64_t size) {
  if (operation.device() != nullptr) {
    GpuTraffic& traffic = operation.device()->traffic();
    (by_cufile ? traffic.cufile : traffic.bounce).fetch_add(size, std::memory_order_relaxed);
  }
  operation.AddTransferred(size);
}

// All bytes of the piece are where they belong.
void Ring::Arrive(unsigned slot) {
  const Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  CountArrived(operation, piece.by_cufile, piece.size);
  Release(slot);
}

// An errno of 0 stands for the end of the file in a read.
void Ring::FailPiece(unsigned slot, int error_number) {
  const Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  // With a lead the first block begins before what was asked for.
  const uint64_t begin = operation.offset() + piece.at;
  FailAt(operation, std::max(begin, begin - piece.lead + piece.done), error_number);
  Release(slot);
}

// Of the GPU, or of cuFile.
void Ring::FailPiece(unsigned slot, const IoError& error) {
  const Piece& piece = pieces_[slot];
  Operation& operation = *piece.slice->operation;
  FailAt(operation, operation.offset() + piece.at + piece.done, error.error_number, error.what);
  Release(slot);
}

void Ring::FailAt(Operation& operation, uint64_t offset, int error_number) {
  if (error_number != 0) return FailAt(operation, offset, error_number, std::strerror(error_number));
  const auto size = operation.target().Size();
  operation.Fail(PastTheEnd(operation.target(), operation.size(), operation.offset(), size.value_or(offset)));
}

void Ring::FailAt(Operation& operation, uint64_t offset, int error_number, const std::string& reason) {
  const Target& target = operation.target();
  operation.Fail({error_number,
                  fmt::format("{} of {} bytes at offset {} of {} failed at offset {}: {}",
                              operation.direction() == Direction::kWrite ? "write" : "read", operation.size(),
                              operation.offset(), target.path(), offset, reason),
                  target.path(), offset});
}

void Ring::Release(unsigned slot) {
  Slice& slice = *pieces_[slot].slice;
  if (slice.operation->target().leased()) --leased_pieces_;
  pieces_[slot] = {};
  free_.push_back(slot);
  --slice.pieces;
  RetireIfEnded(slice);
}

void Ring::RetireIfEnded(Slice& slice) {
  // While a slice is the one being cut, Fill retires it.
  if (slice.pieces > 0 || slice.next < slice.end || (!cutting_.empty() && &cutting_.front() == &slice)) return;
  if (slice.operation->SliceDone()) ended_.push_back(slice.operation);
  cut_.erase(slice.self);
}

void Ring::CompleteEnded() {
  while (!ended_.empty()) {
    const auto operation = std::move(ended_.front());
    ended_.pop_front();
    WriteEdges(*operation);
    operation->Complete();
  }
}

}  // namespace weightfs::client

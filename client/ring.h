// SPDX-License-Identifier: Apache-2.0
// The I/O loop of a handle: slices of operations go in, their bytes go through one IoRing, or through cuFile.
//
// Whoever drives the loop carries out everything in it: the ring's own thread, or a thread that waits for a
// synchronous operation and finds nobody driving. The second saves two switches of threads for each small
// operation.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "client/gpu/device_lane.h"
#include "client/operation.h"
#include "common/mutex.h"
#include "io/buffer.h"
#include "io/io_ring.h"

namespace weightfs::client {

struct RingOptions {
  uint64_t block_size = 1 << 20;  // bytes of one transfer
  unsigned queue_depth = 128;     // transfers in the kernel at once
  size_t rings = 1;               // of the handle, for the error of those that cannot be had
  bool single_submit = false;     // one transfer in a system call
  bool overlap_events = false;    // new ones after each completion; else when all of a batch of queue_depth have ended
  size_t bounces = 32;            // buffers of 1 MiB for memory that O_DIRECT cannot use, and for writes with checksums
  DeviceLane::Options device = {};
};

// Thread-safe.
class Ring {
 public:
  static IoResult<std::shared_ptr<Ring>> Create(const RingOptions& options);
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() = default;  // after Stop

  // Ends it: waits for what the kernel has, the queued rest is cancelled; all operations are done afterwards.
  // May be called in a callback of the ring itself.
  void Stop() EXCLUDES(mutex_);
  // The first part of Stop, without waiting: several rings end beside each other.
  void BeginStop() EXCLUDES(mutex_);

  // Takes the bytes [begin, end) of an operation's memory, not empty. Wakes the ring's thread, unless the
  // caller is going to Help.
  void Enqueue(std::shared_ptr<Operation> operation, uint64_t begin, uint64_t end, bool wake) EXCLUDES(mutex_);
  // Drives until the operation is done or the time is over; not while somebody else drives. What is left the ring's
  // thread carries out. Not for callbacks.
  void Help(const Operation& operation, std::chrono::nanoseconds limit) EXCLUDES(mutex_);

 private:
  struct Slice;
  using Slices = std::list<Slice>;
  // A part of an operation; its pieces point to it.
  struct Slice {
    std::shared_ptr<Operation> operation;
    uint64_t next = 0;  // the first byte not yet cut into a piece
    uint64_t end = 0;
    size_t pieces = 0;  // cut and not ended
    Slices::iterator self = {};
  };
  // One transfer.
  struct Piece {
    Slice* slice = nullptr;
    uint64_t at = 0;  // in the operation's memory
    uint64_t size = 0;
    uint64_t lead = 0;          // bytes transferred before them, and
    uint64_t transfer = 0;      // with those and what lies behind: by a lease whole blocks
    uint64_t done = 0;          // of the transfer
    unsigned tries = 0;         // that brought damaged blocks
    std::byte* data = nullptr;  // the caller's memory, or the bounce buffer's
    Buffer bounce;
    bool by_cufile = false;
    int descriptor = -1;  // -1: by the buffered descriptor, in the driver's thread
    uint64_t offset = 0;  // on the descriptor
  };

  explicit Ring(const RingOptions& options) : options_(options), device_(options.device) {}
  IoResult<void> Start(const std::shared_ptr<Ring>& self);
  void Run() EXCLUDES(mutex_);
  // Returns when `until` is done or `limit` over, or without one when there is nothing left to do.
  void Drive(const Operation* until, std::chrono::nanoseconds limit = {}) EXCLUDES(mutex_);

  // All below belongs to the driver.
  void TakeQueued() EXCLUDES(mutex_);
  void Fill();
  bool MayCut(const Slice& slice) const;
  // Whether the operation's tensor may be touched, or the operation has ended otherwise.
  bool Ready(Operation& operation);
  // Brings back what was held and is ready.
  void TakeReady();
  bool busy() const { return !cutting_.empty() || !cut_.empty() || !held_.empty(); }
  // The next piece of the slice into the slot. False when it has to wait for a bounce buffer.
  bool CutPiece(Slice& slice, unsigned slot);
  static void ReadyToWrite(const Operation& operation, const Piece& piece);
  void ChooseRange(const Slice& slice, Piece& piece) const;
  void ChooseBlocks(const Slice& slice, Piece& piece) const;
  bool FindMemory(Piece& piece);
  bool FindBounce(Piece& piece);
  IoResult<Buffer> TryBounce();
  // Begins the transfer; the bytes of a write are where it takes them.
  void Send(unsigned slot);
  bool FillHole(Slice& slice);
  static void CountArrived(Operation& operation, bool by_cufile, uint64_t size);
  bool DeferEdge(Slice& slice) const;
  void WriteEdges(Operation& operation);
  void SubmitReady();
  void SubmitGroup();
  // Waits for something to end, no longer than `limit`.
  void AwaitProgress(std::optional<std::chrono::nanoseconds> limit);
  // Takes completed transfers from the kernel, without handling them.
  void Reap(size_t minimum, std::optional<std::chrono::nanoseconds> timeout);
  // Handles the first reaped transfer; false when there is none.
  bool HandleOne();
  void OnCompletion(const IoRing::Completion& completion);
  unsigned SlotOf(void* owner) const { return static_cast<unsigned>(static_cast<Piece*>(owner) - pieces_.data()); }
  void PrepareDirect(unsigned slot);
  void GoBuffered(unsigned slot, int error_number);
  void TransferBuffered(unsigned slot);
  void TransferByCufile(unsigned slot);
  void CopyFromDevice(unsigned slot);
  bool CollectFromDevice();
  void OnCopied(unsigned slot, const IoResult<void>& outcome);
  void OnTransferred(unsigned slot, const IoResult<uint64_t>& outcome);
  bool IsDamaged(unsigned slot);
  void Succeed(unsigned slot);
  void Arrive(unsigned slot);
  void FailPiece(unsigned slot, int error_number);
  void FailPiece(unsigned slot, const IoError& error);
  static void FailAt(Operation& operation, uint64_t offset, int error_number);
  static void FailAt(Operation& operation, uint64_t offset, int error_number, const std::string& reason);
  void Release(unsigned slot);
  void RetireIfEnded(Slice& slice);
  void CompleteEnded();
  bool bouncing() const { return bounces_ != nullptr && bounces_->in_use() > 0; }

  const RingOptions options_;
  std::unique_ptr<IoRing> io_;
  std::vector<Piece> pieces_;      // by slot; never resized: they own the transfers of io_
  std::vector<unsigned> free_;     // slots
  std::deque<unsigned> buffered_;  // waiting for their blocking transfer
  Slices cutting_;                 // in the order of their arrival
  Slices cut_;                     // wholly in pieces
  Slices held_;                    // not begun: earlier work of the GPU on their tensors is under way
  std::deque<std::shared_ptr<Operation>> ended_;
  std::unique_ptr<BufferPool> bounces_;  // made when the first piece needs one
  DeviceLane device_;
  unsigned looks_ = 0;                     // at the GPU in a row that found nothing ended
  std::deque<IoRing::Completion> reaped_;  // not handled yet
  size_t leased_pieces_ = 0;
  size_t batch_left_ = 0;  // without overlap_events: transfers that still belong to this batch

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slice> queue_ GUARDED_BY(mutex_);
  bool driven_ GUARDED_BY(mutex_) = false;
  std::thread::id driver_ GUARDED_BY(mutex_);
  bool work_left_ GUARDED_BY(mutex_) = false;  // a driver left with work under way
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace weightfs::client

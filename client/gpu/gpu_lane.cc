// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/gpu_lane.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/piece.h"
#include "common/result.h"
#include "common/start_thread.h"

namespace weightfs::client {
namespace {

// Safe, because all memory that reaches this lane was admitted by a Gpu.
const GpuMemory& OnGpu(const DeviceMemory& memory) { return static_cast<const GpuMemory&>(memory); }

Result<uint64_t> CarryOut(const Piece& piece, const GpuMemory& memory, const Cufile::File& file) {
  const CudaDevice::Current current(*memory.device());
  RETURN_IF_ERROR(current.result());
  const uint64_t at = memory.lead() + piece.at + piece.done;
  const uint64_t size = piece.size - piece.done;
  const uint64_t offset = piece.offset + piece.done;
  return piece.writes() ? file.Write(memory.base(), at, size, offset) : file.Read(memory.base(), at, size, offset);
}

}  // namespace

Result<std::unique_ptr<CopyQueue>> CopyQueue::Create(const std::shared_ptr<const CudaDevice>& device) {
  std::vector<Direction> directions;
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(auto stream, CudaStream::Create(device));
    directions.push_back({std::move(stream)});
  }
  return std::unique_ptr<CopyQueue>(new CopyQueue(device, std::move(directions)));
}

Result<CudaEvent> CopyQueue::Begin(const Copy& copy) {
  // The event must exist first: a copy whose end cannot be detected must not begin.
  if (unused_events_.empty()) {
    ASSIGN_OR_RETURN(auto made, CudaEvent::Create(device_));
    unused_events_.push_back(std::move(made));
  }
  const CudaStream& stream = directions_[copy.to_device ? 1 : 0].stream;
  if (copy.to_device) {
    RETURN_IF_ERROR(stream.CopyToDevice(copy.address, copy.host));
  } else {
    RETURN_IF_ERROR(stream.CopyToHost(copy.host, copy.address));
  }
  RETURN_IF_ERROR(stream.Record(unused_events_.back()));
  CudaEvent end = std::move(unused_events_.back());
  unused_events_.pop_back();
  return end;
}

Result<void> CopyQueue::Start(const Copy& copy) {
  ASSIGN_OR_RETURN(auto end, Begin(copy));
  directions_[copy.to_device ? 1 : 0].copies.push_back({copy.piece, std::move(end)});
  return {};
}

void CopyQueue::Collect(std::deque<Lane::Ended>* ended) {
  for (Direction& direction : directions_) {
    for (auto& copies = direction.copies; !copies.empty(); copies.pop_front()) {
      const auto reached = copies.front().end.Reached();
      if (reached.has_value() && !*reached) break;
      ended->push_back({copies.front().piece, reached.has_value() ? std::nullopt : std::optional(reached.error())});
      unused_events_.push_back(std::move(copies.front().end));
    }
  }
}

Result<void> CopyQueue::Run(const Copy& copy) {
  ASSIGN_OR_RETURN(auto end, Begin(copy));
  auto result = end.Wait();
  unused_events_.push_back(std::move(end));
  return result;
}

Workers::~Workers() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Result<void> Workers::Run(std::function<void()> task) {
  const MutexLock lock(mutex_);
  if (tasks_.size() >= idle_ && threads_.size() < most_) {
    auto thread = StartThread("weightfs-io", [this] { Work(); });
    if (thread.has_value()) threads_.push_back(std::move(*thread));
    // Without another thread, the task waits for one of those that there are.
    if (threads_.empty()) return std::move(thread).error();
  }
  tasks_.push_back(std::move(task));
  changed_.notify_one();
  return {};
}

void Workers::Work() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    while (tasks_.empty() && !stopping_) changed_.wait(lock.native());
    --idle_;
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task();
    task = nullptr;  // destroys its captures without the lock
    lock.Lock();
  }
}

void GpuLane::Start(Piece& piece) {
  if (auto begun = Begin(piece); !begun.has_value()) ended_.push_back({&piece, std::move(begun).error()});
}

Result<void> GpuLane::Begin(Piece& piece) {
  if (piece.phase == Piece::Phase::kTransfer) return Transfer(piece);
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(*piece.operation().device()));
  return queue->Start({.piece = &piece,
                       .to_device = piece.phase == Piece::Phase::kCopyIn,
                       .address = OnGpu(*piece.operation().device()).address() + piece.at,
                       .host = piece.bytes()});
}

Result<void> GpuLane::Transfer(Piece& piece) {
  auto memory = std::static_pointer_cast<GpuMemory>(piece.operation().device());
  ASSIGN_OR_RETURN(const Cufile::File* file, memory->FileOf(piece.descriptor));
  RETURN_IF_ERROR(workers_.Run([this, &piece, memory = std::move(memory), file]() mutable {
    auto outcome = CarryOut(piece, *memory, *file);
    memory.reset();  // the operation may end with the next step, and then keeps nothing of the GPU
    const MutexLock lock(mutex_);
    transferred_.push_back({&piece, std::move(outcome)});
    changed_.notify_one();
  }));
  ++transferring_;
  return {};
}

void GpuLane::Poll(std::chrono::microseconds wait) {
  std::vector<Transferred> transferred;
  if (transferring_ > 0) {
    const bool alone = copies_under_way() == 0 && ended_.empty();
    MutexLock lock(mutex_);
    if (transferred_.empty() && alone && wait.count() > 0) changed_.wait_for(lock.native(), wait);
    transferred.swap(transferred_);
  }
  transferring_ -= transferred.size();
  for (const auto& [piece, outcome] : transferred) OnTransferred(*piece, outcome);
  for (const auto& queue : queues_) queue->Collect(&ended_);
}

// Transfers may be short.
void GpuLane::OnTransferred(Piece& piece, const Result<uint64_t>& outcome) {
  if (!outcome.has_value()) return ended_.push_back({&piece, outcome.error()});
  if (*outcome == 0) return ended_.push_back({&piece, Error{piece.writes() ? ErrorCode::kIo : kEndOfFile}});
  piece.done += *outcome;
  if (piece.done >= piece.size) return ended_.push_back({&piece});
  if (piece.operation().stopped()) return ended_.push_back({.piece = &piece, .withdrawn = true});
  Start(piece);
}

std::optional<Lane::Ended> GpuLane::Next() {
  if (ended_.empty()) return std::nullopt;
  Ended ended = std::move(ended_.front());
  ended_.pop_front();
  return ended;
}

Result<Buffer> GpuLane::TryBounce(const DeviceMemory& memory) {
  if (bounces_ == nullptr) RETURN_IF_ERROR(MakeBounces(OnGpu(memory)));
  return bounces_->TryAllocate();
}

Result<void> GpuLane::MakeBounces(const GpuMemory& memory) {
  auto made =
      BufferPool::Create({.buffer_size = {kBounceSize}, .count = options_.bounces, .name = "bounce buffers of GPUs"});
  if (!made.has_value()) return Error{ErrorCode::kNoMemory, made.error().what};
  // All buffers are in one arena, so together they give its address range.
  std::vector<Buffer> all(options_.bounces);
  for (Buffer& buffer : all) buffer = (*made)->TryAllocate();
  std::byte* first = all.front().data();
  std::byte* end = first;
  for (const Buffer& buffer : all) {
    first = std::min(first, buffer.data());
    end = std::max(end, buffer.data() + buffer.size().value);
  }
  all.clear();
  ASSIGN_OR_RETURN(lock_, PageLock::Create(memory.device(), std::span(first, end)));
  bounces_ = std::move(*made);
  return {};
}

Result<CopyQueue*> GpuLane::QueueOf(const DeviceMemory& memory) {
  const auto& device = OnGpu(memory).device();
  const auto known = std::find_if(queues_.begin(), queues_.end(),
                                  [&](const auto& queue) { return queue->device().ordinal() == device->ordinal(); });
  if (known != queues_.end()) return known->get();
  ASSIGN_OR_RETURN(auto made, CopyQueue::Create(device));
  queues_.push_back(std::move(made));
  return queues_.back().get();
}

Result<void> GpuLane::CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  // One copy function serves both directions; in this one it only reads `host`.
  const std::span<std::byte> bytes(const_cast<std::byte*>(host.data()), host.size());
  return queue->Run({.to_device = true, .address = OnGpu(memory).address() + at, .host = bytes});
}

Result<void> GpuLane::CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  return queue->Run({.address = OnGpu(memory).address() + at, .host = host});
}

size_t GpuLane::copies_under_way() const {
  size_t sum = 0;
  for (const auto& queue : queues_) sum += queue->under_way();
  return sum;
}

}  // namespace weightfs::client

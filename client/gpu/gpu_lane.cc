// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/gpu_lane.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/piece.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

// Safe, because all memory that reaches this lane was admitted by a Gpu.
const GpuMemory& OnGpu(const DeviceMemory& memory) { return static_cast<const GpuMemory&>(memory); }

std::optional<Error> ErrorOf(const Result<void>& outcome) {
  return outcome.has_value() ? std::nullopt : std::optional(outcome.error());
}

}  // namespace

void GpuLane::Start(Piece& piece) {
  if (auto error = ErrorOf(Begin(piece))) ended_.push_back({&piece, std::move(error)});
}

Result<void> GpuLane::Begin(Piece& piece) {
  if (piece.step == Piece::Step::kTransfer) return Transfer(piece);
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(*piece.operation().device()));
  return queue->Start({.piece = &piece,
                       .to_device = piece.step == Piece::Step::kCopyIn,
                       .address = OnGpu(*piece.operation().device()).address() + piece.at,
                       .host = piece.bytes()});
}

Result<void> GpuLane::Transfer(Piece& piece) {
  if (threads_ == nullptr) {
    ASSIGN_OR_RETURN(threads_, CufileThreads::Create(options_.threads));
  }
  const auto memory = std::static_pointer_cast<GpuMemory>(piece.operation().device());
  ASSIGN_OR_RETURN(const Cufile::File* file, memory->FileOf(piece.descriptor));
  threads_->Start({.piece = &piece,
                   .write = piece.writes(),
                   .memory = memory,
                   .file = file,
                   .at = piece.at + piece.done,
                   .size = piece.size - piece.done,
                   .offset = piece.offset + piece.done});
  return {};
}

void GpuLane::Poll(std::chrono::microseconds wait) {
  if (threads_ != nullptr) {
    std::vector<CufileThreads::Ended> transfers;
    threads_->Collect(&transfers, copies_under_way() == 0 && ended_.empty() ? wait : std::chrono::microseconds(0));
    for (const auto& [piece, outcome] : transfers) OnTransferred(*piece, outcome);
  }
  std::vector<CopyQueue::Ended> copies;
  for (const auto& queue : queues_) queue->Collect(&copies);
  for (const auto& [piece, outcome] : copies) ended_.push_back({piece, ErrorOf(outcome)});
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

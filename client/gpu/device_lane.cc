// SPDX-License-Identifier: Apache-2.0
#include "client/gpu/device_lane.h"

#include <algorithm>
#include <cerrno>

#include "common/result.h"

namespace weightfs::client {

IoResult<Buffer> DeviceLane::TryBounce(const DeviceMemory& memory) {
  if (bounces_ == nullptr) RETURN_IF_ERROR(MakeBounces(memory));
  return bounces_->TryAllocate();
}

IoResult<void> DeviceLane::MakeBounces(const DeviceMemory& memory) {
  auto made =
      BufferPool::Create({.buffer_size = {kBounceSize}, .count = options_.bounces, .name = "bounce buffers of GPUs"});
  if (!made.has_value()) return IoError{ENOMEM, made.error().what};
  // All lie in one arena: taken together they tell where it is.
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

IoResult<CopyQueue*> DeviceLane::QueueOf(const DeviceMemory& memory) {
  const auto known = std::find_if(queues_.begin(), queues_.end(), [&](const auto& queue) {
    return queue->device().ordinal() == memory.device()->ordinal();
  });
  if (known != queues_.end()) return known->get();
  ASSIGN_OR_RETURN(auto made, CopyQueue::Create(memory.device()));
  queues_.push_back(std::move(made));
  return queues_.back().get();
}

IoResult<void> DeviceLane::CopyIn(unsigned slot, const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  return queue->Start({.slot = slot, .to_device = true, .address = memory.address() + at, .host = host});
}

IoResult<void> DeviceLane::CopyOut(unsigned slot, const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  return queue->Start({.slot = slot, .address = memory.address() + at, .host = host});
}

IoResult<void> DeviceLane::CopyInNow(const DeviceMemory& memory, uint64_t at, std::span<const std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  // One copy serves both directions; this one only reads `host`.
  const std::span<std::byte> bytes(const_cast<std::byte*>(host.data()), host.size());
  return queue->Run({.to_device = true, .address = memory.address() + at, .host = bytes});
}

IoResult<void> DeviceLane::CopyOutNow(const DeviceMemory& memory, uint64_t at, std::span<std::byte> host) {
  ASSIGN_OR_RETURN(CopyQueue * queue, QueueOf(memory));
  return queue->Run({.address = memory.address() + at, .host = host});
}

IoResult<void> DeviceLane::Transfer(unsigned slot, const std::shared_ptr<DeviceMemory>& memory, bool write,
                                    const Range& range) {
  if (threads_ == nullptr) {
    ASSIGN_OR_RETURN(threads_, CufileThreads::Create(options_.threads));
  }
  ASSIGN_OR_RETURN(const Cufile::File* file, memory->FileOf(range.descriptor));
  threads_->Start({.slot = slot,
                   .write = write,
                   .memory = memory,
                   .file = file,
                   .at = range.at,
                   .size = range.size,
                   .offset = range.offset});
  return {};
}

void DeviceLane::Close() {
  threads_.reset();
  queues_.clear();
  lock_.reset();
  bounces_.reset();
}

size_t DeviceLane::copies_under_way() const {
  size_t sum = 0;
  for (const auto& queue : queues_) sum += queue->under_way();
  return sum;
}

std::vector<CopyQueue::Ended> DeviceLane::CollectCopies() {
  std::vector<CopyQueue::Ended> ended;
  for (const auto& queue : queues_) queue->Collect(&ended);
  return ended;
}

std::vector<CufileThreads::Ended> DeviceLane::CollectTransfers(std::chrono::microseconds wait) {
  std::vector<CufileThreads::Ended> ended;
  if (threads_ != nullptr) threads_->Collect(&ended, wait);
  return ended;
}

}  // namespace weightfs::client

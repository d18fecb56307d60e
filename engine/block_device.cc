// SPDX-License-Identifier: Apache-2.0
#include "engine/block_device.h"

#include <future>

namespace weightfs {
namespace {

// Waits for one request.
struct Waiter final : IoRequest {
  void OnComplete(Result<void> result) override { done.set_value(std::move(result)); }
  std::promise<Result<void>> done;
};

Result<void> Transfer(BlockDevice& device, IoRequest::Operation operation, ByteOffset offset, std::byte* data,
                      size_t size) {
  Waiter waiter;
  waiter.operation = operation;
  waiter.offset = offset;
  waiter.data = data;
  waiter.size = ByteCount{size};
  IoRequest* request = &waiter;
  device.Submit({&request, 1});
  return waiter.done.get_future().get();
}

}  // namespace

Result<void> BlockDevice::Read(ByteOffset offset, std::span<std::byte> out) {
  return Transfer(*this, IoRequest::Operation::kRead, offset, out.data(), out.size());
}

Result<void> BlockDevice::Write(ByteOffset offset, std::span<const std::byte> in) {
  // The device only reads from this memory.
  return Transfer(*this, IoRequest::Operation::kWrite, offset, const_cast<std::byte*>(in.data()), in.size());
}

}  // namespace weightfs

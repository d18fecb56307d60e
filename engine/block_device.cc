// SPDX-License-Identifier: Apache-2.0
#include "engine/block_device.h"

#include "common/mutex.h"

namespace weightfs {
namespace {

// Waits for one request.
class Waiter final : public IoRequest {
 public:
  void OnComplete(Result<void> result) override {
    MutexLock lock(mutex_);
    result_ = std::move(result);
    done_ = true;
    ready_.notify_one();
  }
  Result<void> Wait() {
    MutexLock lock(mutex_);
    ready_.wait(lock.native(), [this] { return done_; });
    return std::move(result_);
  }

 private:
  Mutex mutex_;
  std::condition_variable ready_;
  bool done_ = false;
  Result<void> result_;
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
  return waiter.Wait();
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

// SPDX-License-Identifier: Apache-2.0
// A request that records its completion.
#pragma once

#include <functional>
#include <span>
#include <thread>

#include "common/mutex.h"
#include "engine/block_device.h"

namespace weightfs {

// Thread-safe.
class RecordingRequest final : public IoRequest {
 public:
  RecordingRequest(Operation what, ByteOffset where, std::span<std::byte> bytes) {
    operation = what;
    offset = where;
    data = bytes.data();
    size = ByteCount{bytes.size()};
  }

  std::function<void()> on_complete;  // runs inside OnComplete

  void SubmitTo(BlockDevice& device) {
    IoRequest* pointer = this;
    device.Submit({&pointer, 1});
  }

  void OnComplete(Result<void> result) override {
    if (on_complete) on_complete();
    MutexLock lock(mutex_);
    ++completions_;
    thread_ = std::this_thread::get_id();
    result_ = std::move(result);
    ready_.notify_one();
  }

  Result<void> Wait() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (completions_ == 0) ready_.wait(lock.native());
    return result_;
  }
  int completions() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return completions_;
  }
  std::thread::id thread() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return thread_;
  }

 private:
  Mutex mutex_;
  std::condition_variable ready_;
  int completions_ GUARDED_BY(mutex_) = 0;
  std::thread::id thread_ GUARDED_BY(mutex_);
  Result<void> result_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

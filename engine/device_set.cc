// SPDX-License-Identifier: Apache-2.0
#include "engine/device_set.h"

#include <future>
#include <utility>

#include "common/assert.h"

namespace weightfs {

DeviceSet::DeviceSet(std::vector<BlockDevice*> devices)
    : devices_(std::move(devices)), written_(std::make_unique<std::atomic<bool>[]>(devices_.size())) {}

Result<void> DeviceSet::FlushWritten() {
  MutexLock lock(flushing_);
  if (failure_) return *failure_;
  std::vector<BlockDevice*> written;
  for (size_t index = 0; index < devices_.size(); ++index) {
    if (written_[index].exchange(false)) written.push_back(devices_[index]);
  }
  // Flush all devices in parallel, because a flush takes as long as its device needs to write its cache. If no thread
  // can be created, flush one after another.
  constexpr auto kAsync = std::launch::async | std::launch::deferred;
  std::vector<std::future<Result<void>>> others;
  for (size_t index = 1; index < written.size(); ++index) {
    others.push_back(std::async(kAsync, [device = written[index]] { return device->Flush(); }));
  }
  Result<void> result;
  if (!written.empty()) result = written[0]->Flush();
  for (auto& other : others) {
    if (Result<void> flushed = other.get(); !flushed && result) result = std::move(flushed);
  }
  flushes_ += written.size();
  if (!result) failure_ = result.error();
  return result;
}

size_t DeviceSet::outstanding() const {
  size_t requests = 0;
  for (const BlockDevice* device : devices_) requests += device->outstanding();
  return requests;
}

IoBatch::~IoBatch() {
  for (const auto& requests : requests_) WEIGHTFS_ASSERT(requests.empty());
}

void IoBatch::Add(DeviceId device, IoRequest* request) {
  if (requests_.size() <= device.value) requests_.resize(device.value + size_t{1});
  requests_[device.value].push_back(request);
}

void IoBatch::Submit() {
  for (size_t index = 0; index < requests_.size(); ++index) {
    auto requests = std::exchange(requests_[index], {});
    if (!requests.empty()) devices_[DeviceId{static_cast<uint16_t>(index)}].Submit(requests);
  }
}

}  // namespace weightfs

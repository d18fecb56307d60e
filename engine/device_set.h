// SPDX-License-Identifier: Apache-2.0
// The devices of one store, and batches of requests to them.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "engine/block_device.h"

namespace weightfs {

// Maps a DeviceId to its device and records which devices were written since their last flush. Thread-safe; the devices
// must outlive it.
class DeviceSet {
 public:
  explicit DeviceSet(std::vector<BlockDevice*> devices);

  BlockDevice& operator[](DeviceId id) { return *devices_[id.value]; }
  size_t size() const { return devices_.size(); }
  size_t outstanding() const;  // requests submitted to all devices and not complete
  void NoteWrite(DeviceId id) { written_[id.value].store(true); }
  // Flushes every device written since the last call. When it returns, everything written before the call is durable,
  // also what a concurrent call flushes. After a failure every later call fails, because what was lost does not come
  // back.
  Result<void> FlushWritten() EXCLUDES(flushing_);
  uint64_t flushes() const { return flushes_; }  // of devices, since the start

 private:
  std::vector<BlockDevice*> devices_;
  std::unique_ptr<std::atomic<bool>[]> written_;
  std::atomic<uint64_t> flushes_{0};
  Mutex flushing_;  // held during the flushes; no other lock is taken under it
  std::optional<Error> failure_ GUARDED_BY(flushing_);
};

// Requests to submit together after the caller has released its locks. Not thread-safe.
class IoBatch {
 public:
  explicit IoBatch(DeviceSet& devices) : devices_(devices) {}
  ~IoBatch();  // submits everything added
  IoBatch(const IoBatch&) = delete;
  IoBatch& operator=(const IoBatch&) = delete;
  void Add(DeviceId device, IoRequest* request);
  void Submit();

 private:
  DeviceSet& devices_;
  std::vector<std::vector<IoRequest*>> requests_;  // by device, grown on demand
};

}  // namespace weightfs

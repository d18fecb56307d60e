// SPDX-License-Identifier: Apache-2.0
// One history of everything that reaches the devices and the key-value store of a test, and the states in which a
// crash may leave them. One journal for both, else "data before metadata" would stay untested.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/units.h"
#include "meta/kv_store.h"
#include "tests/support/block_image.h"

namespace weightfs {

using KvContent = std::map<std::string, std::string, std::less<>>;

// Applies every change of `batch`, in order.
void ApplyBatch(const KvBatch& batch, KvContent& content);

// What is left after a crash. restart.h makes devices and a key-value store of it.
struct CrashImage {
  std::vector<BlockImage> devices;  // in the order in which they joined the journal
  KvContent kv;
  size_t batches_survived = 0;  // of all batches before the cut
};

struct CrashOptions {
  enum class Kind : unsigned char {
    kPowerLoss,    // volatile caches are lost
    kProcessKill,  // only what was never handed over is lost: completed writes and batches stay, in order
  };
  Kind kind = Kind::kPowerLoss;
  uint64_t seed = 1;
  // The share of unflushed writes that survives a power loss, and of the unsynced batches. By default the seed draws
  // it, often none and often all: the extremes find most bugs.
  std::optional<double> device_survival = std::nullopt;
  std::optional<double> kv_survival = std::nullopt;
  bool torn = true;  // a surviving unflushed write may have kept only some of its 512-byte sectors
};

// Thread-safe. Events are numbered from 0 in the order in which they happened; an operation is acknowledged only after
// its event is in the journal, so the size() read after an acknowledgement covers it.
class Journal {
 public:
  struct Event {
    enum class Kind : unsigned char {
      kWrite,        // submitted
      kWriteDone,    // completed: `subject` is its kWrite
      kWriteFailed,  // completed with an error: the range holds the old bytes, the new ones or some of each
      kFlush,        // durable: writes completed before event `subject`
      kFlushFailed,  // writes completed before it are in doubt for ever; a later flush does not save them
      kCorruption,   // bytes changed behind the device's back, durable at once
      kBatch,
      kBatchFailed,  // in doubt: recovery may find it
      kSync,         // durable: batches before event `subject`
      kSyncFailed,
    };
    Kind kind;
    size_t device = 0;
    size_t subject = 0;
    ByteOffset offset = {};
    SharedBytes bytes = nullptr;                     // of kWrite and kCorruption
    std::shared_ptr<const KvBatch> batch = nullptr;  // of kBatch and kBatchFailed
  };

  // Joins a device with what it holds already (taken as durable); returns its index.
  size_t AddDevice(BlockImage initial) EXCLUDES(mutex_);
  // Sets what the key-value store holds before the first event.
  void SetKvContent(KvContent initial) EXCLUDES(mutex_);

  // Returns the number of the event.
  size_t Append(Event event) EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);
  std::vector<Event> events() const EXCLUDES(mutex_);

  // A state in which a crash after the first `cut` events may leave everything. The same cut and options give the same
  // image. On each device: all that was flushed before the cut, then a random subset of the other writes (completed or
  // in flight) in random order. In the key-value store: what was synced, then a random prefix of the other batches.
  CrashImage ImageAt(size_t cut, const CrashOptions& options = {}) const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<BlockImage> devices_ GUARDED_BY(mutex_);
  KvContent kv_ GUARDED_BY(mutex_);
  std::vector<Event> events_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

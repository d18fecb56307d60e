// SPDX-License-Identifier: Apache-2.0
// A single history of everything that reaches the devices and the key-value store of a test, and the states in which a
// crash may leave them. Both share one journal; otherwise the tests could not check "data before metadata".
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

// The state after a crash. restart.h creates devices and a key-value store from it.
struct CrashImage {
  std::vector<BlockImage> devices;  // in the order in which they were added to the journal
  KvContent kv;
  size_t batches_survived = 0;  // out of all batches before the cut

  // A number that differs for different contents, nearly always.
  uint64_t Fingerprint() const;
};

struct CrashOptions {
  enum class Kind : unsigned char {
    kPowerLoss,    // volatile caches are lost
    kProcessKill,  // only data not yet handed over is lost; completed writes and batches survive, in order
  };
  Kind kind = Kind::kPowerLoss;
  uint64_t seed = 1;
  // The fractions of unflushed writes and of unsynced batches that survive a power loss. By default the seed determines
  // them, often as none or all, because the extremes find the most bugs.
  std::optional<double> device_survival = std::nullopt;
  std::optional<double> kv_survival = std::nullopt;
  bool torn = true;  // an unflushed write may survive with only some of its 512-byte sectors
};

// Thread-safe. Events are numbered from 0 in the order in which they happened. An operation is acknowledged only after
// its event is in the journal, so a size() read after the acknowledgment covers the event.
class Journal {
 public:
  struct Event {
    enum class Kind : unsigned char {
      kWrite,        // submitted
      kWriteDone,    // completed; `subject` is its kWrite
      kWriteFailed,  // completed with an error: the range has the old bytes, the new ones or some of each
      kFlush,        // durable: all writes completed before event `subject`
      kFlushFailed,  // writes completed before it remain uncertain; a later flush does not make them durable
      kCorruption,   // bytes changed on the medium, durable at once
      kBatch,
      kBatchFailed,  // uncertain: recovery may find it
      kSync,         // durable: all batches before event `subject`
      kSyncFailed,
    };
    Kind kind;
    size_t device = 0;
    size_t subject = 0;
    ByteOffset offset = {};
    SharedBytes bytes = nullptr;                     // for kWrite and kCorruption
    std::shared_ptr<const KvBatch> batch = nullptr;  // for kBatch and kBatchFailed
  };

  // Adds a device with its current content, which counts as durable. Returns its index.
  size_t AddDevice(BlockImage initial) EXCLUDES(mutex_);
  // Sets the content of the key-value store before the first event.
  void SetKvContent(KvContent initial) EXCLUDES(mutex_);

  // Returns the number of the event.
  size_t Append(Event event) EXCLUDES(mutex_);

  size_t size() const EXCLUDES(mutex_);
  std::vector<Event> events() const EXCLUDES(mutex_);

  // A state in which a crash after the first `cut` events may leave everything. The same cut and options give the same
  // image. Each device has everything that was flushed before the cut, then a random subset of the other writes
  // (completed or in flight) in random order. The key-value store has everything that was synced, then a random prefix
  // of the other batches.
  CrashImage ImageAt(size_t cut, const CrashOptions& options = {}) const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<BlockImage> devices_ GUARDED_BY(mutex_);
  KvContent kv_ GUARDED_BY(mutex_);
  std::vector<Event> events_ GUARDED_BY(mutex_);
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/journal.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

namespace weightfs {
namespace {

constexpr size_t kSectorSize = 512;

using Event = Journal::Event;

// Replays the events of one device up to a cut.
class DeviceReplay {
 public:
  DeviceReplay(BlockImage& image, const CrashOptions& options, std::mt19937_64& random)
      : image_(image), options_(options), random_(random), tearing_(Draw() < 0.25 ? 1 : 0.25) {}

  void Take(const std::vector<Event>& events, size_t number) {
    const Event& event = events[number];
    switch (event.kind) {
      case Event::Kind::kWrite: in_flight_.insert(number); break;
      case Event::Kind::kWriteDone:
      case Event::Kind::kWriteFailed:
        in_flight_.erase(event.subject);
        finished_.push_back({&events[event.subject], number, event.kind == Event::Kind::kWriteFailed});
        break;
      case Event::Kind::kFlush: Settle(event.subject); break;
      case Event::Kind::kFlushFailed:
        for (auto& write : finished_) write.in_doubt = true;
        break;
      case Event::Kind::kCorruption: image_.Write(event.offset, *event.bytes); break;
      default: break;
    }
  }

  // Applies what a crash leaves of the writes that are not durable.
  void Crash(const std::vector<Event>& events) {
    if (options_.kind == CrashOptions::Kind::kProcessKill) {
      for (const auto& write : finished_) {
        if (!write.in_doubt || Draw() < 0.5) image_.WriteShared(write.event->offset, write.event->bytes);
      }
      for (const size_t number : in_flight_) {
        if (Draw() < 0.5) ApplyTorn(events[number]);
      }
      return;
    }
    std::vector<const Event*> open;
    for (const auto& write : finished_) open.push_back(write.event);
    for (const size_t number : in_flight_) open.push_back(&events[number]);
    std::shuffle(open.begin(), open.end(), random_);
    const double survival = options_.device_survival.value_or(DrawSurvival());
    for (const Event* event : open) {
      if (Draw() < survival) ApplyTorn(*event);
    }
  }

 private:
  struct Finished {
    const Event* event;
    size_t when;  // number of the completion event
    bool in_doubt;
  };

  // Makes durable what completed before event `before`, in order of completion, because later bytes replaced earlier
  // ones in that order.
  void Settle(size_t before) {
    const auto end =
        std::find_if(finished_.begin(), finished_.end(), [&](const Finished& write) { return write.when >= before; });
    for (auto write = finished_.begin(); write != end; ++write) {
      if (!write->in_doubt) {
        image_.WriteShared(write->event->offset, write->event->bytes);
      } else if (Draw() < 0.5) {
        ApplyTorn(*write->event);
      }
    }
    finished_.erase(finished_.begin(), end);
  }

  // Applies the write as a whole, or only some of its sectors.
  void ApplyTorn(const Event& event) {
    if (!options_.torn || Draw() >= tearing_) return image_.WriteShared(event.offset, event.bytes);
    const std::span<const std::byte> bytes(*event.bytes);
    for (size_t at = 0; at < bytes.size(); at += kSectorSize) {
      const size_t size = std::min(kSectorSize, bytes.size() - at);
      if (Draw() < 0.5) image_.Write(event.offset + ByteCount{at}, bytes.subspan(at, size));
    }
  }

  double Draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double DrawSurvival() {
    const double kind = Draw();
    return kind < 0.25 ? 0 : kind < 0.5 ? 1 : Draw();
  }

  BlockImage& image_;
  const CrashOptions& options_;
  std::mt19937_64& random_;
  const double tearing_;            // fraction of torn writes; in some images all are torn
  std::vector<Finished> finished_;  // completed but not durable, in order of completion
  std::set<size_t> in_flight_;      // by event number of the kWrite
};

// The number of batches that survive a crash: all durable ones and a random prefix of the rest.
size_t SurvivingBatches(size_t durable, size_t total, const CrashOptions& options, std::mt19937_64& random) {
  if (options.kind == CrashOptions::Kind::kProcessKill) return total;
  const size_t open = total - durable;
  if (options.kv_survival) {
    return durable + static_cast<size_t>(std::llround(*options.kv_survival * static_cast<double>(open)));
  }
  switch (random() % 4) {
    case 0: return durable;
    case 1: return total;
    default: return durable + random() % (open + 1);
  }
}

}  // namespace

uint64_t CrashImage::Fingerprint() const {
  uint64_t sum = 0;
  const auto add = [&](uint64_t value) { sum = (sum ^ value) * 0x9E37'79B9'7F4A'7C15ULL; };
  for (const BlockImage& device : devices) add(device.Fingerprint());
  for (const auto& [key, value] : kv) {
    add(std::hash<std::string>()(key));
    add(std::hash<std::string>()(value));
  }
  return sum;
}

void ApplyBatch(const KvBatch& batch, KvContent& content) {
  using Kind = KvBatch::Change::Kind;
  for (const auto& change : batch.changes()) {
    switch (change.kind) {
      case Kind::kPut: content.insert_or_assign(change.key, change.value); break;
      case Kind::kDelete: content.erase(change.key); break;
      case Kind::kDeleteRange:
        if (change.key < change.value) {
          content.erase(content.lower_bound(change.key), content.lower_bound(change.value));
        }
        break;
    }
  }
}

size_t Journal::AddDevice(BlockImage initial) {
  MutexLock lock(mutex_);
  devices_.push_back(std::move(initial));
  return devices_.size() - 1;
}

void Journal::SetKvContent(KvContent initial) {
  MutexLock lock(mutex_);
  kv_ = std::move(initial);
}

size_t Journal::Append(Event event) {
  MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  return events_.size() - 1;
}

size_t Journal::size() const {
  MutexLock lock(mutex_);
  return events_.size();
}

std::vector<Journal::Event> Journal::events() const {
  MutexLock lock(mutex_);
  return events_;
}

CrashImage Journal::ImageAt(size_t cut, const CrashOptions& options) const {
  MutexLock lock(mutex_);
  cut = std::min(cut, events_.size());
  CrashImage image{devices_, kv_, 0};
  std::mt19937_64 random(options.seed * 0x9E37'79B9'7F4A'7C15ULL + cut);
  std::vector<DeviceReplay> devices;
  for (auto& device : image.devices) devices.emplace_back(device, options, random);

  std::vector<size_t> batches;  // event numbers
  size_t durable = 0;
  for (size_t number = 0; number < cut; ++number) {
    const Event& event = events_[number];
    switch (event.kind) {
      case Event::Kind::kBatch:
      case Event::Kind::kBatchFailed: batches.push_back(number); break;
      case Event::Kind::kSync:
        durable = std::max<size_t>(
            durable,
            static_cast<size_t>(std::lower_bound(batches.begin(), batches.end(), event.subject) - batches.begin()));
        break;
      case Event::Kind::kSyncFailed: break;
      default: devices[event.device].Take(events_, number); break;
    }
  }
  for (auto& device : devices) device.Crash(events_);
  image.batches_survived = SurvivingBatches(durable, batches.size(), options, random);
  for (size_t i = 0; i < image.batches_survived; ++i) ApplyBatch(*events_[batches[i]].batch, image.kv);
  return image;
}

}  // namespace weightfs

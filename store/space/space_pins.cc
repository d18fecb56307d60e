// SPDX-License-Identifier: Apache-2.0
#include "store/space/space_pins.h"

#include <algorithm>

#include "common/assert.h"

namespace weightfs {

SpacePins::Blocks& SpacePins::Split(const DeviceRun& run) {
  WEIGHTFS_ASSERT(run.device.value < devices_.size());
  Blocks& blocks = devices_[run.device.value];
  blocks.SplitAt(run.run.start.value);
  blocks.SplitAt(run.run.end().value);
  return blocks;
}

void SpacePins::Add(const DeviceRun& run) {
  Blocks& blocks = Split(run);
  const uint64_t end = run.run.end().value;
  for (uint64_t at = run.run.start.value; at < end;) {
    const auto next = blocks.LowerBound(at);
    if (next != blocks.end() && next->first == at) {
      ++next->second.value.count;
      at = next->second.end;
      continue;
    }
    const uint64_t until = next == blocks.end() ? end : std::min(end, next->first);
    blocks.Insert(at, until, Pins{1, false});
    pinned_ += BlockCount{until - at};
    at = until;
  }
}

void SpacePins::Remove(const DeviceRun& run, std::vector<DeviceRun>* free) {
  Blocks& blocks = Split(run);
  for (auto at = blocks.LowerBound(run.run.start.value); at != blocks.end() && at->first < run.run.end().value;) {
    Pins& pins = at->second.value;
    WEIGHTFS_ASSERT(pins.count > 0);
    if (--pins.count > 0) {
      ++at;
      continue;
    }
    const BlockCount count{at->second.end - at->first};
    pinned_ -= count;
    if (pins.parked) {
      parked_ -= count;
      free->push_back({run.device, {DeviceBlock{at->first}, count}});
    }
    at = blocks.Erase(at);
  }
}

BlockCount SpacePins::PinnedIn(const DeviceRun& run) const {
  const Blocks& blocks = devices_[run.device.value];
  const uint64_t begin = run.run.start.value, end = run.run.end().value;
  BlockCount pinned;
  for (auto at = blocks.FirstFrom(begin); at != blocks.end() && at->first < end; ++at) {
    pinned += BlockCount{std::min(end, at->second.end) - std::max(begin, at->first)};
  }
  return pinned;
}

void SpacePins::Park(const DeviceRun& run, std::vector<DeviceRun>* free) {
  Blocks& blocks = Split(run);
  const uint64_t end = run.run.end().value;
  const auto release = [&](uint64_t from, uint64_t to) {
    if (from < to) free->push_back({run.device, {DeviceBlock{from}, BlockCount{to - from}}});
  };
  uint64_t at = run.run.start.value;
  for (auto next = blocks.LowerBound(at); next != blocks.end() && next->first < end; ++next) {
    release(at, next->first);
    WEIGHTFS_ASSERT(!next->second.value.parked);  // no file maps parked blocks, so they are not freed twice
    next->second.value.parked = true;
    at = next->second.end;
    parked_ += BlockCount{at - next->first};
  }
  release(at, end);
}

}  // namespace weightfs

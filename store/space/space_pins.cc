// SPDX-License-Identifier: Apache-2.0
#include "store/space/space_pins.h"

#include <iterator>

namespace weightfs {

void SpacePins::SplitAt(Spans& spans, uint64_t block) {
  auto next = spans.upper_bound(block);
  if (next == spans.begin()) return;
  auto& [first, span] = *std::prev(next);
  if (first == block || span.end <= block) return;
  spans.emplace_hint(next, block, span);
  span.end = block;
}

void SpacePins::Add(const DeviceRun& run) {
  Spans& spans = devices_[run.device.value];
  const uint64_t end = run.run.end().value;
  SplitAt(spans, run.run.start.value);
  SplitAt(spans, end);
  for (uint64_t at = run.run.start.value; at < end;) {
    const auto next = spans.lower_bound(at);
    if (next != spans.end() && next->first == at) {
      ++next->second.pins;
      at = next->second.end;
      continue;
    }
    const uint64_t until = next == spans.end() || next->first > end ? end : next->first;
    spans.emplace_hint(next, at, Span{until, 1, false});
    pinned_ += BlockCount{until - at};
    at = until;
  }
}

void SpacePins::Remove(const DeviceRun& run, std::vector<DeviceRun>* free) {
  Spans& spans = devices_[run.device.value];
  const uint64_t end = run.run.end().value;
  SplitAt(spans, run.run.start.value);
  SplitAt(spans, end);
  for (auto at = spans.lower_bound(run.run.start.value); at != spans.end() && at->first < end;) {
    Span& span = at->second;
    if (--span.pins > 0) {
      ++at;
      continue;
    }
    const BlockCount count{span.end - at->first};
    pinned_ -= count;
    if (span.parked) {
      parked_ -= count;
      free->push_back({run.device, {DeviceBlock{at->first}, count}});
    }
    at = spans.erase(at);
  }
}

void SpacePins::Park(const DeviceRun& run, std::vector<DeviceRun>* free) {
  Spans& spans = devices_[run.device.value];
  const uint64_t end = run.run.end().value;
  const auto release = [&](uint64_t from, uint64_t to) {
    if (from < to) free->push_back({run.device, {DeviceBlock{from}, BlockCount{to - from}}});
  };
  SplitAt(spans, run.run.start.value);
  SplitAt(spans, end);
  uint64_t at = run.run.start.value;
  for (auto next = spans.lower_bound(at); next != spans.end() && next->first < end; ++next) {
    release(at, next->first);
    next->second.parked = true;
    at = next->second.end;
    parked_ += BlockCount{at - next->first};
  }
  release(at, end);
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/wal/stream_writer.h"

#include <algorithm>

#include "common/assert.h"
#include "common/utc_time.h"

namespace weightfs::wal {

namespace {

// More than any log has behind a missing frame. Those frames never have the number of a later one.
constexpr uint64_t kSkippedFrames = uint64_t{1} << 32;

}  // namespace

bool StreamWriter::full() const {
  const size_t last = stream_.segments.size();
  if (position_.segment >= last) return true;
  return position_.segment + 1 == last && position_.block >= stream_.segments[last - 1].run.run.count;
}

void StreamWriter::Extend(const std::vector<DeviceRun>& runs, uint64_t begun) {
  const bool at_end = full();
  for (const DeviceRun& run : runs) {
    // Only at the first run is it known which frame will be there.
    const bool first = at_end && &run == &runs.front();
    stream_.segments.push_back({run, first ? position_.frame : kUnknownFrame, begun});
  }
}

Result<void> StreamWriter::WriteFrame(std::string_view* bytes, size_t first_entry, uint64_t durable) {
  WEIGHTFS_ASSERT(!full());
  if (position_.block >= stream_.segments[position_.segment].run.run.count) {
    ++position_.segment;
    position_.block = {};
  }
  const DeviceRun& run = stream_.segments[position_.segment].run;
  const uint64_t capacity = std::min(ToBytes(run.run.count - position_.block).value, kLargestFrame) - kFrameHeaderSize;
  const size_t size = std::min<uint64_t>(bytes->size(), capacity);
  const FrameHeader header{.store_id = store_id_,
                           .stream = stream_.id,
                           .number = position_.frame,
                           .first_entry = first_entry < size ? static_cast<uint32_t>(first_entry) : kNoEntry,
                           .payload_size = static_cast<uint32_t>(size),
                           .time_ns = UtcNowNs(),
                           .durable = durable};
  const std::span<std::byte> frame(memory_->data(), kLargestFrame);
  bytes->copy(reinterpret_cast<char*>(frame.data() + kFrameHeaderSize), size);  // perhaps nothing, from nowhere
  const size_t sealed = SealFrame(header, frame);
  RETURN_IF_ERROR(devices_[run.device].Write(ToBytes(run.run.start + position_.block), frame.first(sealed)));
  devices_.NoteWrite(run.device);
  position_.block += BlocksFor(ByteCount{sealed});
  ++position_.frame;
  bytes->remove_prefix(size);
  return {};
}

std::vector<Segment> StreamWriter::Cut() {
  std::vector<Segment> removed;
  auto& segments = stream_.segments;
  while (segments.size() > position_.segment + 1) {
    removed.push_back(segments.back());
    segments.pop_back();
  }
  if (segments.size() > position_.segment) {
    BlockRun& run = segments.back().run.run;
    if (position_.block < run.count) {
      const DeviceRun rest{segments.back().run.device, {run.start + position_.block, run.count - position_.block}};
      removed.push_back({rest, kUnknownFrame, 0});
      run.count = position_.block;
    }
    if (run.count.value == 0) segments.pop_back();
  }
  position_ = {.segment = segments.size(), .block = {}, .frame = position_.frame + kSkippedFrames};
  return removed;
}

std::vector<Segment> StreamWriter::TrimTo(uint64_t sequence) {
  size_t first = 0;
  for (size_t i = 0; i <= position_.segment && i < stream_.segments.size(); ++i) {
    const Segment& segment = stream_.segments[i];
    if (segment.first_frame != kUnknownFrame && segment.begun <= sequence) first = i;
  }
  const auto end = stream_.segments.begin() + static_cast<ptrdiff_t>(first);
  std::vector<Segment> removed(stream_.segments.begin(), end);
  stream_.segments.erase(stream_.segments.begin(), end);
  position_.segment -= first;
  return removed;
}

BlockCount BlocksOf(const std::vector<Segment>& segments) {
  BlockCount blocks;
  for (const Segment& segment : segments) blocks += segment.run.run.count;
  return blocks;
}

}  // namespace weightfs::wal

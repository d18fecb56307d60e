// SPDX-License-Identifier: Apache-2.0
// Writes the frames of one stream to its segments.
#pragma once

#include <string_view>
#include <vector>

#include "common/result.h"
#include "engine/device_set.h"
#include "io/huge_pages.h"
#include "store/wal/wal_reader.h"

namespace weightfs::wal {

BlockCount BlocksOf(const std::vector<Segment>& segments);

// Not thread-safe. `devices` must outlive it. After an error nothing more may be written.
class StreamWriter {
 public:
  // Continues `stream` at the position; both are empty for a new stream. `memory` holds one frame.
  StreamWriter(DeviceSet& devices, const Uuid& store_id, Stream stream, FrameReader::Position position,
               HugePageMemory* memory)
      : devices_(devices), store_id_(store_id), stream_(std::move(stream)), position_(position), memory_(memory) {}

  // True when all blocks of the segments are in use.
  bool full() const;
  // Appends blocks. `begun` is the sequence of the last entry that has begun (Segment::begun).
  void Extend(const std::vector<DeviceRun>& runs, uint64_t begun);
  // Writes one frame with the first bytes of `bytes`, as many as fit, and removes them. Its first entry begins at
  // `first_entry`; kNoEntry if none begins in `bytes`. `durable` is its mark. The stream must not be full.
  Result<void> WriteFrame(std::string_view* bytes, size_t first_entry, uint64_t durable = 0);
  // Ends the stream at the position, before a segment that goes on after a crash: the next frame gets a number that
  // does not follow. Returns the blocks behind the position.
  std::vector<Segment> Cut();
  // Removes and returns the segments before the one that entry `sequence` + 1 begins in or after.
  std::vector<Segment> TrimTo(uint64_t sequence);

  const Stream& stream() const { return stream_; }
  uint64_t frames() const { return position_.frame; }

 private:
  DeviceSet& devices_;
  const Uuid store_id_;
  Stream stream_;
  FrameReader::Position position_;
  HugePageMemory* const memory_;
};

}  // namespace weightfs::wal

// SPDX-License-Identifier: Apache-2.0
// Reads the log and its checkpoint from the devices of a store.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "engine/block_device.h"
#include "io/huge_pages.h"
#include "store/wal/wal_format.h"

namespace weightfs::wal {

using Devices = std::span<BlockDevice* const>;  // in the order of their indexes

// Reads the frames of one stream in order. Not thread-safe. `devices` and `stream` must outlive it.
class FrameReader {
 public:
  // Where the next frame is, or belongs.
  struct Position {
    size_t segment = 0;
    BlockCount block;  // in the segment
    uint64_t frame = 0;
  };
  struct Frame {
    FrameHeader header;
    std::string_view payload;  // valid until the next call
    bool follows = true;       // false: the log went on here after a crash; a part of an entry before it has no rest
  };

  static Result<FrameReader> Create(Devices devices, const Uuid& store_id, const Stream& stream,
                                    size_t first_segment = 0);

  // Returns the next frame; nullopt when the next block does not begin it: at the end of the stream, or at damage, also
  // at a block that cannot be read.
  Result<std::optional<Frame>> Next();
  // Moves on to the next intact frame of the stream behind a damaged one. Returns false when there is none. Reads each
  // block of the segments once, and not many more bytes of what only looks like frames.
  Result<bool> SkipDamage();
  const Position& position() const { return position_; }
  bool unreadable() const { return unreadable_; }  // the device could not read the next frame
  // Of a log: entries with greater sequences that lie before the next frame do not count (Segment).
  uint64_t limit() const { return limits_.empty() ? UINT64_MAX : limits_[std::min(entered_, limits_.size() - 1)]; }

 private:
  FrameReader(Devices devices, const Uuid& store_id, const Stream& stream, HugePageMemory memory)
      : devices_(devices), store_id_(store_id), stream_(stream), memory_(std::move(memory)) {}
  // Reads the frame at the position. nullopt when there is no intact frame of this stream.
  Result<std::optional<Frame>> ReadFrame();
  void EnterNextSegment();
  bool SkipToHeader();
  void LookAhead();

  Devices devices_;
  Uuid store_id_;
  const Stream& stream_;
  HugePageMemory memory_;
  Position position_;
  size_t entered_ = 0;            // the segment of the last frame
  std::vector<uint64_t> limits_;  // by segment
  bool follows_ = true;           // the next frame follows the last one
  bool unreadable_ = false;
  // For SkipDamage: up to where the blocks of a segment have been looked at, those of them that look like the first
  // block of a frame, and the bytes of frames that were damaged or out of order.
  size_t seen_segment_ = SIZE_MAX;
  BlockCount seen_;
  std::deque<BlockCount> headers_;
  uint64_t rejected_ = 0;
};

// Reads the entries of a stream in order. Not thread-safe.
class EntryReader {
 public:
  explicit EntryReader(FrameReader frames) : frames_(std::move(frames)) {}
  // Returns the next entry; nullopt at the end or at damage.
  Result<std::optional<Entry>> Next();
  // Drops what the reader has, and goes on behind a damaged frame. Returns false when nothing follows.
  Result<bool> SkipDamage();
  const FrameReader::Position& position() const { return frames_.position(); }
  int64_t time_ns() const { return time_ns_; }      // of the last frame
  uint64_t durable() const { return durable_; }     // the greatest mark so far
  uint64_t limit() const { return frames_.limit(); }
  bool unreadable() const { return frames_.unreadable(); }
  bool is_between() const { return bytes_.size() == offset_; }  // no part of an entry is left

 private:
  void Drop();

  FrameReader frames_;
  std::string bytes_;
  size_t offset_ = 0;          // in bytes_, of the next entry
  bool synchronized_ = false;  // bytes_ begins with an entry
  int64_t time_ns_ = 0;
  uint64_t durable_ = 0;
  bool is_old_ = false;  // the last frame has no mark: its entries were durable before it was written
};

// The root at one of kRootOffsets; nullopt when there is none. kIo if it cannot be read. Uses `memory`, of
// kRootCapacity bytes.
Result<std::optional<Root>> ReadRoot(BlockDevice& device, uint64_t offset, std::span<std::byte> memory);
// The newest valid root on the devices, which may be in any order; nullopt when there is none. `store_id` restricts the
// search. Unreadable copies are skipped; kIo if no root is left then.
Result<std::optional<Root>> FindRoot(Devices devices, const std::optional<Uuid>& store_id);
// Reads the segments of a root with lists, from the first intact list. Does nothing for other roots.
Result<void> LoadSegments(Devices devices, Root* root);
// The bytes of a list of the root; nullopt if it is damaged.
Result<std::optional<std::string>> ReadList(Devices devices, const Root& root, const Stream& list);

// The end of the log.
struct Tail {
  // The log has the version from which the search began. Otherwise the search must begin at the checkpoint.
  bool continues = true;
  Version version;        // of the last entry that counts
  uint64_t durable = 0;  // up to this entry, everything was known to be durable
  // False if anything follows that does not count: the log cannot go on in its last segment.
  bool clean = true;
  bool damaged = false;     // entries that were durable are missing behind the last one
  bool unreadable = false;  // the device cannot read what follows the last one
  int64_t time_ns = 0;   // when its last frame was written
  FrameReader::Position position;
};
// Finds the last entry that continues `from`, which is the checkpoint's version or that of an entry of the log.
Result<Tail> FindTail(Devices devices, const Root& root, Version from);
// FindTail, and compares the data of the entries behind the last mark with their checksums, because a crash may leave
// an entry without its data. The tail ends before the first entry whose blocks differ, or cannot be read: a write that
// a power cut has interrupted may leave such blocks.
//
// That is the durable state, or a later one: the data of an entry before the mark is durable, and no block of an entry
// behind it has been used again (log_writer.h).
Result<Tail> FindDurableTail(Devices devices, const Root& root, Version from);

// Calls `apply` for the batches of the checkpoint. Returns the number of damaged frames, which are skipped.
Result<uint64_t> ReplayCheckpoint(Devices devices, const Root& root,
                                  const std::function<Result<void>(const Entry&)>& apply);
// Calls `apply` for each entry of the log that continues `from` (FindTail), up to that with the sequence `last`.
// Returns the version after the last one.
Result<Version> ReplayLog(Devices devices, const Root& root, Version from, uint64_t last,
                          const std::function<Result<void>(const Entry&)>& apply);
// Calls `apply` with what an index of version `from` lacks, up to the tail, entry by entry, each with its version. kIo
// if the devices cannot read now what they have read for the tail.
Result<void> CatchUp(Devices devices, const Root& root, Version from, const Tail& tail,
                     const std::function<Result<void>(KvBatch)>& apply);

}  // namespace weightfs::wal

// SPDX-License-Identifier: Apache-2.0
// The log of the catalog on the devices: its roots, frames and entries. On-disk layout: docs/FORMAT.md section 10;
// this header and that section change together. Pure functions on bytes.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/units.h"
#include "engine/extent_allocator.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"

namespace weightfs::wal {

// The fact under keys::Store with the version of the catalog.
inline constexpr const char* kVersionFact = "version";
// The fact of a version that no log has, given to the index by a repair: this version, and the one before it unless the
// index lacks changes of that.
inline constexpr const char* kUniqueFact = "unique_version";

// The number of batches that the catalog has applied, and a checksum chained over all of them. Two catalogs with equal
// versions have equal content.
struct Version {
  uint64_t sequence = 0;
  uint32_t chain = 0;
  bool operator==(const Version&) const = default;
};
std::string EncodeVersion(Version version);
// nullopt when the bytes are not a version.
std::optional<Version> DecodeVersion(std::string_view bytes);

// Entries: one batch each (KvBatch::has_unflushed_data included), with the version of the catalog after it.
struct Entry {
  Version version;
  KvBatch batch;
};
inline constexpr size_t kEntryHeaderSize = 16;
// Encodes a batch as the entry that follows `version`, and moves `version` on to it.
std::string EncodeNext(const KvBatch& batch, Version* version);
// Encodes a part of a checkpoint of `version`.
std::string EncodePart(const KvBatch& batch, Version version);
// The size of the entry whose header begins `bytes`; 0 when the header is incomplete.
size_t EntrySize(std::string_view bytes);
// nullopt when the bytes are not exactly one entry.
std::optional<Entry> DecodeEntry(std::string_view bytes);

// Frames: whole blocks that hold a part of a stream of entries.
inline constexpr uint64_t kFrameHeaderSize = 72, kOldFrameHeaderSize = 64;
inline constexpr uint64_t kLargestFrame = kMiB;
inline constexpr uint32_t kNoEntry = UINT32_MAX;
struct FrameHeader {
  Uuid store_id{};
  uint64_t stream = 0;              // a number that no other stream of the store has had
  uint64_t number = 0;              // of the frame in its stream, from 0
  uint32_t first_entry = kNoEntry;  // offset in the payload of the first entry that begins there
  uint32_t payload_size = 0;        // bytes
  int64_t time_ns = 0;              // when it was written, since the epoch
  uint64_t durable = 0;  // the mark: when it was written, all entries up to this one, and their data, were durable
  uint64_t size = kFrameHeaderSize;  // of the header: older programs wrote one without the mark
};
// Writes the header in front of the payload, which lies at `frame` + kFrameHeaderSize, and clears the rest of the last
// block. Returns the size of the frame in bytes, a multiple of kBlockSize.
size_t SealFrame(const FrameHeader& header, std::span<std::byte> frame);
// The size in bytes of the frame that begins with this block, from its unverified header; 0 when it is none.
size_t FrameSize(std::span<const std::byte> block);
// The header of the frame that begins with this block, unverified. nullopt when FrameSize is 0.
std::optional<FrameHeader> PeekFrame(std::span<const std::byte> block);
// Verifies a whole frame. nullopt when its checksum or a field is wrong.
std::optional<FrameHeader> OpenFrame(std::span<const std::byte> frame);

// A run of blocks that holds frames of one stream, in order.
inline constexpr uint64_t kUnknownFrame = UINT64_MAX;
inline constexpr BlockCount kLargestSegment{8 * kMiB / kBlockSize};
//
// After a crash the log goes on in a new segment, whose first frame has a number that does not follow. What was written
// before it, but is not part of the log (a frame behind a missing one, an entry without its data), does not count:
// entries before a segment with a known first frame are those up to its `begun`.
struct Segment {
  DeviceRun run;
  uint64_t first_frame = 0;  // the number of the frame at its first block, or kUnknownFrame
  uint64_t begun = 0;        // the sequence of the last entry that begins before the segment
};
struct Stream {
  uint64_t id = 0;
  std::vector<Segment> segments;
};

// The root: where checkpoint and log are, and everything else that is needed to open the store without its directory.
// If their segments do not fit into it, they are listed in a stream of their own, of which there are two copies.
struct Root {
  Uuid store_id{};
  DeviceId device;        // the one that holds this copy
  bool logged = false;    // the log has every change; otherwise, by an older program, those that the index had stored
  bool ordered = false;   // its writer overwrites the copies of a root one after the other
  uint64_t sequence = 0;  // the valid root with the greatest one counts
  int64_t time_ns = 0;
  uint64_t durable = 0;            // up to this entry, everything was durable before; 0 if not logged
  Version checkpoint;              // of the catalog, when the checkpoint was taken
  uint64_t checkpoint_frames = 0;  // in its stream
  Stream checkpoint_stream, log;   // the log has every entry after the checkpoint
  std::vector<Stream> lists;       // the copies; empty if the root has the segments itself
  uint64_t list_size = 0;          // bytes of one
  std::string description;         // the text of store.json
  bool newer_lost = false;         // of FindRoot, not on the devices: all copies of another root are damaged
};
// Offsets of the copies on each device, between the copies of the superblock. A root with an even sequence is written
// to the first and third, one with an odd sequence to the others: to one of the two on all devices, which are flushed,
// and then to the other one. So a crash leaves an intact root in each pair.
inline constexpr std::array<uint64_t, 4> kRootOffsets = {64 * kKiB, 576 * kKiB, 1088 * kKiB, 1600 * kKiB};
inline constexpr uint64_t kRootCapacity = 384 * kKiB;
inline constexpr size_t kListCopies = 2;
inline constexpr uint64_t kLargestList = 64 * kMiB;
// Whole blocks; empty when the root has too many segments for kRootCapacity. A root with lists has their segments only.
std::string EncodeRoot(const Root& root);
// The size of the root that begins with this block, from its unverified header; 0 when it is none.
size_t RootSize(std::string_view block);
// nullopt when the bytes are not a root, or its segments are impossible: outside the data area of every device, too
// large, or not disjoint.
std::optional<Root> DecodeRoot(std::string_view bytes);
// The list of the segments of checkpoint and log, and back. False when the bytes are none, or segments are impossible.
std::string EncodeList(const Root& root);
bool DecodeList(std::string_view bytes, Root* root);
// The segments of every stream of the root.
std::vector<Segment> SegmentsOf(const Root& root);

}  // namespace weightfs::wal

// SPDX-License-Identifier: Apache-2.0
// Reads the committed data of all files from the devices and compares it with its checksums.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "engine/device_set.h"
#include "io/huge_pages.h"
#include "meta/kv_store.h"
#include "meta/records.h"
#include "store/scrub/scrub_state.h"
#include "store/space/space_manager.h"

namespace weightfs {

// Damaged blocks of one file that are adjacent in the file and on the device.
struct DamagedRun {
  enum class Problem : uint8_t { kMismatch, kUnreadable, kNoChecksum };
  Problem problem = Problem::kMismatch;
  InodeId ino;
  FileBlock first;
  BlockCount count;
  DeviceId device;
  DeviceBlock start;
};

// Walks over the extents of the catalog. It uses no inode in memory, takes no lock of a file and fills no cache, so it
// does not disturb other users of the store, who may change and delete files meanwhile.
//
// The walk reads extents and checksums from a snapshot, which may be out of date by the time it reads the device. So a
// difference proves nothing. Each block that differs is looked up again in a read epoch (SpaceManager::EnterRead), in
// which the blocks of the current mapping cannot be reused; only a difference there is damage.
//
// Not thread-safe. Memory: one buffer of kStep bytes.
class DataScrub {
 public:
  static constexpr ByteCount kStep{kMiB};

  static Result<std::unique_ptr<DataScrub>> Create(KvStore& catalog, DeviceSet& devices, SpaceManager& space);

  struct Step {
    ScrubPosition next;                 // where the next step begins
    bool end = false;                   // nothing was left
    ByteCount read;                     // from a device; at most kStep
    std::vector<DamagedRun> damaged;    // in file order
    std::optional<std::string> record;  // a damaged record of the catalog that was skipped
  };
  // Checks the next run of blocks at or after `from`. Returns errors of the catalog.
  Result<Step> Next(const ScrubPosition& from);

 private:
  // A part of an extent inside one checksum segment.
  struct Run {
    InodeId ino;
    FileBlock first;
    BlockCount count;
    DeviceRun place;
  };
  struct Location {
    DeviceId device;
    DeviceBlock block;
    bool operator==(const Location&) const = default;
  };

  DataScrub(KvStore& catalog, DeviceSet& devices, SpaceManager& space, HugePageMemory memory)
      : catalog_(catalog), devices_(devices), space_(space), memory_(std::move(memory)) {}

  void TakeSnapshot(const ScrubPosition& from);
  Result<std::optional<Run>> FindRun(const ScrubPosition& from, std::optional<std::string>* damaged);
  Result<const std::vector<uint32_t>*> Checksums(InodeId ino, uint64_t segment);
  // The blocks of the run that differ, or all if it cannot be read.
  Result<std::vector<FileBlock>> Compare(const Run& run);
  bool IsOnDevice(const DeviceRun& run);

  // The strict check of one block. nullopt: it is intact, or not mapped any more.
  Result<std::optional<DamagedRun>> Confirm(InodeId ino, FileBlock block);
  Result<std::optional<Location>> Locate(InodeId ino, FileBlock block);

  KvStore& catalog_;
  DeviceSet& devices_;
  SpaceManager& space_;
  HugePageMemory memory_;
  std::unique_ptr<KvIterator> extents_, checksums_;  // one snapshot each; null before the first step
  uint64_t steps_ = 0;                               // taken with this snapshot
  // The checksums found last.
  InodeId segment_ino_;
  uint64_t segment_ = 0;
  std::vector<uint32_t> values_;
};

}  // namespace weightfs

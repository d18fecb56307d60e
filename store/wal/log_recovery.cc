// SPDX-License-Identifier: Apache-2.0
// Finds how far a log counts after a crash, and catches an index up.
#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "io/huge_pages.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"

namespace weightfs::wal {
namespace {

// The blocks that a commit of one file has written, and their checksums, as its batch has them.
class CommittedData {
 public:
  explicit CommittedData(const KvBatch& batch) {
    for (const KvBatch::Change& change : batch.changes()) {
      if (change.kind == KvBatch::Change::Kind::kPut) Add(change.key, change.value);
    }
  }

  // True if the devices have these bytes. Uses `memory`.
  bool IsOn(Devices devices, std::span<std::byte> memory) const {
    return std::ranges::all_of(extents_, [&](const auto& found) {
      const auto& [first, extent] = found;
      return extent.generation != version_ || (extent.flags & kExtentUnwritten) != 0 ||
             IsOn(devices, first, extent, memory);
    });
  }

 private:
  void Add(std::string_view key, std::string_view value) {
    switch (key.front()) {
      case keys::kInode:
        if (const auto inode = InodeRecord::Decode(value)) version_ = inode->data_version;
        break;
      case keys::kExtent:
        if (const auto record = ExtentRecord::Decode(key, value)) {
          extents_.emplace_back(FileBlock{keys::ParseIndexed(key)->index}, *record);
        }
        break;
      case keys::kChecksums:
        if (auto checksums = DecodeChecksums(value)) segments_[keys::ParseIndexed(key)->index] = std::move(*checksums);
        break;
      default: break;
    }
  }

  bool IsOn(Devices devices, FileBlock first, const ExtentRecord& extent, std::span<std::byte> memory) const {
    if (extent.device.value >= devices.size()) return false;
    BlockDevice& device = *devices[extent.device.value];
    std::vector<uint32_t> found;
    for (BlockCount done; done < extent.count;) {
      const BlockCount some = std::min(extent.count - done, BlockCount{memory.size() / kBlockSize});
      const auto bytes = memory.first(ToBytes(some).value);
      found.resize(some.value);
      const auto is_there = [&] {
        if (!device.Read(ToBytes(extent.start + done), bytes)) return false;
        Crc32cBlocks(bytes, found.data());
        uint64_t block = (first + done).value;
        return std::ranges::all_of(found, [&](uint32_t sum) { return ChecksumOf(FileBlock{block++}) == sum; });
      };
      for (ReadAttempts attempts; !is_there();) {
        if (!attempts.ReadAgain()) return false;
      }
      done += some;
    }
    return true;
  }

  std::optional<uint32_t> ChecksumOf(FileBlock block) const {
    const auto segment = segments_.find(block.value / keys::kSegmentBlocks);
    const uint64_t index = block.value % keys::kSegmentBlocks;
    if (segment == segments_.end() || index >= segment->second.size()) return std::nullopt;
    return segment->second[index];
  }

  uint64_t version_ = 0;  // of the commit: its extents have this generation
  std::vector<std::pair<FileBlock, ExtentRecord>> extents_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> segments_;
};

Error ReadDiffers() {
  return {ErrorCode::kIo, "the log of the catalog cannot be read twice alike; check the device (dmesg)"};
}

}  // namespace

Result<Tail> FindDurableTail(Devices devices, const Root& root, Version from) {
  ASSIGN_OR_RETURN(Tail tail, FindTail(devices, root, from));
  if (!tail.continues || tail.version.sequence <= tail.durable) return tail;
  ASSIGN_OR_RETURN(const HugePageMemory memory, HugePageMemory::Map(kMiB));
  // The index may have entries behind the mark, too.
  Version good = from.sequence <= tail.durable ? from : root.checkpoint;
  bool differs = false;
  const auto check = [&] {
    return ReplayLog(devices, root, good, tail.version.sequence, [&](const Entry& entry) -> Result<void> {
      if (entry.version.sequence > tail.durable && entry.batch.has_unflushed_data()) {
        differs = !CommittedData(entry.batch).IsOn(devices, {memory.data(), memory.size()});
        if (differs) return ErrorCode::kAgain;
      }
      good = entry.version;
      return {};
    });
  };
  auto checked = check();
  if (checked && good.sequence < from.sequence) {  // damage before what the index has
    good = from;
    checked = check();
  }
  if (!checked && !differs) return checked.error();
  if (differs) {
    tail.clean = false;
  } else if (good != tail.version) {
    return ReadDiffers();
  }
  tail.version = good;
  tail.continues = from.sequence <= good.sequence;
  return tail;
}

Result<void> CatchUp(Devices devices, const Root& root, Version from, const Tail& tail,
                     const std::function<Result<void>(KvBatch)>& apply) {
  ASSIGN_OR_RETURN(const auto replayed, ReplayLog(devices, root, from, tail.version.sequence, [&](const Entry& entry) {
                     return apply(WithVersion(entry.batch, entry.version));
                   }));
  return replayed == tail.version ? Result<void>() : ReadDiffers();
}

}  // namespace weightfs::wal

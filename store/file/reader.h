// SPDX-License-Identifier: Apache-2.0
// Reads of file data: cached data at once, streams through shared read-ahead chunks, everything else directly from the
// device. Every block is checked against its checksum.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "meta/kv_store.h"
#include "store/file/block_reads.h"
#include "store/file/file.h"
#include "store/file/hot_files.h"
#include "store/file/inode.h"
#include "store/file/read_cache.h"
#include "store/types.h"

namespace weightfs {

// Counts the different locations among the last reads of streams. Readers close to each other in a file share one
// location and its read-ahead. Thread-safe.
class StreamTracker {
 public:
  // Records that a stream has read up to `offset`. Returns the current number of locations, at least 1.
  uint64_t Note(InodeId ino, uint64_t offset) EXCLUDES(mutex_) {
    const Location location{ino.value, offset / kNear};
    MutexLock lock(mutex_);
    Location& oldest = recent_[next_++ % recent_.size()];
    if (const auto found = counts_.find(oldest); found != counts_.end() && --found->second == 0) counts_.erase(found);
    oldest = location;
    ++counts_[location];
    return counts_.size();
  }

 private:
  static constexpr uint64_t kNear = 64 * kMiB;
  static constexpr size_t kReads = 64;
  struct Location {
    uint64_t ino = 0, part = 0;
    bool operator==(const Location&) const = default;
  };
  struct Hash {
    size_t operator()(const Location& location) const { return location.ino * 0x9e3779b97f4a7c15 + location.part; }
  };

  Mutex mutex_;
  std::array<Location, kReads> recent_ GUARDED_BY(mutex_);  // no file has the inode number 0
  size_t next_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Location, unsigned, Hash> counts_ GUARDED_BY(mutex_);
};

// Thread-safe. A read is planned under the inode's mutex. The caller fetches what the plan lacks (chunks, memory,
// checksums) without the mutex, and plans again. A plan that lacks nothing is assembled in the same hold of the mutex;
// that cannot fail. Its device reads are submitted without the mutex.
class Reader {
 public:
  struct Counters {
    std::atomic<uint64_t> read_bytes{0};  // requested by callers
    std::atomic<uint64_t> device_bytes{0};
    std::atomic<uint64_t> checksum_errors{0};
  };
  struct Pools {
    BufferPool& large;  // for direct reads that exceed a small buffer
    BufferPool& small;
  };

  Reader(KvStore& catalog, DeviceSet& devices, SpaceManager& space, ReadCache& cache, const Pools& pools, bool verify,
         bool read_only)
      : catalog_(catalog),
        cache_(cache),
        pools_(pools),
        reads_{devices, space, counters_.checksum_errors, verify},
        read_only_(read_only) {}

  // `done` runs in the call or on a completion thread, without locks. `from_devices`: what is in memory is not used,
  // unless it is not on a device yet.
  void Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done,
            bool from_devices = false);

  // Loads [offset, end) of a file of `size` bytes into its hot memory, and waits. Other calls will load the bytes up to
  // `later_end`; there must be room for all. kAgain: the file has changed, or the range is not on the devices yet.
  // kNoMemory: there is no room.
  Result<HotFilePtr> LoadHot(const InodePtr& inode, uint64_t size, uint64_t offset, uint64_t end, uint64_t later_end);

  // Reads one block from the device, for a partial overwrite, and waits. The caller looked up `extent` and `checksum`
  // under the inode's mutex and has been in a read epoch since then.
  Result<void> ReadBlock(InodeId ino, FileBlock block, const ExtentRecord& extent, uint32_t checksum,
                         std::span<std::byte> out);

  const Counters& counters() const { return counters_; }

 private:
  class Request;
  struct Piece;
  struct Plan;
  struct Supplies;
  struct BlockRead;

  uint64_t Advance(ReadStream* stream, uint64_t offset, uint64_t size);
  uint64_t ReadAheadChunks(uint64_t sequence, uint64_t places) const;
  BufferPool& PoolFor(uint64_t bytes) const;
  static bool IsInOrder(uint64_t offset, uint64_t size, uint64_t sequence);
  bool UsesChunks(const Inode& inode, uint64_t offset, uint64_t size, uint64_t sequence) const REQUIRES(inode.mutex);
  bool CanLoadChunk(const Inode& inode, uint64_t index) const REQUIRES(inode.mutex);

  Plan MakePlan(Inode& inode, uint64_t offset, uint64_t end, uint64_t sequence, bool from_devices, Supplies& supplies)
      REQUIRES(inode.mutex);
  void PlanDirect(Inode& inode, uint64_t offset, uint64_t end, Supplies& supplies, Plan* plan) REQUIRES(inode.mutex);
  BlockRead PlanPiece(File& file, InodeId ino, const ExtentMap::Piece& piece, ChecksumSegments& loaded,
                      std::vector<uint64_t>* missing);
  bool TakeMemory(uint64_t bytes, Supplies* supplies);
  void Fetch(const InodePtr& inode, const Plan& plan, Supplies* supplies);
  bool LoadChunk(const InodePtr& inode, uint64_t index, ReadCache::Purpose purpose, bool in_order,
                 std::vector<std::shared_ptr<BlockReads>>* loads);
  Result<ChunkPtr> LoadHotChunk(const InodePtr& inode, const HotFilePtr& hot, uint64_t index,
                                std::vector<std::shared_ptr<BlockReads>>* loads);
  bool BecomesHot(const Inode& inode) const REQUIRES(inode.mutex);
  HotFilePtr HotByReads(const InodePtr& inode, bool in_order);
  bool LacksHotChunk(const Inode& inode, uint64_t index) const REQUIRES(inode.mutex);
  HotFilePtr BeginHot(const InodePtr& inode, HotFilePtr made);
  std::vector<BlockRead> PlanChunk(const Inode& inode, uint64_t index, ChecksumSegments& loaded,
                                   std::vector<uint64_t>* missing) REQUIRES(inode.mutex);
  // `drop` runs if a part of the chunk could not be read.
  std::shared_ptr<BlockReads> BeginChunk(const Inode& inode, const ChunkPtr& chunk, std::function<void()> drop,
                                         std::span<const BlockRead> planned) REQUIRES(inode.mutex);
  void Add(const BlockRead& read, BlockCount skip, BlockCount count, std::byte* memory, BlockReads& reads);
  std::shared_ptr<BlockReads> Assemble(Inode& inode, Plan& plan, Supplies& supplies,
                                       const std::shared_ptr<Request>& request) REQUIRES(inode.mutex);
  void ReadAhead(const InodePtr& inode, uint64_t end, uint64_t sequence);

  KvStore& catalog_;
  ReadCache& cache_;
  const Pools pools_;
  StreamTracker streams_;
  Counters counters_;
  const BlockReads::Context reads_;
  const bool read_only_;
};

}  // namespace weightfs

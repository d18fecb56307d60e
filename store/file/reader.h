// SPDX-License-Identifier: Apache-2.0
// The way of a read: what is in memory at once, streams through shared read-ahead chunks, the rest straight from the
// device; every block checked against its checksum.
#pragma once

#include <atomic>
#include <memory>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/inode.h"
#include "store/file/read_cache.h"
#include "store/file/stream_tracker.h"
#include "store/file/write_back.h"
#include "store/types.h"

namespace weightfs {

// Thread-safe.
class Reader {
 public:
  struct Counters {
    std::atomic<uint64_t> read_bytes{0};  // of callers
    std::atomic<uint64_t> device_bytes{0};
    std::atomic<uint64_t> checksum_errors{0};
  };
  struct Pools {
    BufferPool& chunks;  // read-ahead; never waited for
    BufferPool& large;   // direct reads of more than a small buffer
    BufferPool& small;
  };

  Reader(KvStore& catalog, DeviceSet& devices, SpaceManager& space, const Pools& pools, bool verify)
      : catalog_(catalog), devices_(devices), space_(space), pools_(pools), cache_(pools.chunks), verify_(verify) {}

  // The file's extents are loaded. `done` runs here or on a completion thread, without locks.
  void Read(const InodePtr& inode, ByteOffset offset, ByteCount size, ReadStream* stream, ReadDone done);

  // One block as it lies on the device, for a partial overwrite; waits. The extent is what the caller saw under the
  // inode's mutex, `checksum` what belongs to it, and the caller holds a read ticket since then.
  Result<void> ReadBlock(InodeId ino, const ExtentRecord& extent, uint32_t checksum, std::span<std::byte> out);

  ReadCache& cache() { return cache_; }
  const Counters& counters() const { return counters_; }

 private:
  class Request;
  class Load;
  class Transfer;
  struct Stage;
  struct Plan;
  struct Part;

  uint64_t Advance(ReadStream* stream, uint64_t offset, uint64_t size);
  uint64_t ReadAheadChunks(uint64_t run, uint64_t places) const;
  BufferPool& PoolFor(uint64_t bytes) const;
  bool UsesChunks(const Inode& inode, uint64_t offset, uint64_t size, uint64_t run) const REQUIRES(inode.mutex);
  ChunkPtr StartChunk(const InodePtr& inode, uint64_t index, ReadCache::Purpose purpose, Stage* stage)
      REQUIRES(inode->mutex);
  void PlanTransfers(const InodePtr& inode, FileBlock first, BlockCount count, std::byte* memory,
                     const std::shared_ptr<Load>& load, Stage* stage) REQUIRES(inode->mutex);
  std::vector<Part> LayOut(const InodePtr& inode, uint64_t offset, uint64_t end, uint64_t run, Plan* plan)
      REQUIRES(inode->mutex);
  void LayOutDirect(const InodePtr& inode, uint64_t offset, uint64_t end, std::vector<Part>* parts)
      REQUIRES(inode->mutex);
  void Assemble(const InodePtr& inode, std::vector<Part>& parts, const std::vector<Buffer>& buffers,
                const std::shared_ptr<Request>& request, Plan* plan) REQUIRES(inode->mutex);

  KvStore& catalog_;
  DeviceSet& devices_;
  SpaceManager& space_;
  const Pools pools_;
  ReadCache cache_;
  StreamTracker streams_;
  const bool verify_;
  Counters counters_;
};

}  // namespace weightfs

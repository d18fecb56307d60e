// SPDX-License-Identifier: Apache-2.0
// CRC-32C of the blocks of one file: what is in memory ahead of the catalog, and a small cache of what is in it.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/result.h"
#include "common/units.h"
#include "meta/keys.h"
#include "meta/kv_store.h"

namespace weightfs {

// Adds to `batch` the deletion of the segments [first, end) of a file's checksums in the catalog, there or not.
void DeleteChecksums(InodeId ino, uint64_t first, uint64_t end, KvBatch* batch);

// Three layers, the first that knows a block answers: blocks written since the last seal, those of the commit under
// way, the catalog. Externally synchronised (Inode::mutex): a commit changes the catalog and drops its layer under the
// same lock, so a look-up sees the checksum that belongs to the mapping of that moment.
class ChecksumTable {
 public:
  void Set(FileBlock first, std::span<const uint32_t> checksums);

  // The checksums of [first, first + out.size()), reading segments of the catalog as needed. kCorrupt when a block's
  // segment is missing, short or damaged.
  Result<void> Get(KvStore& catalog, InodeId ino, FileBlock first, std::span<uint32_t> out);

  // Moves what was set since the last seal into the layer of the commit under way, which must be empty: the segments of
  // a file of `size` bytes, for those behind its end would stay in the catalog.
  void Seal(uint64_t size);

  // Appends the sealed segments, merged with the catalog's, to `batch`.
  Result<void> AppendSealed(KvStore& catalog, InodeId ino, KvBatch* batch);

  // The batch of AppendSealed is in the catalog.
  void DropSealed();

  void Clear();

 private:
  struct Segment {
    std::bitset<keys::kSegmentBlocks> known;
    std::array<uint32_t, keys::kSegmentBlocks> checksums{};
  };
  using Layer = std::map<uint64_t, std::unique_ptr<Segment>>;

  // Segments of the catalog. A file keeps kOwn, and more while all files together have less than kShared (16 MiB).
  class Cache {
   public:
    Cache() = default;
    ~Cache() { Clear(); }
    Cache(const Cache&) = delete;
    Cache& operator=(const Cache&) = delete;
    const std::vector<uint32_t>* Find(uint64_t segment) const;
    const std::vector<uint32_t>* Add(uint64_t segment, std::vector<uint32_t> checksums);
    void Erase(uint64_t segment);
    void Clear();

   private:
    static constexpr size_t kOwn = 64, kShared = 16384;
    static inline std::atomic<size_t> total_{0};  // segments in all caches of the process: a bound on memory
    std::unordered_map<uint64_t, std::vector<uint32_t>> segments_;
  };

  // The segment as the catalog has it (empty when absent), from the cache where it is there.
  Result<const std::vector<uint32_t>*> Catalog(KvStore& catalog, InodeId ino, uint64_t segment);

  Layer fresh_, sealed_;
  Cache cached_;
};

}  // namespace weightfs

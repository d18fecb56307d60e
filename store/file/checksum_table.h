// SPDX-License-Identifier: Apache-2.0
// CRC-32C of the blocks of one file: what is in memory ahead of the catalog, and a small cache of what the catalog has.
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

// Segments of one file's checksums, read from the catalog without the inode's mutex. They are valid for a ChecksumTable
// as long as its version() is the one they were read under.
class ChecksumSegments {
 public:
  // Forgets everything unless `version` is the one that the segments belong to.
  void SetVersion(uint64_t version);
  // Reads the segments that are not here yet. An error of one segment is kept in its place.
  void Load(KvStore& catalog, InodeId ino, std::span<const uint64_t> segments);

 private:
  friend class ChecksumTable;
  using Segment = Result<std::vector<uint32_t>>;
  uint64_t version_ = 0;
  std::unordered_map<uint64_t, Segment> segments_;
};

// Three layers, the first that knows a block answers: blocks written since the last seal, those of the commit under
// way, the catalog. No call reads the catalog: it names the segments that it lacks, and the caller loads them into a
// ChecksumSegments without the inode's mutex and asks again. Externally synchronized (Inode::mutex): a commit changes
// the catalog, drops its layer and moves version() under the same lock, so an answer belongs to the mapping of its
// moment.
class ChecksumTable {
 public:
  void Set(FileBlock first, std::span<const uint32_t> checksums);

  // Fills `out` with the checksums of [first, first + out.size()).
  //
  // Returns: true when `out` is filled; false when segments have to be loaded first, whose numbers are appended to
  // `missing`. kCorrupt when a block's segment is missing in the catalog, short or damaged; the error of reading it.
  Result<bool> Get(FileBlock first, std::span<uint32_t> out, ChecksumSegments& loaded, std::vector<uint64_t>* missing);

  // Moves what was set since the last seal into the layer of the commit under way, which must be empty: the segments of
  // a file of `size` bytes, for those behind its end would stay in the catalog.
  void Seal(uint64_t size);

  // Appends the sealed segments, merged with the catalog's, to `batch`. Returns false, and appends nothing, when
  // segments have to be loaded first; their numbers are appended to `missing`.
  Result<bool> AppendSealed(InodeId ino, ChecksumSegments& loaded, std::vector<uint64_t>* missing, KvBatch* batch);

  // The batch of AppendSealed is in the catalog.
  void FinishCommit();

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
    void Add(uint64_t segment, const std::vector<uint32_t>& checksums);
    void Erase(uint64_t segment);
    void Clear();

   private:
    static constexpr size_t kOwn = 64, kShared = 16384;
    static inline std::atomic<size_t> total_{0};  // segments in all caches of the process: a bound on memory
    std::unordered_map<uint64_t, std::vector<uint32_t>> segments_;
  };

  // The segment as the catalog has it, empty when absent; null when it is not loaded.
  Result<const std::vector<uint32_t>*> Stored(uint64_t segment, ChecksumSegments& loaded);

  Layer fresh_, sealed_;
  Cache cached_;
  uint64_t version_ = 1;  // grows whenever the segments of the catalog change
};

}  // namespace weightfs

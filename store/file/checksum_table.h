// SPDX-License-Identifier: Apache-2.0
// CRC-32C of the blocks of one file: the values that the catalog does not have yet, and a small cache of those it has.
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

// Adds to `batch` the deletion of the segments [first, end) of a file's checksums. Segments that do not exist are
// ignored.
void DeleteChecksums(InodeId ino, uint64_t first, uint64_t end, KvBatch* batch);

// Segments of one file's checksums, read from the catalog without the inode's mutex. They are valid for a ChecksumTable
// as long as its version() is the version that they were read under.
class ChecksumSegments {
 public:
  // Drops all segments unless they belong to `version`.
  void SetVersion(uint64_t version);
  // Reads the segments that are not loaded yet. An error of one segment is stored in its place.
  void Load(KvStore& catalog, InodeId ino, std::span<const uint64_t> segments);

 private:
  friend class ChecksumTable;
  using Segment = Result<std::vector<uint32_t>>;
  uint64_t version_ = 0;
  std::unordered_map<uint64_t, Segment> segments_;
};

// Checksums in three layers; the first layer that has a block wins: blocks written since the last seal, blocks of the
// commit in progress, the catalog. No call reads the catalog. A call names the segments that it lacks; the caller loads
// them into a ChecksumSegments without the inode's mutex and calls again. Externally synchronized (Inode::mutex): a
// commit changes the catalog, drops its layer and advances version() under one hold of that mutex, so an answer always
// matches the current mapping.
class ChecksumTable {
 public:
  void Set(FileBlock first, std::span<const uint32_t> checksums);

  // Fills `out` with the checksums of [first, first + out.size()).
  //
  // Returns true when `out` is filled; false when segments must be loaded first, whose numbers are appended to
  // `missing`. Returns kCorrupt when a block's segment is missing in the catalog, too short or damaged, or the error of
  // reading it.
  Result<bool> Get(FileBlock first, std::span<uint32_t> out, ChecksumSegments& loaded, std::vector<uint64_t>* missing);

  // Moves the checksums set since the last seal into the layer of the commit in progress, which must be empty. Drops
  // segments beyond a file size of `size` bytes, because they would stay in the catalog.
  void Seal(uint64_t size);

  // Appends the sealed segments, merged with the catalog's, to `batch`. From segment `deleted` on, the catalog's are
  // deleted by the same batch and not read. Returns false, and appends nothing, when segments must be loaded first;
  // their numbers are appended to `missing`.
  Result<bool> AppendSealed(InodeId ino, uint64_t deleted, ChecksumSegments& loaded, std::vector<uint64_t>* missing,
                            KvBatch* batch);

  // Call this when the batch of AppendSealed is in the catalog.
  void FinishCommit();

  void Clear();
  // The segments that changed since the last seal.
  size_t changed_segments() const { return fresh_.size(); }

 private:
  struct Segment {
    std::bitset<keys::kSegmentBlocks> known;
    std::array<uint32_t, keys::kSegmentBlocks> checksums{};
  };
  using Layer = std::map<uint64_t, std::unique_ptr<Segment>>;

  // A cache of catalog segments. A file keeps up to kOwn, and more while all files together have fewer than kShared (16
  // MiB).
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
    static inline std::atomic<size_t> total_{0};  // segments in all caches of the process; bounds memory
    std::unordered_map<uint64_t, std::vector<uint32_t>> segments_;
  };

  // The segment in the catalog, empty when it does not exist; null when it is not loaded.
  Result<const std::vector<uint32_t>*> Stored(uint64_t segment, ChecksumSegments& loaded);

  Layer fresh_, sealed_;
  Cache cached_;
  uint64_t version_ = 1;  // incremented whenever the segments in the catalog change
};

}  // namespace weightfs

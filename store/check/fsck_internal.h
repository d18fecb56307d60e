// SPDX-License-Identifier: Apache-2.0
// The parts of a check, and the reader of its data. Included by fsck*.cc only.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "engine/block_device.h"
#include "io/buffer.h"
#include "meta/keys.h"
#include "meta/kv_store.h"
#include "meta/records.h"
#include "store/check/fsck.h"

namespace weightfs::fsck {

class DataReader;

// Records between two progress reports and checks for cancellation.
inline constexpr uint64_t kTickInterval = 1024;

// The check's view of an inode. A pass corrects the problems that it finds here; `rewrite` marks a difference from the
// catalog.
struct Node {
  uint64_t ino = 0;
  uint64_t parent = 0;        // from the record
  uint64_t place = 0;         // the directory whose entry refers to this inode; 0: none
  uint64_t size = 0;          // from the record
  uint64_t blocks = 0;        // from the record; corrected by CheckCounts
  uint64_t found_blocks = 0;  // blocks in its extents
  uint64_t found_end = 0;     // the file block after its last extent
  uint64_t version = 0;       // the latest generation of its extents
  uint32_t mode = 0;          // 0: damaged, and no other record has given its type yet
  uint32_t links = 0, flags = 0;
  uint32_t names = 0;  // entries that refer to this inode
  uint32_t subdirectories = 0;
  bool damaged = false;  // rebuild the record
  bool orphan = false;
  bool lost = false;  // gets a name in lost+found
  bool rewrite = false;
  bool attributes = false;                     // has extended attributes
  bool publication = false;                    // of a directory: it was published, with everything below it
  bool publishing = false;                     // or that was interrupted: the next mount reverts it
  bool reaches_root = false, on_path = false;  // used while the tree is walked

  bool IsDirectory() const { return S_ISDIR(mode); }
  bool IsRegular() const { return S_ISREG(mode); }
  // The size of a file. When its record is damaged, the file ends with its last extent.
  uint64_t SizeAfterRepair() const { return damaged ? found_end * kBlockSize : size; }
};

struct Extent {
  uint64_t ino;
  uint64_t first;
  ExtentRecord record;
  bool dropped = false;  // by CheckOverlaps

  uint64_t end() const { return first + record.count.value; }
  bool IsWritten() const { return (record.flags & kExtentUnwritten) == 0; }
};

// The checksums that one segment of a file must have.
struct Segment {
  uint64_t ino, segment;
  uint64_t entries;  // minimum number
};

// The state of one check. Run calls the passes in order; each relies on the corrections of the passes before it. Repair
// writes the differences to the catalog. Not thread-safe.
class Checker {
 public:
  Checker(KvStore& catalog, std::span<BlockDevice* const> devices, const FsckOptions& options)
      : catalog_(catalog), devices_(devices), options_(options) {}
  Result<FsckReport> Run();

 private:
  // Names (fsck_names.cc).
  Result<void> ScanInodes();
  Result<void> ScanOrphans();
  Result<void> ScanEntries();
  Result<void> CheckTree();
  Result<void> TakeInode(InodeId ino, std::string_view value);
  Result<void> TakeEntry(std::string_view key, std::string_view value);
  Result<void> TakeDirectoryEntry(Node& node, InodeId parent, std::string_view key);
  Result<void> ConnectToRoot(Node& node);
  void CheckRoot();
  void CheckLost();
  void CheckCounts();
  uint32_t PublishedFlag(const Node& node);
  Result<void> ScanAttributes();
  Result<void> ScanPublishing();
  Result<void> CheckFacts();
  // An optional fact may be missing, and is removed if it is wrong.
  Result<void> CheckFact(const char* name, uint64_t least, uint64_t most, bool optional = false);

  // Data (fsck_data.cc).
  Result<void> ScanExtents();
  DeviceBlock EndOf(DeviceId device) const;
  Result<void> TakeExtent(std::string_view key, std::string_view value);
  void CheckOverlaps();
  Result<void> ScanChecksums();
  std::optional<Segment> NextSegment();
  Result<void> VerifyData();
  Result<void> RebuildChecksums(DataReader& reader, const Segment& segment);

  // Writing (fsck_repair.cc).
  Result<void> Repair();
  Result<void> MakeLostAndFound();
  void SkipDroppedNumbers();
  Result<void> NameLost(Node& node);
  Result<void> RewriteInode(const Node& node);
  Result<void> Put(std::string key, std::string value);
  Result<void> WriteBatch();

  // Calls visit(key, value) for every record of a kind.
  template <typename Visit>
  Result<void> ForEach(char kind, std::string_view step, Visit visit);
  // Reports the progress of the current pass.
  void ShowProgress(std::string_view step) const;
  // Starts the next pass of the progress report.
  void StartPass(Progress::Unit unit, uint64_t total);
  // Returns kShutdown once the check is canceled.
  Result<void> CheckCancelled() const;
  // Counts one repair.
  void CountRepair();

  // Records a problem of, or in, an inode (0: of none).
  void Report(FindingKind kind, uint64_t ino, std::string what);
  void Drop(std::string_view key) { drops_.emplace_back(key); }
  // The same for a record, which is then deleted.
  Result<void> Reject(std::string_view key, FindingKind kind, uint64_t ino, std::string what) {
    Report(kind, ino, std::move(what));
    Drop(key);
    return {};
  }
  Node* Find(uint64_t ino);
  // The first names of inodes in a directory, for messages and repairs. Searches the directory once.
  using Names = std::map<uint64_t, std::string>;  // by inode
  Result<Names> NamesIn(uint64_t directory, const std::set<uint64_t>& inodes);
  Result<std::optional<std::string>> NameIn(uint64_t directory, uint64_t ino);
  void FindNames();
  std::string PathOf(uint64_t ino);
  void FinishTexts();

  KvStore& catalog_;
  const std::span<BlockDevice* const> devices_;
  const FsckOptions& options_;

  std::vector<Node> nodes_;                                // by number
  std::vector<Extent> extents_;                            // by inode and file block
  std::vector<std::string> drops_;                         // keys to delete
  std::vector<std::pair<std::string, std::string>> puts_;  // records to write
  std::vector<Segment> missing_checksums_;
  uint64_t inode_records_ = 0;
  uint64_t publications_ = 0;  // interrupted ones included
  uint64_t next_ino_ = 0;      // the inode number bound to write, at least as large as needed
  size_t segment_extent_ = 0;  // where NextSegment continues
  uint64_t segment_next_ = 0;

  Progress progress_;  // of the current pass, without its step
  unsigned pass_ = 0;
  FsckReport report_;
  std::vector<uint64_t> subjects_;  // the inode of each finding
  Names names_;                     // of the subjects and the directories above them
  KvBatch batch_;
  uint64_t lost_and_found_ = 0;
};

template <typename Visit>
Result<void> Checker::ForEach(char kind, std::string_view step, Visit visit) {
  const std::string prefix = keys::KindPrefix(kind);
  // EstimateSize is approximate: the pass ends at its total whatever the actual sizes of the records.
  const uint64_t end = progress_.done + catalog_.EstimateSize(prefix);
  const auto iterator = catalog_.NewIterator(prefix);
  for (uint64_t records = 0; iterator->Valid(); iterator->Next(), ++records) {
    if (records % kTickInterval == 0) {
      RETURN_IF_ERROR(CheckCancelled());
      ShowProgress(step);
    }
    RETURN_IF_ERROR(visit(iterator->key(), iterator->value()));
    progress_.done = std::min(progress_.done + iterator->key().size() + iterator->value().size(), end);
  }
  progress_.done = end;
  return iterator->status();
}

// Quotes a name for output. Names hold arbitrary bytes; control characters become question marks.
std::string Quoted(std::string_view name);

inline constexpr uint64_t kChunkBlocks = 2 * kMiB / kBlockSize;

// Reads written extents in order, in chunks of at most kChunkBlocks, several requests ahead of the caller. Not
// thread-safe.
class DataReader {
 public:
  struct Chunk {
    const Extent* extent;
    uint64_t first, count;  // file blocks
  };
  struct Piece {
    Chunk chunk;
    std::span<const std::byte> data;  // valid until the next call
    Result<void> result;
  };

  // Keeps up to `depth` requests in flight for the `extents`, which Next reads.
  static Result<std::unique_ptr<DataReader>> Create(std::span<BlockDevice* const> devices, size_t depth,
                                                    std::span<const Extent> extents = {});
  ~DataReader();  // waits for requests in flight

  // Returns the next chunk; nullopt after the last one.
  std::optional<Piece> Next();

  // Reads one block from the device and returns its checksum.
  Result<uint32_t> ReadOne(const Extent& extent, uint64_t block);

 private:
  struct Read;
  DataReader(std::span<BlockDevice* const> devices, size_t depth, std::span<const Extent> extents);
  // Returns false after the last chunk.
  bool SubmitNext();

  const std::span<BlockDevice* const> devices_;
  const size_t depth_;
  std::span<const Extent> extents_;  // not submitted yet
  uint64_t skip_ = 0;                // blocks of the first one that are
  std::unique_ptr<BufferPool> pool_;
  Buffer scratch_;
  std::unique_ptr<Read> current_;
  std::deque<std::unique_ptr<Read>> queue_;
};

}  // namespace weightfs::fsck

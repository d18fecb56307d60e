// Many files at once, with their content; and permissions where the kernel does not look.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "meta/keys.h"
#include "store/acl.h"
#include "store/namespace.h"
#include "store/namespace_internal.h"
#include "store/store_facts.h"

namespace weightfs {
namespace {

constexpr uint16_t kWriteAndSearch = 3;

// Hands out the blocks of runs, and their checksums, file by file.
class Content {
 public:
  Content(std::span<const DeviceRun> runs, std::span<const uint32_t> checksums) : runs_(runs), checksums_(checksums) {}

  // Appends the records of a file of the next `count` blocks.
  void Append(InodeId ino, BlockCount count, uint64_t generation, KvBatch* batch) {
    for (FileBlock at; at.value < count.value;) {
      const BlockRun& run = runs_.front().run;
      ExtentRecord record;
      record.device = runs_.front().device;
      record.start = run.start + used_;
      record.count = {std::min({run.count.value - used_.value, count.value - at.value, kMaximumExtentBlocks})};
      record.generation = generation;
      std::string key = keys::Extent(ino, at);
      std::string value = record.Encode(key);
      batch->Put(std::move(key), std::move(value));
      at += record.count;
      used_ += record.count;
      if (used_ < run.count) continue;
      runs_ = runs_.subspan(1);
      used_ = {};
    }
    for (uint64_t first = 0; first < count.value; first += keys::kSegmentBlocks) {
      const auto segment = checksums_.first(std::min<uint64_t>(keys::kSegmentBlocks, count.value - first));
      batch->Put(keys::Checksums(ino, first / keys::kSegmentBlocks), EncodeChecksums({segment.begin(), segment.end()}));
      checksums_ = checksums_.subspan(segment.size());
    }
  }

 private:
  std::span<const DeviceRun> runs_;
  std::span<const uint32_t> checksums_;
  BlockCount used_;   // of the first run
};

Result<void> CheckNames(std::span<const DirectFile> files, size_t* failed) {
  std::unordered_set<std::string_view> names;
  for (size_t index = 0; index < files.size(); ++index) {
    *failed = index;
    RETURN_IF_ERROR(CheckName(files[index].name));
    if (IsDots(files[index].name)) return ErrorCode::kIsDirectory;
    if (!names.insert(files[index].name).second) return ErrorCode::kInvalid;
    if (files[index].size > kMaximumFileSize) return ErrorCode::kFileTooBig;
  }
  *failed = files.size();
  return {};
}

}  // namespace

Result<void> Namespace::CheckAccess(const InodePtr& inode, const Credentials& who, uint16_t wanted) {
  uint32_t mode, uid, gid;
  {
    MutexLock lock(inode->mutex);
    if (inode->deleted) return ErrorCode::kStale;
    mode = inode->attributes.mode;
    uid = inode->attributes.uid;
    gid = inode->attributes.gid;
  }
  if (who.uid == 0) return {};
  const auto bytes = ReadAttribute(inode->id, kAccessAclName);
  if (bytes) {
    const auto acl = Acl::Decode(*bytes);
    if (!acl) return Damaged(inode->id, "its access control list is damaged");
    if (!acl->empty()) return acl->Permits(who, uid, gid, wanted) ? Result<void>() : ErrorCode::kAccess;
  } else if (bytes.error().code != ErrorCode::kNoAttribute) {
    return bytes.error();
  }
  const unsigned shift = who.uid == uid ? 6 : who.Has(gid) ? 3 : 0;
  if (((mode >> shift) & wanted) != wanted) return ErrorCode::kAccess;
  return {};
}

// What has the names now, one entry for each that somebody has.
Result<void> Namespace::FindVictims(const InodePtr& directory, const Credentials& who,
                                    std::span<const DirectFile> files, std::vector<InodePtr>* victims,
                                    size_t* failed) {
  bool sticky;
  uint32_t owner;
  {
    MutexLock lock(directory->mutex);
    sticky = (directory->attributes.mode & S_ISVTX) != 0;
    owner = directory->attributes.uid;
  }
  for (size_t index = 0; index < files.size(); ++index) {
    *failed = index;
    ASSIGN_OR_RETURN(Place place, FindPlace(directory->id, files[index].name));
    if (place.inode == nullptr) continue;
    if (S_ISDIR(place.type)) return ErrorCode::kIsDirectory;
    MutexLock lock(place.inode->mutex);
    if (sticky && who.uid != 0 && who.uid != owner && who.uid != place.inode->attributes.uid) {
      return ErrorCode::kPermission;
    }
    lock.Unlock();
    victims->push_back(std::move(place.inode));
  }
  *failed = files.size();
  return {};
}

Result<void> Namespace::PublishLocked(const InodePtr& directory, const Credentials& who, uint32_t mode,
                                      std::span<const DirectFile> files, std::span<const DeviceRun> runs,
                                      std::span<const uint32_t> checksums, const std::vector<InodePtr>& victims) {
  CreateRequest request;
  request.mode = S_IFREG | (mode & 0777);
  request.uid = who.uid;
  request.gid = who.gid;
  ASSIGN_OR_RETURN(const InodeRecord asked, NewRecord(request));
  InodeRecord record = asked;
  KvBatch inherited;
  uint64_t bound = 0;
  const InodeId first = NextInodeLocked(files.size(), &inherited, &bound);
  for (size_t index = 0; index < files.size(); ++index) {
    record = asked;   // All inherit the same, each under its own number.
    RETURN_IF_ERROR(InheritAcl(directory, InodeId{first.value + index}, request, &record, &inherited));
  }
  std::vector<InodePtr> members = victims;
  members.push_back(directory);
  InodeTransaction transaction(catalog_, members);
  InodeRecord& above = transaction.record(directory);
  if (above.links == 0) return ErrorCode::kNotFound;
  const Timestamp now = Timestamp::Now();
  record.accessed = record.modified = record.changed = record.created = above.modified = above.changed = now;
  if ((above.mode & S_ISGID) != 0) record.gid = above.gid;
  record.data_version = 1;

  KvBatch& batch = transaction.batch();
  batch.Append(std::move(inherited));
  Content content(runs, checksums);
  for (size_t index = 0; index < files.size(); ++index) {
    const InodeId ino{first.value + index};
    const BlockCount blocks = BlocksFor(ByteCount{files[index].size});
    record.size = files[index].size;
    record.blocks = blocks.value;
    batch.Put(keys::Entry(directory->id, files[index].name), EntryRecord{ino, S_IFREG}.Encode());
    batch.Put(keys::Inode(ino), record.Encode());
    content.Append(ino, blocks, record.data_version, &batch);
  }
  // Those without a link left go one by one, in batches of their own, once they are orphans in the catalog.
  std::vector<InodePtr> orphans;
  for (const InodePtr& victim : victims) {
    InodeRecord& gone = transaction.record(victim);
    if (!DropLink(gone)) return Damaged(victim->id, "it has an entry but no links");
    gone.changed = now;
    if (gone.links > 0) continue;
    batch.Put(keys::Orphan(victim->id), "");
    orphans.push_back(victim);
  }
  batch.Put(keys::Store(kInodeCountFact), EncodeFact(inode_count_ + files.size()));
  RETURN_IF_ERROR(transaction.Commit());
  next_ino_ += files.size();
  ino_bound_ = bound;
  inode_count_ += files.size();
  for (const InodePtr& orphan : orphans) orphans_.emplace(orphan->id, orphan);
  return {};
}

Result<void> Namespace::Publish(InodeId parent, const Credentials& who, uint32_t mode,
                                std::span<const DirectFile> files, std::span<const DeviceRun> runs,
                                std::span<const uint32_t> checksums, size_t* failed) {
  *failed = files.size();
  RETURN_IF_ERROR(CheckWritable());
  RETURN_IF_ERROR(CheckNames(files, failed));
  std::vector<InodePtr> victims;
  {
    MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(parent));
    RETURN_IF_ERROR(CheckAccess(directory, who, kWriteAndSearch));
    RETURN_IF_ERROR(FindVictims(directory, who, files, &victims, failed));
    RETURN_IF_ERROR(PublishLocked(directory, who, mode, files, runs, checksums, victims));
  }
  for (const InodePtr& victim : victims) DeleteOrphan(victim);
  return {};
}

}  // namespace weightfs

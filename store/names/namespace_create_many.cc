// SPDX-License-Identifier: Apache-2.0
// Creation of many files with their content, and the permission checks for it.
#include <fmt/format.h>
#include <linux/capability.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "meta/keys.h"
#include "meta/records.h"
#include "store/names/acl.h"
#include "store/names/namespace.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// Distributes the blocks of runs, and their checksums, to files in order.
class Content {
 public:
  Content(std::span<const DeviceRun> runs, std::span<const uint32_t> checksums) : runs_(runs), checksums_(checksums) {}

  // Appends the records of a file that consists of the next `count` blocks.
  void Append(InodeId ino, BlockCount count, uint64_t generation, KvBatch* extents, KvBatch* sums) {
    for (FileBlock at; at.value < count.value;) {
      const BlockRun& run = runs_.front().run;
      ExtentRecord record;
      record.device = runs_.front().device;
      record.start = run.start + used_;
      record.count = {std::min({run.count.value - used_.value, count.value - at.value, kMaximumExtentBlocks})};
      record.generation = generation;
      std::string key = keys::Extent(ino, at);
      std::string value = record.Encode(key);
      extents->Put(std::move(key), std::move(value));
      at += record.count;
      used_ += record.count;
      if (used_ < run.count) continue;
      runs_ = runs_.subspan(1);
      used_ = {};
    }
    for (uint64_t first = 0; first < count.value; first += keys::kSegmentBlocks) {
      const auto segment = checksums_.first(std::min<uint64_t>(keys::kSegmentBlocks, count.value - first));
      sums->Put(keys::Checksums(ino, first / keys::kSegmentBlocks), EncodeChecksums({segment.begin(), segment.end()}));
      checksums_ = checksums_.subspan(segment.size());
    }
  }

 private:
  std::span<const DeviceRun> runs_;
  std::span<const uint32_t> checksums_;
  BlockCount used_;  // in the first run
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

// capabilities(7): true when `who` may do `wanted` regardless of the file's permissions.
bool OverridesPermissions(const Credentials& who, bool directory, uint16_t wanted) {
  if (who.Can(CAP_DAC_OVERRIDE)) return true;
  const uint16_t looks = Namespace::kMayRead | (directory ? Namespace::kMaySearch : 0);
  return (wanted & ~looks) == 0 && who.Can(CAP_DAC_READ_SEARCH);
}

// Gives a record the permission bits of the regular file that it replaces, and its owner and group as far as `who` may
// set them (chown(2)). Returns false for other inodes.
bool TakeOver(const Credentials& who, Inode& old, InodeRecord* record) {
  MutexLock lock(old.mutex);
  const InodeRecord& attributes = old.attributes;
  if (!S_ISREG(attributes.mode)) return false;
  record->mode = (record->mode & ~0777U) | (attributes.mode & 0777);
  if (who.Can(CAP_CHOWN)) record->uid = attributes.uid;
  if (who.Can(CAP_CHOWN) || who.Has(attributes.gid)) record->gid = attributes.gid;
  return true;
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
  if (OverridesPermissions(who, S_ISDIR(mode), wanted)) return {};
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

// The files of one CreateMany call. Everything possible is looked up and prepared without Namespace::mutex_.
struct Namespace::ManyFiles {
  const Credentials& who;
  std::span<const DirectFile> files;
  InodePtr directory;
  // Inode::changes of the directory before the names were looked up; UINT64_MAX: look them up again.
  uint64_t seen = 0;
  std::vector<InodePtr> replaced;  // the inode that has the name of each file, or null
  KvBatch batch;                   // the records of the new files
};

// Returns the inode that has the name of a file; null when there is none. Checks that the file may replace it.
Result<InodePtr> Namespace::FindReplacedInode(const ManyFiles& work, std::string_view name) {
  ASSIGN_OR_RETURN(const auto entry, FindEntry(work.directory->id, name));
  if (!entry) return InodePtr();
  auto inode = inodes_.Get(entry->ino);
  if (!inode) return inode.error();
  bool sticky;
  uint32_t owner;
  {
    MutexLock lock(work.directory->mutex);
    sticky = (work.directory->attributes.mode & S_ISVTX) != 0;
    owner = work.directory->attributes.uid;
  }
  MutexLock lock((*inode)->mutex);
  if ((*inode)->IsDirectory()) return ErrorCode::kIsDirectory;
  const bool own = work.who.Can(CAP_FOWNER) || work.who.uid == owner || work.who.uid == (*inode)->attributes.uid;
  if (sticky && !own) return ErrorCode::kPermission;
  return inode;
}

Result<void> Namespace::FindReplaced(ManyFiles& work, size_t* failed) {
  {
    MutexLock lock(work.directory->mutex);
    work.seen = work.directory->changes;
  }
  for (size_t index = 0; index < work.files.size(); ++index) {
    *failed = index;
    auto replaced_inode = FindReplacedInode(work, work.files[index].name);
    if (!replaced_inode &&
        replaced_inode.error().code == ErrorCode::kStale) {  // deleted meanwhile: look the name up again
      work.seen = UINT64_MAX;
      replaced_inode = InodePtr();
    }
    if (!replaced_inode) return replaced_inode.error();
    work.replaced.push_back(std::move(*replaced_inode));
  }
  *failed = work.files.size();
  return {};
}

// Looks the names up again if the directory has changed.
Result<void> Namespace::UpdateReplacedLocked(ManyFiles& work, size_t* failed) {
  {
    MutexLock lock(work.directory->mutex);
    if (work.directory->changes == work.seen) return {};
  }
  for (size_t index = 0; index < work.files.size(); ++index) {
    *failed = index;
    InodePtr& replaced_inode = work.replaced[index];
    ASSIGN_OR_RETURN(const auto entry, FindEntry(work.directory->id, work.files[index].name));
    if (entry ? replaced_inode != nullptr && replaced_inode->id == entry->ino : replaced_inode == nullptr) continue;
    auto found = FindReplacedInode(work, work.files[index].name);
    if (!found && found.error().code == ErrorCode::kStale) {
      return Damaged(work.directory->id, fmt::format("its entry '{}' leads to no inode", work.files[index].name));
    }
    if (!found) return found.error();
    replaced_inode = std::move(*found);
  }
  *failed = work.files.size();
  return {};
}

// Builds the records of the new files, with inode numbers from `first` on.
Result<void> Namespace::BuildFiles(ManyFiles& work, const NewFileMode& mode, std::span<const DeviceRun> runs,
                                   std::span<const uint32_t> checksums, InodeId first) {
  const CreateRequest request{.mode = S_IFREG | ((mode.mode | mode.masked) & 0777),
                              .uid = work.who.uid,
                              .gid = work.who.gid,
                              .umask = mode.masked};
  ASSIGN_OR_RETURN(InodeRecord asked, NewRecord(request));
  {
    MutexLock lock(work.directory->mutex);
    const InodeRecord& above = work.directory->attributes;
    if ((above.mode & S_ISGID) != 0) asked.gid = above.gid;
  }
  asked.accessed = asked.modified = asked.changed = asked.created = Timestamp::Now();
  asked.data_version = 1;
  // Append in key order: the catalog then inserts the records at half the cost, and every other change waits for that.
  Content content(runs, checksums);
  ASSIGN_OR_RETURN(const Acl acl, ReadDefaultAcl(work.directory));
  KvBatch lists, extents, sums;
  for (size_t index = 0; index < work.files.size(); ++index) {
    const DirectFile& file = work.files[index];
    const InodeId ino{first.value + index};
    const BlockCount blocks = BlocksFor(ByteCount{file.size});
    InodeRecord record = asked;  // all inherit the same; each has its own number
    const InodePtr& old = work.replaced[index];
    const bool kept = mode.keep_old && old != nullptr && TakeOver(work.who, *old, &record);
    Acl own = acl;
    if (kept) own.SetMode(record.mode);
    InheritAcl(std::move(own), ino, kept ? 0 : request.umask, &record, &lists);
    record.size = file.size;
    record.blocks = blocks.value;
    work.batch.Put(keys::Inode(ino), record.Encode());
    content.Append(ino, blocks, record.data_version, &extents, &sums);
  }
  for (KvBatch* part : {&lists, &extents, &sums}) work.batch.Append(std::move(*part));
  std::vector<size_t> by_name(work.files.size());
  std::iota(by_name.begin(), by_name.end(), size_t{0});
  std::sort(by_name.begin(), by_name.end(),
            [&](size_t a, size_t b) { return work.files[a].name < work.files[b].name; });
  for (const size_t index : by_name) {
    const EntryRecord entry{InodeId{first.value + index}, S_IFREG};
    work.batch.Put(keys::Entry(work.directory->id, work.files[index].name), entry.Encode());
  }
  return {};
}

Result<void> Namespace::CreateManyLocked(ManyFiles& work, std::vector<InodePtr>* orphans) {
  std::vector<InodePtr> members = work.replaced;  // null for each unused name
  members.push_back(work.directory);
  InodeTransaction transaction(catalog_, members);
  InodeRecord& above = transaction.record(work.directory);
  if (above.links == 0) return ErrorCode::kNotFound;
  const Timestamp now = Timestamp::Now();
  above.modified = above.changed = now;
  KvBatch& batch = transaction.batch();
  batch = std::move(work.batch);
  // Inodes without remaining links become orphans here, and are deleted later in batches of their own.
  for (const InodePtr& replaced_inode : work.replaced) {
    if (replaced_inode == nullptr) continue;
    InodeRecord& gone = transaction.record(replaced_inode);
    if (!DropLink(gone)) return Damaged(replaced_inode->id, "it has an entry but no links");
    gone.changed = now;
    if (gone.links == 0) orphans->push_back(replaced_inode);
  }
  std::sort(orphans->begin(), orphans->end(), [](const InodePtr& a, const InodePtr& b) { return a->id < b->id; });
  for (const InodePtr& orphan : *orphans) batch.Put(keys::Orphan(orphan->id), "");
  RETURN_IF_ERROR(CommitCountLocked(transaction, static_cast<int64_t>(work.files.size())));
  for (const InodePtr& orphan : *orphans) orphans_.emplace(orphan->id, orphan);
  return {};
}

Result<std::vector<InodeId>> Namespace::CreateMany(InodeId parent, const Credentials& who, const NewFileMode& mode,
                                                   std::span<const DirectFile> files, std::span<const DeviceRun> runs,
                                                   std::span<const uint32_t> checksums, size_t* failed) {
  *failed = files.size();
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  RETURN_IF_ERROR(CheckNames(files, failed));
  ManyFiles work{who, files};
  ASSIGN_OR_RETURN(work.directory, GetDirectory(parent));
  RETURN_IF_ERROR(CheckAccess(work.directory, who, kMayWrite | kMaySearch));
  RETURN_IF_ERROR(FindReplaced(work, failed));
  InodeId first;
  {
    MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(first, TakeInodesLocked(files.size()));
  }
  RETURN_IF_ERROR(BuildFiles(work, mode, runs, checksums, first));
  std::vector<InodePtr> orphans;
  {
    MutexLock lock(mutex_);
    RETURN_IF_ERROR(UpdateReplacedLocked(work, failed));
    RETURN_IF_ERROR(CreateManyLocked(work, &orphans));
  }
  DeleteOrphans(orphans);
  std::vector<InodeId> replaced;
  for (const InodePtr& replaced_inode : work.replaced) {
    if (replaced_inode != nullptr) replaced.push_back(replaced_inode->id);
  }
  return replaced;
}

}  // namespace weightfs

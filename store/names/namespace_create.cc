// SPDX-License-Identifier: Apache-2.0
// New inodes: numbers, inheritance, and their first batch.
#include "meta/keys.h"
#include "meta/records.h"
#include "store/names/acl.h"
#include "store/names/namespace.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// The step by which the bound of used inode numbers is raised: the maximum that a crash may waste.
constexpr uint64_t kInodeStep = 1024;

}  // namespace

Result<InodeRecord> Namespace::NewRecord(const CreateRequest& request) {
  InodeRecord record;
  // mknod(2): no type means a regular file.
  record.mode = (request.mode & (S_IFMT | 07777)) | ((request.mode & S_IFMT) == 0 ? S_IFREG : 0);
  record.uid = request.uid;
  record.gid = request.gid;
  record.links = 1;
  record.generation = 1;
  switch (record.mode & S_IFMT) {
    case S_IFDIR: record.links = 2; break;
    case S_IFLNK:
      if (request.symlink.empty()) return ErrorCode::kNotFound;
      if (request.symlink.size() > kMaximumSymlink) return ErrorCode::kNameTooLong;
      if (request.symlink.find('\0') != request.symlink.npos) return ErrorCode::kInvalid;
      record.mode = S_IFLNK | 0777;
      record.symlink = request.symlink;
      record.size = request.symlink.size();
      break;
    case S_IFCHR:
    case S_IFBLK:
      record.device_major = request.device_major;
      record.device_minor = request.device_minor;
      break;
    case S_IFREG:
    case S_IFIFO:
    case S_IFSOCK: break;
    default: return ErrorCode::kInvalid;
  }
  return record;
}

InodeId Namespace::NextInodeLocked(uint64_t count, KvBatch* batch, uint64_t* bound) {
  *bound = ino_bound_;
  if (next_ino_ + count > ino_bound_) {
    *bound += RoundUp(next_ino_ + count - ino_bound_, kInodeStep);
    batch->Put(keys::Store(kNextInodeFact), EncodeFact(*bound));
  }
  return InodeId{next_ino_};
}

Result<InodeId> Namespace::TakeInodesLocked(uint64_t count) {
  KvBatch batch;
  uint64_t bound = 0;
  const InodeId first = NextInodeLocked(count, &batch, &bound);
  if (!batch.empty()) RETURN_IF_ERROR(catalog_.Write(std::move(batch)));
  next_ino_ += count;
  ino_bound_ = bound;
  return first;
}

Result<Acl> Namespace::ReadDefaultAcl(const InodePtr& directory) {
  const auto bytes = ReadAttribute(directory->id, kDefaultAclName);
  if (!bytes && bytes.error().code == ErrorCode::kNoAttribute) return Acl();
  if (!bytes) return bytes.error();
  auto acl = Acl::Decode(*bytes);
  if (!acl || acl->empty()) return Damaged(directory->id, "its default access control list is damaged");
  return acl;
}

void Namespace::InheritAcl(Acl acl, InodeId ino, uint32_t umask, InodeRecord* record, KvBatch* batch) {
  if (acl.empty()) {
    record->mode &= ~(umask & 0777);
    return;
  }
  if (S_ISDIR(record->mode)) {
    batch->Put(keys::Attribute(ino, kDefaultAclName), acl.Encode());
    record->flags |= kInodeHasAttributes;
  }
  acl.Inherit(&record->mode);
  if (!acl.IsMode()) {
    batch->Put(keys::Attribute(ino, kAccessAclName), acl.Encode());
    record->flags |= kInodeHasAttributes;
  }
}

Result<Attributes> Namespace::Create(InodeId parent, std::string_view name, const CreateRequest& request) {
  RETURN_IF_ERROR(CheckName(name));
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  if (IsDots(name)) return ErrorCode::kExists;
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(parent));
  ASSIGN_OR_RETURN(const auto existing, FindEntry(parent, name));
  if (existing) return ErrorCode::kExists;
  return CreateLocked(directory, name, request);
}

Result<Attributes> Namespace::CreateUnnamed(InodeId parent, const CreateRequest& request) {
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(parent));
  return CreateLocked(directory, {}, request);
}

// An empty name creates an orphan.
Result<Attributes> Namespace::CreateLocked(const InodePtr& parent, std::string_view name,
                                           const CreateRequest& request) {
  ASSIGN_OR_RETURN(InodeRecord record, NewRecord(request));
  const bool directory = S_ISDIR(record.mode), named = !name.empty();
  if (!named && !S_ISREG(record.mode)) return ErrorCode::kInvalid;
  uint64_t bound = 0;
  InodePtr inode;
  {
    // The parent's default list is read before its mutex is taken. It changes only under that mutex, so the new inode
    // gets a list that was valid at some time during this call.
    KvBatch inherited;
    const InodeId ino = NextInodeLocked(1, &inherited, &bound);
    if (!S_ISLNK(record.mode)) {
      ASSIGN_OR_RETURN(Acl acl, ReadDefaultAcl(parent));
      InheritAcl(std::move(acl), ino, request.umask, &record, &inherited);
    }

    InodeTransaction transaction(catalog_, {parent});
    InodeRecord& above = transaction.record(parent);
    if (above.links == 0) return ErrorCode::kNotFound;
    if (directory && above.links >= kMaximumLinks) return ErrorCode::kTooManyLinks;
    const Timestamp now = Timestamp::Now();
    record.accessed = record.modified = record.changed = record.created = now;
    if ((above.mode & S_ISGID) != 0) {
      record.gid = above.gid;
      if (directory) record.mode |= S_ISGID;
    }
    KvBatch& batch = transaction.batch();
    batch.Append(std::move(inherited));
    if (named) {
      above.modified = above.changed = now;
      if (directory) {
        record.parent = parent->id.value;
        ++above.links;
      }
      batch.Put(keys::Entry(parent->id, name), EntryRecord{ino, record.mode & S_IFMT}.Encode());
    } else {
      record.links = 0;
      record.flags |= kInodeUnnamed;
      batch.Put(keys::Orphan(ino), "");
    }
    batch.Put(keys::Inode(ino), record.Encode());

    // Insert it into the table before the catalog: a thread that finds the new entry must find this Inode instead of
    // creating another.
    inode = inodes_.Insert(ino, std::move(record));
    if (auto written = CommitCountLocked(transaction, 1); !written) {
      inodes_.Erase(ino);
      return written.error();
    }
  }
  ++next_ino_;
  ino_bound_ = bound;
  if (!named) orphans_.emplace(inode->id, inode);
  MutexLock lock(inode->mutex);
  return inode->Stat();
}

}  // namespace weightfs

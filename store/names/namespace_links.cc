// SPDX-License-Identifier: Apache-2.0
// Links: creating, removing and moving names.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "meta/keys.h"
#include "store/file/file.h"
#include "store/names/namespace.h"
#include "store/names/namespace_internal.h"

namespace weightfs {
namespace {

// The files with an error that no caller has received.
std::vector<InodePtr> FailedFiles(DataOwner& data) {
  std::vector<InodePtr> files = data.UncommittedFiles();
  std::erase_if(files, [](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    return !inode->file || !inode->file->write_error().error();
  });
  return files;
}

// Directories on the way to the root that are looked at in one hold of Namespace::mutex_.
constexpr uint64_t kStepsLocked = 64;
// Of a rename whose names or directories others change meanwhile.
constexpr int kMostAttempts = 1000;

// The kernel never sends these names, but a caller of the library may.
Result<void> CheckRemovable(std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  if (IsDots(name)) return ErrorCode::kInvalid;
  return {};
}

}  // namespace

Result<Namespace::EntryLocation> Namespace::FindEntryLocation(InodeId parent, std::string_view name) {
  EntryLocation location;
  location.name = name;
  ASSIGN_OR_RETURN(location.directory, GetDirectory(parent));
  ASSIGN_OR_RETURN(const auto entry, FindEntry(parent, name));
  if (!entry) return location;
  auto inode = inodes_.Get(entry->ino);
  if (!inode && inode.error().code == ErrorCode::kStale) {
    return Damaged(parent, fmt::format("its entry '{}' leads to no inode", name));
  }
  if (!inode) return inode.error();
  location.inode = std::move(*inode);
  MutexLock lock(location.inode->mutex);
  location.type = location.inode->attributes.mode & S_IFMT;
  return location;
}

Result<Namespace::EmptinessCheck> Namespace::CheckEmpty(const InodePtr& directory) {
  EmptinessCheck check{.directory = directory};
  {
    MutexLock lock(directory->mutex);
    check.changes = directory->changes;
  }
  const auto entries = catalog_.NewIterator(keys::EntryPrefix(directory->id));
  check.empty = !entries->Valid();
  if (check.empty) RETURN_IF_ERROR(entries->status());
  return check;
}

Result<void> Namespace::RequireEmpty(const InodePtr& directory, const EmptinessCheck& check) {
  if (check.directory != directory) return ErrorCode::kAgain;
  MutexLock lock(directory->mutex);
  if (directory->changes != check.changes) return ErrorCode::kAgain;
  return check.empty ? Result<void>() : ErrorCode::kNotEmpty;
}

Result<void> Namespace::CheckNotBelow(const InodePtr& inode, InodePtr directory, uint64_t most) {
  for (uint64_t steps = 0; steps <= most; ++steps) {
    if (directory == inode) return ErrorCode::kInvalid;
    if (directory->id == kRootInode) return {};
    InodeId parent;
    {
      MutexLock lock(directory->mutex);
      if (directory->attributes.links == 0) return {};  // removed; its parent may not exist any more
      parent.value = directory->attributes.parent;
    }
    ASSIGN_OR_RETURN(directory, GetDirectory(parent));
  }
  return ErrorCode::kAgain;
}

Result<Attributes> Namespace::Link(InodeId ino, InodeId new_parent, std::string_view new_name) {
  RETURN_IF_ERROR(CheckName(new_name));
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  if (IsDots(new_name)) return ErrorCode::kExists;
  ASSIGN_OR_RETURN(const InodePtr inode, inodes_.Get(ino));
  RETURN_IF_ERROR(data_.CommitBeforeNaming({&inode, 1}));
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(new_parent));
  ASSIGN_OR_RETURN(const auto existing, FindEntry(new_parent, new_name));
  if (existing) return ErrorCode::kExists;

  if (inode == directory) return ErrorCode::kPermission;
  InodeTransaction transaction(catalog_, {directory, inode});
  if (transaction.deleted(inode)) return ErrorCode::kNotFound;
  InodeRecord& record = transaction.record(inode);
  InodeRecord& above = transaction.record(directory);
  const bool unnamed = (record.flags & kInodeUnnamed) != 0;
  if (S_ISDIR(record.mode)) return ErrorCode::kPermission;
  if (above.links == 0 || (record.links == 0 && !unnamed)) return ErrorCode::kNotFound;
  if (record.links >= kMaximumLinks) return ErrorCode::kTooManyLinks;
  if (unnamed) transaction.batch().Delete(keys::Orphan(ino));
  record.flags &= ~static_cast<uint32_t>(kInodeUnnamed);
  ++record.links;
  record.changed = above.modified = above.changed = Timestamp::Now();
  transaction.batch().Put(keys::Entry(new_parent, new_name), EntryRecord{ino, record.mode & S_IFMT}.Encode());
  RETURN_IF_ERROR(transaction.Commit());
  if (unnamed) orphans_.erase(ino);
  return transaction.Stat(inode);
}

Result<void> Namespace::Unlink(InodeId parent, std::string_view name) {
  RETURN_IF_ERROR(CheckRemovable(name));
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kRemove));
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const EntryLocation location, FindEntryLocation(parent, name));
  if (location.inode == nullptr) return ErrorCode::kNotFound;
  if (S_ISDIR(location.type)) return ErrorCode::kIsDirectory;
  return RemoveLocked(location);
}

Result<void> Namespace::RemoveDirectory(InodeId parent, std::string_view name) {
  RETURN_IF_ERROR(CheckName(name));
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kRemove));
  if (IsDots(name)) return name == "." ? ErrorCode::kInvalid : ErrorCode::kNotEmpty;
  EmptinessCheck check;
  return WhileStale([&] { return TryRemoveDirectory(parent, name, &check); });
}

// Returns kAgain after a new `check`.
Result<void> Namespace::TryRemoveDirectory(InodeId parent, std::string_view name, EmptinessCheck* check) {
  InodePtr directory;
  {
    MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const EntryLocation location, FindEntryLocation(parent, name));
    if (location.inode == nullptr) return ErrorCode::kNotFound;
    if (!S_ISDIR(location.type)) return ErrorCode::kNotDirectory;
    const auto empty = RequireEmpty(location.inode, *check);
    if (empty) return RemoveLocked(location);
    if (empty.error().code != ErrorCode::kAgain) return empty;
    directory = location.inode;
  }
  ASSIGN_OR_RETURN(*check, CheckEmpty(directory));
  return ErrorCode::kAgain;
}

Result<void> Namespace::RemoveLocked(const EntryLocation& location) {
  if (location.inode == location.directory) return Damaged(location.directory->id, "it is listed in itself");
  return WhileStale([&] { return TryRemoveLocked(location); });
}

Result<void> Namespace::TryRemoveLocked(const EntryLocation& location) {
  const Timestamp now = Timestamp::Now();
  ASSIGN_OR_RETURN(auto records, ReadReplaced(location.inode));
  InodeTransaction transaction(catalog_, {location.directory, location.inode});
  InodeRecord& above = transaction.record(location.directory);
  if (!DropLink(transaction.record(location.inode))) return Damaged(location.inode->id, "it has an entry but no links");
  if (S_ISDIR(location.type) && above.links > 0) --above.links;
  above.modified = above.changed = now;
  transaction.batch().Delete(keys::Entry(location.directory->id, location.name));
  return CommitLocked(transaction, location.inode, std::move(records), now);
}

// Returns the inode of the name; 0 when there is none. Commits the data that a new name would publish: of a file its
// own, of a directory that of all files below it. A symbolic link may lead anywhere, so it commits everything. Only a
// file that is renamed itself is committed while it is being replaced: its new name is for what was written so far.
// Returns the error of a file that failed.
Result<InodeId> Namespace::CommitData(InodeId parent, std::string_view name) {
  ASSIGN_OR_RETURN(const auto entry, FindEntry(parent, name));
  if (!entry) return InodeId{};
  if (S_ISREG(entry->type)) {
    const auto inode = inodes_.Get(entry->ino);
    if (inode) RETURN_IF_ERROR(data_.CommitBeforeNaming({&*inode, 1}));
  } else if (S_ISDIR(entry->type)) {
    RETURN_IF_ERROR(CommitTree(entry->ino));
  } else if (S_ISLNK(entry->type) && !data_.UncommittedFiles().empty()) {
    data_.CommitSettledBeforeNaming(nullptr);
    const std::vector<InodePtr> failed = FailedFiles(data_);
    if (failed.empty()) return entry->ino;
    ASSIGN_OR_RETURN(const std::string target, ReadLink(entry->ino));
    RETURN_IF_ERROR(CheckLinkedFiles(parent, target, failed));
  }
  return entry->ino;
}

Result<void> Namespace::CommitTree(InodeId directory) {
  constexpr size_t kMostEntries = 100'000;  // of a tree that is searched during every rename
  std::vector<InodePtr> files;
  ASSIGN_OR_RETURN(const bool complete, FilesBelow(directory, data_.UncommittedFiles(), kMostEntries, &files));
  data_.CommitSettledBeforeNaming(complete ? &files : nullptr);
  if (!complete) {
    files.clear();
    RETURN_IF_ERROR(FilesBelow(directory, FailedFiles(data_), SIZE_MAX, &files));
  }
  return data_.ReportErrors(files, /*kept=*/false);
}

// Returns the error of a failed file that the target of a symbolic link in the directory names, or that is below it.
// The error stays pending for the file's writer, who may be another user. A link to everything names no file.
Result<void> Namespace::CheckLinkedFiles(InodeId directory, std::string_view target,
                                         const std::vector<InodePtr>& failed) {
  const bool absolute = target.starts_with('/');
  if (absolute) directory = kRootInode;
  for (size_t begin = 0; begin < target.size(); ++begin) {
    unsigned links = 0;
    const auto found = FollowPath(directory, target.substr(begin), &links);
    if (found && found->ino != kRootInode) {
      std::vector<InodePtr> named;
      std::copy_if(failed.begin(), failed.end(), std::back_inserter(named),
                   [&](const InodePtr& inode) { return inode->id == found->ino; });
      if (S_ISDIR(found->type)) RETURN_IF_ERROR(FilesBelow(found->ino, failed, SIZE_MAX, &named));
      RETURN_IF_ERROR(data_.ReportErrors(named, /*kept=*/true));
    }
    // The store does not know where it is mounted, so any tail of an absolute path may be one in the store.
    begin = absolute ? target.find('/', begin + 1) : std::string_view::npos;
    if (begin == std::string_view::npos) break;
  }
  return {};
}

std::optional<EntryRecord> Namespace::FollowPath(InodeId directory, std::string_view path, unsigned* links) {
  constexpr unsigned kMostLinks = 40;  // as in the kernel
  std::optional<EntryRecord> at = EntryRecord{directory, S_IFDIR};
  while (at && !path.empty()) {
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    if (name.empty() || name == ".") continue;
    const InodeId parent = at->ino;
    if (name == "..") {
      const auto above = Lookup(parent, name);
      at = above ? std::optional(EntryRecord{above->ino, S_IFDIR}) : std::nullopt;
      continue;
    }
    at = FindEntry(parent, name).value_or(std::nullopt);
    if (!at || !S_ISLNK(at->type)) continue;
    const auto target = ReadLink(at->ino);
    if (!target || target->starts_with('/') || ++*links > kMostLinks) return std::nullopt;
    at = FollowPath(parent, *target, links);
  }
  return at;
}

// Adds the candidates that have a name in the directory or below it to `found`. Returns false when the tree has more
// entries than are to be searched.
Result<bool> Namespace::FilesBelow(InodeId directory, const std::vector<InodePtr>& candidates, size_t most_entries,
                                   std::vector<InodePtr>* found) {
  std::unordered_map<InodeId, InodePtr> missing;
  for (const InodePtr& file : candidates) missing.emplace(file->id, file);
  std::vector<InodeId> directories = {directory};
  std::unordered_set<InodeId> seen = {directory};  // the directories of a damaged catalog may lead in a circle
  size_t entries = 0;
  while (!directories.empty() && !missing.empty()) {
    const auto entry = catalog_.NewIterator(keys::EntryPrefix(directories.back()));
    directories.pop_back();
    for (; entry->Valid() && !missing.empty(); entry->Next()) {
      if (++entries > most_entries) return false;
      const auto record = EntryRecord::Decode(entry->value());
      if (!record) continue;  // a lookup of that name reports the damage
      if (S_ISDIR(record->type) && seen.insert(record->ino).second) directories.push_back(record->ino);
      if (const auto file = missing.extract(record->ino)) found->push_back(file.mapped());
    }
    RETURN_IF_ERROR(entry->status());
  }
  return true;
}

Result<void> Namespace::Rename(InodeId parent, std::string_view name, InodeId new_parent, std::string_view new_name,
                               RenameMode mode) {
  RETURN_IF_ERROR(CheckRemovable(name));
  RETURN_IF_ERROR(CheckRemovable(new_name));
  const KvChange change = new_name.size() > name.size() ? KvChange::kGrow : KvChange::kUpdate;
  RETURN_IF_ERROR(data_.CheckWritable(change));
  const bool exchange = mode == RenameMode::kExchange;
  EmptinessCheck target;
  std::vector<AncestryCheck> ancestries;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    ASSIGN_OR_RETURN(const InodeId committed, CommitData(parent, name));
    InodeId other_committed;
    if (exchange) {
      ASSIGN_OR_RETURN(other_committed, CommitData(new_parent, new_name));
    }
    // A commit whose errors stay with the files may have failed as a whole.
    RETURN_IF_ERROR(data_.CheckWritable(change));
    MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const EntryLocation from, FindEntryLocation(parent, name));
    ASSIGN_OR_RETURN(const EntryLocation to, FindEntryLocation(new_parent, new_name));
    if (from.inode == nullptr || (exchange && to.inode == nullptr)) return ErrorCode::kNotFound;
    // The name now refers to another file, which must be committed first.
    if (from.inode->id != committed || (exchange && to.inode->id != other_committed)) continue;
    if (from.inode == from.directory) return Damaged(parent, "it is listed in itself");
    if (to.inode == to.directory) return Damaged(new_parent, "it is listed in itself");
    if (mode == RenameMode::kNoReplace && to.inode != nullptr) return ErrorCode::kExists;
    if (from.inode == to.inode) return {};
    const auto moved = exchange ? ExchangeLocked(from, to, ancestries) : MoveLocked(from, to, target, ancestries);
    if (moved || moved.error().code != ErrorCode::kAgain) return moved;
    // A path has no more components than there are directories, unless damage made a cycle of parents.
    const uint64_t moves = directory_moves_, most = inode_count_;
    lock.Unlock();
    ancestries.clear();
    for (const auto& [one, other] : {std::pair(&from, &to), std::pair(&to, &from)}) {
      if (one->inode == nullptr || !S_ISDIR(one->type)) continue;
      auto result = CheckNotBelow(one->inode, other->directory, most);
      if (!result && result.error().code == ErrorCode::kAgain) {
        result = Damaged(other->directory->id, "its parents lead round in a ring");
      }
      ancestries.push_back({one->inode, other->directory, moves, std::move(result)});
    }
    if (!exchange && to.inode != nullptr && S_ISDIR(to.type)) {
      ASSIGN_OR_RETURN(target, CheckEmpty(to.inode));
    }
  }
  return ErrorCode::kBusy;  // others change these names all the time
}

// A directory must not move below itself.
Result<void> Namespace::CheckMove(const EntryLocation& from, const EntryLocation& to,
                                  std::span<const AncestryCheck> ancestries) {
  if (!S_ISDIR(from.type) || from.directory == to.directory) return {};
  for (const AncestryCheck& known : ancestries) {
    if (known.moved == from.inode && known.target == to.directory && known.moves == directory_moves_) {
      return known.result;
    }
  }
  return CheckNotBelow(from.inode, to.directory, kStepsLocked);
}

// Returns kAgain when `target` is not what is known about the directory to be replaced.
Result<void> Namespace::MoveLocked(const EntryLocation& from, const EntryLocation& to, const EmptinessCheck& target,
                                   std::span<const AncestryCheck> ancestries) {
  RETURN_IF_ERROR(CheckMove(from, to, ancestries));
  const bool directory = S_ISDIR(from.type);
  if (to.inode != nullptr) {
    if (directory && !S_ISDIR(to.type)) return ErrorCode::kNotDirectory;
    if (!directory && S_ISDIR(to.type)) return ErrorCode::kIsDirectory;
    if (directory) RETURN_IF_ERROR(RequireEmpty(to.inode, target));
  }
  return WhileStale([&] { return TryMoveLocked(from, to); });
}

Result<void> Namespace::TryMoveLocked(const EntryLocation& from, const EntryLocation& to) {
  const bool directory = S_ISDIR(from.type), moves = from.directory != to.directory;
  const Timestamp now = Timestamp::Now();
  ASSIGN_OR_RETURN(auto records, ReadReplaced(to.inode));
  InodeTransaction transaction(catalog_, {from.directory, to.directory, from.inode, to.inode});
  InodeRecord& moved = transaction.record(from.inode);
  InodeRecord& source = transaction.record(from.directory);
  InodeRecord& target = transaction.record(to.directory);
  if (target.links == 0) return ErrorCode::kNotFound;
  if (to.inode != nullptr && !DropLink(transaction.record(to.inode))) {
    return Damaged(to.inode->id, "it has an entry but no links");
  }
  if (directory) {
    // Each directory is a link to its parent.
    if (moves && source.links > 0) --source.links;
    if (moves) ++target.links;
    if (to.inode != nullptr && target.links > 0) --target.links;
    if (moves && target.links > kMaximumLinks) return ErrorCode::kTooManyLinks;
    moved.parent = to.directory->id.value;
    if (moves) ++directory_moves_;
  }
  moved.changed = source.modified = source.changed = target.modified = target.changed = now;
  transaction.batch().Delete(keys::Entry(from.directory->id, from.name));
  transaction.batch().Put(keys::Entry(to.directory->id, to.name), EntryRecord{from.inode->id, from.type}.Encode());
  return CommitLocked(transaction, to.inode, std::move(records), now);
}

Result<void> Namespace::ExchangeLocked(const EntryLocation& from, const EntryLocation& to,
                                       std::span<const AncestryCheck> ancestries) {
  RETURN_IF_ERROR(CheckMove(from, to, ancestries));
  RETURN_IF_ERROR(CheckMove(to, from, ancestries));
  const Timestamp now = Timestamp::Now();
  InodeTransaction transaction(catalog_, {from.directory, to.directory, from.inode, to.inode});
  InodeRecord& first = transaction.record(from.directory);
  InodeRecord& second = transaction.record(to.directory);
  if (first.links == 0 || second.links == 0) return ErrorCode::kNotFound;
  if (from.directory != to.directory && S_ISDIR(from.type) != S_ISDIR(to.type)) {
    // One directory changes its parent, and none moves the other way.
    InodeRecord& loses = S_ISDIR(from.type) ? first : second;
    InodeRecord& gains = S_ISDIR(from.type) ? second : first;
    if (gains.links >= kMaximumLinks) return ErrorCode::kTooManyLinks;
    --loses.links;
    ++gains.links;
  }
  ++directory_moves_;
  if (S_ISDIR(from.type)) transaction.record(from.inode).parent = to.directory->id.value;
  if (S_ISDIR(to.type)) transaction.record(to.inode).parent = from.directory->id.value;
  for (const InodePtr& inode : {from.inode, to.inode}) transaction.record(inode).changed = now;
  for (InodeRecord* above : {&first, &second}) above->modified = above->changed = now;
  transaction.batch().Put(keys::Entry(from.directory->id, from.name), EntryRecord{to.inode->id, to.type}.Encode());
  transaction.batch().Put(keys::Entry(to.directory->id, to.name), EntryRecord{from.inode->id, from.type}.Encode());
  return transaction.Commit();
}

}  // namespace weightfs

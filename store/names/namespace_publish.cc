// SPDX-License-Identifier: Apache-2.0
// Publications: immutable directory trees.
#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/log.h"
#include "common/utc_time.h"
#include "engine/superblock.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "store/names/namespace.h"

namespace weightfs {
namespace {

constexpr size_t kRecordBytes = 160;  // of an inode in a batch, without the target of a symbolic link

std::string PublishingKey(InodeId top) { return keys::Store(kPublishingFact + std::to_string(top.value)); }

// The inodes from `begin` whose flags one small batch changes: a full pool has space for it, and others wait briefly.
std::vector<InodePtr> NextFlags(const std::vector<InodePtr>& inodes, size_t begin) {
  std::vector<InodePtr> some;
  for (size_t size = 2 * kRecordBytes; begin < inodes.size(); ++begin) {
    const InodePtr& inode = inodes[begin];
    MutexLock lock(inode->mutex);
    size += kRecordBytes + inode->attributes.symlink.size();
    if (size > kSmallBatch) break;
    some.push_back(inode);
  }
  return some;
}

}  // namespace

// A directory and everything below it, each directory before its entries. Used by one thread at a time.
class Namespace::Tree {
 public:
  // Freezes each inode until the tree is destroyed: `publishes`: for a publication (Inode::Freeze). Otherwise for its
  // end (Inode::FreezePublished), and the tree has only what has the flag *published*, except other publications.
  Tree(DataOwner& data, InodePtr top, const Credentials& who, bool publishes, std::chrono::milliseconds close_wait,
       std::string* failed)
      : data_(data),
        top_(std::move(top)),
        who_(who),
        publishes_(publishes),
        failed_(*failed),
        deadline_(std::chrono::steady_clock::now() + close_wait) {}
  ~Tree() {
    for (const InodePtr& inode : inodes_) {
      MutexLock lock(inode->mutex);
      inode->Thaw();
    }
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // Finds the inodes. Returns kAgain while one of them waits: call it again, and it continues. After `close_wait` that
  // is an error.
  Result<void> Collect(Namespace& names);
  Error Fail(const std::string& path, ErrorCode code) {
    failed_ = path;
    return {code};
  }

  const InodePtr& top() const { return top_; }
  const std::vector<InodePtr>& inodes() const { return inodes_; }
  // Those of the inodes that are among `candidates`.
  std::vector<InodePtr> Among(const std::vector<InodePtr>& candidates) const {
    std::vector<InodePtr> found;
    for (const InodePtr& inode : candidates) {
      if (found_.contains(inode->id)) found.push_back(inode);
    }
    return found;
  }
  uint64_t files() const { return files_; }
  // The sizes of the files together.
  uint64_t bytes() const {
    uint64_t bytes = 0;
    for (const InodePtr& inode : inodes_) {
      MutexLock lock(inode->mutex);
      if (inode->IsRegular()) bytes += inode->attributes.size;
    }
    return bytes;
  }
  // A path of an inode of the tree, relative to the top; of a long one the end.
  std::string PathOf(InodeId ino) const;

 private:
  // One name, because the paths of a deep tree take too much memory.
  struct Found {
    InodeId parent;
    std::string name;
    uint32_t names = 1;
  };
  Result<void> AddEntries(Namespace& names, InodeId directory);
  Result<void> AddName(const InodePtr& inode, InodeId parent, std::string_view name);
  Result<void> AddWaiting();
  Result<void> TryAdd(const InodePtr& inode);
  Result<void> CheckNames();

  DataOwner& data_;
  const InodePtr top_;
  const Credentials& who_;
  const bool publishes_;
  std::string& failed_;
  const std::chrono::steady_clock::time_point deadline_;
  std::vector<InodePtr> inodes_;
  std::deque<InodePtr> waiting_;              // to be added when TryAdd accepts them
  std::vector<InodeId> directories_;          // of inodes_, whose entries are not read yet
  std::unordered_map<InodeId, Found> found_;  // inodes_ and waiting_
  uint64_t files_ = 0;
};

// Returns ETXTBSY while the file is open for writing, or is read by passthrough, and kAgain while another call has
// frozen the inode.
Result<void> Namespace::Tree::TryAdd(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  if (who_.uid != inode->attributes.uid && !who_.Can(CAP_FOWNER)) return ErrorCode::kPermission;
  if (!publishes_ && !inode->IsPublished()) return {};
  RETURN_IF_ERROR(publishes_ ? inode->Freeze() : inode->FreezePublished(data_.IsPassed(*inode)));
  inodes_.push_back(inode);
  if (inode->IsRegular()) ++files_;
  // A directory gets no new entries once it is immutable, so its entries are read from now on.
  if (inode->IsDirectory()) directories_.push_back(inode->id);
  return {};
}

std::string Namespace::Tree::PathOf(InodeId ino) const {
  std::string path;
  for (auto found = found_.find(ino); ino != top_->id && found != found_.end(); found = found_.find(ino)) {
    path = found->second.name + (path.empty() ? "" : "/") + path;
    if (path.size() > PATH_MAX) return "…/" + path;
    ino = found->second.parent;
  }
  return path;
}

Result<void> Namespace::Tree::AddName(const InodePtr& inode, InodeId parent, std::string_view name) {
  const auto [found, added] = found_.try_emplace(inode->id, Found{parent, std::string(name)});
  if (added) {
    if (publishes_ && found_.size() > kMaximumTree) return Fail({}, ErrorCode::kTooLarge);
    waiting_.push_back(inode);
    return waiting_.size() > 1 ? Result<void>() : AddWaiting();
  }
  ++found->second.names;
  MutexLock lock(inode->mutex);
  if (!inode->IsDirectory()) return {};
  lock.Unlock();
  // Its entries are in the tree, perhaps with this one among them.
  static_cast<void>(Damaged(inode->id, "this directory has several names, or lies below itself"));
  const std::string above = PathOf(parent);
  return Fail(above + (above.empty() ? "" : "/") + std::string(name), ErrorCode::kCorrupt);
}

Result<void> Namespace::Tree::AddWaiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const auto added = TryAdd(waiting_.front());
    if (added) continue;
    const ErrorCode code = added.error().code;
    const bool waits = code == ErrorCode::kAgain || code == ErrorCode{ETXTBSY};
    if (waits && (inodes_.empty() || std::chrono::steady_clock::now() < deadline_)) return {};
    return Fail(PathOf(waiting_.front()->id), code == ErrorCode::kAgain ? ErrorCode::kBusy : code);
  }
  return {};
}

Result<void> Namespace::Tree::AddEntries(Namespace& names, InodeId directory) {
  const auto entry = names.catalog_.NewIterator(keys::EntryPrefix(directory));
  for (; entry->Valid(); entry->Next()) {
    const auto key = keys::ParseNamed(entry->key());
    const auto record = EntryRecord::Decode(entry->value());
    if (!key || !record) {
      static_cast<void>(Damaged(directory, "one of its entries is damaged"));
      return Fail(PathOf(directory), ErrorCode::kCorrupt);
    }
    const auto inode = names.inodes_.Get(record->ino);
    if (!inode) {
      found_.try_emplace(record->ino, Found{directory, std::string(key->name)});
      return Fail(PathOf(record->ino), inode.error().code);
    }
    const bool nested = !publishes_ && S_ISDIR(record->type) && record->ino != top_->id;
    if (nested && names.GetPublication(record->ino)) continue;
    RETURN_IF_ERROR(AddName(*inode, directory, key->name));
  }
  return entry->status();
}

Result<void> Namespace::Tree::Collect(Namespace& names) {
  RETURN_IF_ERROR(found_.empty() ? AddName(top_, {}, {}) : AddWaiting());
  while (!directories_.empty()) {
    const InodeId directory = directories_.back();
    directories_.pop_back();
    RETURN_IF_ERROR(AddEntries(names, directory));
  }
  if (!waiting_.empty()) return ErrorCode::kAgain;
  return publishes_ ? CheckNames() : Result<void>();
}

Result<void> Namespace::Tree::CheckNames() {
  for (const InodePtr& inode : inodes_) {
    const Found& found = found_.at(inode->id);
    MutexLock lock(inode->mutex);
    if (!inode->IsDirectory() && inode->attributes.links > found.names)
      return Fail(PathOf(inode->id), ErrorCode::kTooManyLinks);
  }
  return {};
}

Result<uint64_t> Namespace::NextVersionLocked() {
  ASSIGN_OR_RETURN(const auto last, ReadFact(catalog_, kLastVersionFact));
  return std::max(UtcVersion(UtcNowNs()), last.value_or(0) + 1);
}

// `push --watch` tells by the times which of two publications is the later one.
Result<Timestamp> Namespace::NextPublicationTimeLocked(KvBatch* batch) {
  constexpr uint64_t kSecond = 1'000'000'000;
  ASSIGN_OR_RETURN(const auto last, ReadFact(catalog_, kLastPublicationFact));
  const uint64_t time = std::max(static_cast<uint64_t>(UtcNowNs()), last.value_or(0) + 1);
  batch->Put(keys::Store(kLastPublicationFact), EncodeFact(time));
  return Timestamp{static_cast<int64_t>(time / kSecond), static_cast<uint32_t>(time % kSecond)};
}

Result<PublicationRecord> Namespace::GetPublication(InodeId ino) {
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  {
    MutexLock lock(directory->mutex);
    if ((directory->attributes.flags & kInodePublished) == 0) return ErrorCode::kNoAttribute;
  }
  ASSIGN_OR_RETURN(const std::string bytes, ReadAttribute(ino, kPublicationName));
  const auto publication = PublicationRecord::Decode(bytes);
  if (!publication && publication.error().code == ErrorCode::kCorrupt) {
    return Damaged(ino, "the record of its publication is damaged");
  }
  return publication;
}

Namespace::PublishCall::PublishCall(InodeId directory, Credentials who, std::optional<uint64_t> version,
                                    std::chrono::milliseconds close_wait)
    : directory_(directory), who_(std::move(who)), version_(version), close_wait_(close_wait) {}

Namespace::PublishCall::~PublishCall() = default;

Result<PublicationRecord> Namespace::PublishTree(PublishCall* call) {
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  const auto& version = call->version_;
  if (call->directory_ == kRootInode || version.value_or(0) > kMaximumVersion) return ErrorCode::kInvalid;
  const auto find_existing = [&]() -> Result<PublicationRecord> {
    auto existing = GetPublication(call->directory_);
    if (existing && version && *version != existing->version) return ErrorCode::kExists;
    return existing;
  };
  if (call->tree_ == nullptr) {
    ASSIGN_OR_RETURN(InodePtr directory, GetDirectory(call->directory_));
    auto existing = find_existing();
    if (existing || existing.error().code != ErrorCode::kNoAttribute) return existing;
    call->tree_ = std::make_unique<Tree>(data_, std::move(directory), call->who_, /*publishes=*/true, call->close_wait_,
                                         &call->failed_);
  }
  auto published = TryPublish(*call->tree_, version);
  const bool waits = !published && published.error().code == ErrorCode::kAgain;
  const bool busy = !published && published.error().code == ErrorCode::kBusy;
  // If another call is publishing the same directory, or just did, its publication is that of both.
  const bool before = call->tree_->inodes().empty();
  if (!waits || before) call->tree_.reset();
  if (!busy || !before) return published;
  auto existing = find_existing();
  return existing || existing.error().code != ErrorCode::kNoAttribute ? existing : published;
}

Result<PublicationRecord> Namespace::TryPublish(Tree& tree, std::optional<uint64_t> version) {
  RETURN_IF_ERROR(tree.Collect(*this));
  // A write that failed stays pending for its writer; until that one knows, the directory is not complete.
  InodePtr incomplete;
  const auto committed = data_.CommitBeforeNaming(tree.Among(data_.UncommittedFiles()), /*kept=*/true, &incomplete);
  if (!committed) return tree.Fail(incomplete ? tree.PathOf(incomplete->id) : "", committed.error().code);
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kGrow));
  const auto flagged = SetPublished(tree, /*published=*/true);
  auto publication = flagged ? AddPublication(tree, version) : flagged.error();
  if (publication) {
    for (const InodePtr& inode : tree.inodes()) data_.DropReadAhead(*inode);
    return publication;
  }
  if (const auto reverted = SetPublished(tree, /*published=*/false); !reverted) {
    spdlog::error("inode {}: parts of it stay immutable until the next mount, after a failed publication: {}",
                  tree.top()->id.value, ToString(reverted.error()));
  }
  return publication;
}

Result<PublicationRecord> Namespace::AddPublication(const Tree& tree, std::optional<uint64_t> version) {
  PublicationRecord publication;
  publication.id = NewUuid();
  publication.files = tree.files();
  publication.bytes = tree.bytes();
  MutexLock lock(mutex_);
  if (version) {
    publication.version = *version;
  } else {
    ASSIGN_OR_RETURN(publication.version, NextVersionLocked());
  }
  KvBatch facts;
  ASSIGN_OR_RETURN(publication.time, NextPublicationTimeLocked(&facts));
  if (!version) facts.Put(keys::Store(kLastVersionFact), EncodeFact(publication.version));
  InodeTransaction transaction(catalog_, {tree.top()});
  transaction.batch().Append(std::move(facts));
  transaction.PutAttribute(tree.top(), kPublicationName, publication.Encode(), std::nullopt);
  transaction.batch().Delete(PublishingKey(tree.top()->id));
  RETURN_IF_ERROR(transaction.CommitPublication());
  return publication;
}

// A directory gets its flag before its entries and loses it after them. So until the end all inodes with the flag are
// connected to the top, and nobody can move one of them away, not even a program that does not know the fact: it finds
// immutable inodes without a publication, and its fsck clears their flags.
Result<void> Namespace::SetPublished(const Tree& tree, bool published) {
  std::vector<InodePtr> inodes = tree.inodes();
  if (!published) std::reverse(inodes.begin(), inodes.end());
  const std::string key = PublishingKey(tree.top()->id);
  for (size_t begin = 0; begin < inodes.size();) {
    const std::vector<InodePtr> some = NextFlags(inodes, begin);
    begin += some.size();
    InodeTransaction transaction(catalog_, some);
    for (const InodePtr& inode : some) {
      uint32_t& flags = transaction.record(inode).flags;
      flags = published ? flags | kInodePublished : flags & ~static_cast<uint32_t>(kInodePublished);
    }
    if (published) transaction.batch().Put(key, EncodeFact(tree.top()->id.value));
    if (!published && begin == inodes.size()) transaction.batch().Delete(key);
    RETURN_IF_ERROR(transaction.CommitPublication());
  }
  return {};
}

Result<void> Namespace::UnpublishTree(InodeId ino, const Credentials& who, std::string* failed) {
  failed->clear();
  RETURN_IF_ERROR(data_.CheckWritable(KvChange::kUpdate));
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  ASSIGN_OR_RETURN(const PublicationRecord before, GetPublication(ino));
  Tree tree(data_, directory, who, /*publishes=*/false, {}, failed);
  RETURN_IF_ERROR(tree.Collect(*this));
  {
    MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(const std::string publication, ReadAttribute(ino, kPublicationName));
    const auto now = PublicationRecord::Decode(publication);
    if (!now || now->id != before.id) return ErrorCode::kNoAttribute;  // another call was first
    InodeTransaction transaction(catalog_, {directory});
    transaction.DeleteAttribute(directory, kPublicationName, publication);
    transaction.batch().Put(PublishingKey(ino), EncodeFact(ino.value));
    RETURN_IF_ERROR(transaction.CommitPublication());
  }
  return SetPublished(tree, /*published=*/false);
}

// An older program may have written to the store since. Then the fact is out of date if the inodes lost their flags, or
// if they belong to a publication now.
Result<bool> Namespace::IsInterrupted(InodeId ino) {
  const auto found = GetDirectory(ino);
  if (!found) {
    const ErrorCode code = found.error().code;
    return code == ErrorCode::kStale || code == ErrorCode::kNotDirectory ? Result<bool>(false) : found.error();
  }
  const InodePtr& directory = *found;
  InodeId parent;
  {
    MutexLock lock(directory->mutex);
    if ((directory->attributes.flags & kInodePublished) == 0) return false;
    parent.value = directory->attributes.parent;
  }
  const auto publication = GetPublication(ino);
  if (publication) return false;
  if (publication.error().code != ErrorCode::kNoAttribute) return publication.error();
  ASSIGN_OR_RETURN(const InodePtr above, GetDirectory(parent));
  MutexLock lock(above->mutex);
  return (above->attributes.flags & kInodePublished) == 0;
}

// Leaves damage to fsck and continues; returns only errors of the catalog.
Result<void> Namespace::RecoverPublication(InodeId ino) {
  std::string failed;
  const auto revert = [&]() -> Result<void> {
    ASSIGN_OR_RETURN(const bool interrupted, IsInterrupted(ino));
    if (!interrupted) {
      KvBatch batch;
      batch.Delete(PublishingKey(ino));
      return catalog_.Write(std::move(batch));
    }
    ASSIGN_OR_RETURN(InodePtr directory, GetDirectory(ino));
    const Credentials owner{.uid = 0, .capabilities = uint64_t{1} << CAP_FOWNER};
    Tree tree(data_, std::move(directory), owner, /*publishes=*/false, {}, &failed);
    RETURN_IF_ERROR(tree.Collect(*this));
    return SetPublished(tree, /*published=*/false);
  };
  const auto reverted = revert();
  const ErrorCode code = reverted ? ErrorCode{} : reverted.error().code;
  const bool damaged = code == ErrorCode::kCorrupt || code == ErrorCode::kVersion || code == ErrorCode::kStale;
  if (!damaged) return reverted;
  spdlog::error("inode {}: its interrupted publication cannot be reverted: '{}' below it is damaged; run weightfs "
                "verify",
                ino.value, failed);
  return {};
}

}  // namespace weightfs

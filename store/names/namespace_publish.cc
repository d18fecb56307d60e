// SPDX-License-Identifier: Apache-2.0
// Publications: immutable directory trees.
#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <unordered_map>
#include <utility>

#include "common/utc_time.h"
#include "engine/superblock.h"
#include "meta/facts.h"
#include "meta/keys.h"
#include "store/names/namespace.h"

namespace weightfs {
// A directory and everything below it. Used by one thread at a time.
class Namespace::Tree {
 public:
  // `freeze`: sets Inode::publishing of each inode, until the tree is destroyed.
  Tree(InodePtr top, const Credentials& who, bool freeze, std::chrono::milliseconds close_wait, std::string* failed)
      : top_(std::move(top)),
        who_(who),
        freeze_(freeze),
        failed_(*failed),
        deadline_(std::chrono::steady_clock::now() + close_wait) {}
  ~Tree() {
    if (!freeze_) return;
    for (const InodePtr& inode : inodes_) {
      MutexLock lock(inode->mutex);
      inode->publishing = false;
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
  // A path of an inode of the tree.
  std::string PathOf(InodeId ino) const {
    const auto found = found_.find(ino);
    return found == found_.end() ? std::string() : found->second.path;
  }

 private:
  struct Found {
    std::string path;  // relative to the top
    uint32_t names = 1;
  };
  Result<void> AddEntries(Namespace& names, InodeId directory);
  Result<void> AddName(const InodePtr& inode, const std::string& path);
  Result<void> AddWaiting();
  Result<void> TryAdd(const InodePtr& inode);
  Result<void> CheckNames();

  const InodePtr top_;
  const Credentials& who_;
  const bool freeze_;
  std::string& failed_;
  const std::chrono::steady_clock::time_point deadline_;
  std::vector<InodePtr> inodes_;
  std::deque<InodePtr> waiting_;              // to be added when TryAdd accepts them
  std::vector<InodeId> directories_;          // of inodes_, whose entries are not read yet
  std::unordered_map<InodeId, Found> found_;  // inodes_ and waiting_
  uint64_t files_ = 0;
};

// Returns ETXTBSY while the file is open for writing, and kAgain while another call is publishing the inode.
Result<void> Namespace::Tree::TryAdd(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  if (who_.uid != inode->attributes.uid && !who_.Can(CAP_FOWNER)) return ErrorCode::kPermission;
  if (freeze_) {
    if (inode->publishing) return ErrorCode::kAgain;
    if (inode->IsImmutable()) return ErrorCode::kBusy;
    if (inode->open_writers > 0) return ErrorCode{ETXTBSY};
    inode->publishing = true;
  }
  inodes_.push_back(inode);
  if (inode->IsRegular()) ++files_;
  // A directory gets no new entries once it is immutable, so its entries are read from now on.
  if (inode->IsDirectory()) directories_.push_back(inode->id);
  return {};
}

Result<void> Namespace::Tree::AddName(const InodePtr& inode, const std::string& path) {
  const auto [found, added] = found_.try_emplace(inode->id, Found{path});
  if (added) {
    if (found_.size() > kMaximumTree) return Fail({}, ErrorCode::kTooLarge);
    waiting_.push_back(inode);
    return waiting_.size() > 1 ? Result<void>() : AddWaiting();
  }
  ++found->second.names;
  MutexLock lock(inode->mutex);
  if (!inode->IsDirectory()) return {};
  lock.Unlock();
  // Its entries are in the tree, perhaps with this one among them.
  static_cast<void>(Damaged(inode->id, "this directory has several names, or lies below itself"));
  return Fail(path, ErrorCode::kCorrupt);
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
  const std::string path = PathOf(directory);
  const auto entry = names.catalog_.NewIterator(keys::EntryPrefix(directory));
  for (; entry->Valid(); entry->Next()) {
    const auto key = keys::ParseNamed(entry->key());
    const auto record = EntryRecord::Decode(entry->value());
    if (!key || !record) {
      static_cast<void>(Damaged(directory, "one of its entries is damaged"));
      return Fail(path, ErrorCode::kCorrupt);
    }
    const std::string name = path.empty() ? std::string(key->name) : path + "/" + std::string(key->name);
    const auto inode = names.inodes_.Get(record->ino);
    if (!inode) return Fail(name, inode.error().code);
    RETURN_IF_ERROR(AddName(*inode, name));
  }
  return entry->status();
}

Result<void> Namespace::Tree::Collect(Namespace& names) {
  RETURN_IF_ERROR(found_.empty() ? AddName(top_, {}) : AddWaiting());
  while (!directories_.empty()) {
    const InodeId directory = directories_.back();
    directories_.pop_back();
    RETURN_IF_ERROR(AddEntries(names, directory));
  }
  return waiting_.empty() ? CheckNames() : ErrorCode::kAgain;
}

Result<void> Namespace::Tree::CheckNames() {
  for (const InodePtr& inode : inodes_) {
    const Found& found = found_.at(inode->id);
    MutexLock lock(inode->mutex);
    if (!inode->IsDirectory() && inode->attributes.links > found.names)
      return Fail(found.path, ErrorCode::kTooManyLinks);
  }
  return {};
}

Result<uint64_t> Namespace::NextVersionLocked() {
  ASSIGN_OR_RETURN(const auto last, ReadFact(catalog_, kLastVersionFact));
  return std::max(UtcVersion(Timestamp::Now().seconds * 1'000'000'000), last.value_or(0) + 1);
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
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
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
    call->tree_ = std::make_unique<Tree>(std::move(directory), call->who_, /*freeze=*/true, call->close_wait_,
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
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  PublicationRecord publication;
  publication.id = NewUuid();
  publication.time = Timestamp::Now();
  publication.files = tree.files();
  MutexLock lock(mutex_);
  if (version) {
    publication.version = *version;
  } else {
    ASSIGN_OR_RETURN(publication.version, NextVersionLocked());
  }
  InodeTransaction transaction(catalog_, tree.inodes());
  for (const InodePtr& inode : tree.inodes()) {
    InodeRecord& record = transaction.record(inode);
    record.flags |= kInodePublished;
    if (S_ISREG(record.mode)) publication.bytes += record.size;
  }
  if (!version) transaction.batch().Put(keys::Store(kLastVersionFact), EncodeFact(publication.version));
  transaction.PutAttribute(tree.top(), kPublicationName, publication.Encode(), std::nullopt);
  RETURN_IF_ERROR(transaction.CommitPublication());
  return publication;
}

Result<void> Namespace::UnpublishTree(InodeId ino, const Credentials& who, std::string* failed) {
  failed->clear();
  RETURN_IF_ERROR(CheckWritable(KvChange::kUpdate));
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  ASSIGN_OR_RETURN(const PublicationRecord before, GetPublication(ino));
  Tree tree(directory, who, /*freeze=*/false, {}, failed);
  RETURN_IF_ERROR(tree.Collect(*this));
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const std::string publication, ReadAttribute(ino, kPublicationName));
  const auto now = PublicationRecord::Decode(publication);
  if (!now || now->id != before.id) return ErrorCode::kNoAttribute;  // another call was first
  InodeTransaction transaction(catalog_, tree.inodes());
  for (const InodePtr& inode : tree.inodes())
    transaction.record(inode).flags &= ~static_cast<uint32_t>(kInodePublished);
  transaction.DeleteAttribute(directory, kPublicationName, publication);
  return transaction.CommitPublication();
}

}  // namespace weightfs

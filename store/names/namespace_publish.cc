// SPDX-License-Identifier: Apache-2.0
// Publications: immutable directory trees.
#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <unordered_map>
#include <utility>

#include "common/utc_time.h"
#include "engine/superblock.h"
#include "meta/facts.h"
#include "meta/keys.h"
#include "store/names/namespace.h"

namespace weightfs {
namespace {

// The kernel does not wait until the last close of a file has reached this process.
constexpr std::chrono::seconds kCloseWait{2};

}  // namespace

// A directory and everything below it.
class Namespace::Tree {
 public:
  // `freeze`: sets Inode::publishing of each inode that is added, until the tree is destroyed.
  Tree(const Credentials& who, bool freeze, std::string* failed) : who_(who), freeze_(freeze), failed_(*failed) {}
  ~Tree() {
    if (!freeze_) return;
    for (const InodePtr& inode : inodes_) {
      MutexLock lock(inode->mutex);
      inode->publishing = false;
    }
  }
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  // Adds an inode under one of its names. The path is relative to the directory.
  Result<void> Add(const InodePtr& inode, const std::string& path);
  // Called after the last Add.
  Result<void> CheckNames();
  Error Fail(const std::string& path, ErrorCode code) {
    failed_ = path;
    return {code};
  }

  const std::vector<InodePtr>& inodes() const { return inodes_; }  // the directory is the first
  // Those of the inodes that are among `candidates`.
  std::vector<InodePtr> Among(const std::vector<InodePtr>& candidates) const {
    std::vector<InodePtr> found;
    for (const InodePtr& inode : candidates) {
      if (paths_.contains(inode->id)) found.push_back(inode);
    }
    return found;
  }
  uint64_t files() const { return files_; }
  // A path of an inode of the tree.
  std::string PathOf(InodeId ino) const {
    const auto found = paths_.find(ino);
    return found == paths_.end() ? std::string() : found->second;
  }

 private:
  bool IsOpen(const InodePtr& inode) const {
    MutexLock lock(inode->mutex);
    return inode->open_writers > 0;
  }
  // Returns kAgain while the file is open for writing, or another call is publishing it.
  Result<void> TryFreeze(const InodePtr& inode);

  const Credentials& who_;
  const bool freeze_;
  std::string& failed_;
  const std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::now() + kCloseWait;
  std::vector<InodePtr> inodes_;
  std::unordered_map<InodeId, std::string> paths_;  // of all inodes
  std::unordered_map<InodeId, uint32_t> links_;     // of files with several names: those that were not found yet
  uint64_t files_ = 0;
};

Result<void> Namespace::Tree::TryFreeze(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (inode->deleted) return ErrorCode::kStale;
  if (who_.uid != inode->attributes.uid && !who_.Can(CAP_FOWNER)) return ErrorCode::kPermission;
  if (freeze_) {
    if (inode->publishing) return ErrorCode::kAgain;
    if (inode->IsImmutable()) return ErrorCode::kBusy;
    if (inode->open_writers > 0) return ErrorCode::kAgain;
    inode->publishing = true;
  }
  if (inode->IsRegular()) ++files_;
  if (!inode->IsDirectory() && inode->attributes.links > 1) links_[inode->id] = inode->attributes.links;
  return {};
}

Result<void> Namespace::Tree::Add(const InodePtr& inode, const std::string& path) {
  if (!paths_.contains(inode->id)) {
    if (inodes_.size() == kMaximumTree) return Fail({}, ErrorCode::kTooLarge);
    auto frozen = TryFreeze(inode);
    while (!frozen && frozen.error().code == ErrorCode::kAgain) {
      if (path.empty()) return Fail({}, ErrorCode::kAgain);
      if (std::chrono::steady_clock::now() > deadline_)
        return Fail(path, IsOpen(inode) ? ErrorCode{ETXTBSY} : ErrorCode::kBusy);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      frozen = TryFreeze(inode);
    }
    if (!frozen) return Fail(path, frozen.error().code);
    inodes_.push_back(inode);
    paths_.emplace(inode->id, path);
  }
  if (const auto links = links_.find(inode->id); links != links_.end()) {
    if (--links->second == 0) links_.erase(links);
  }
  return {};
}

Result<void> Namespace::Tree::CheckNames() {
  if (links_.empty()) return {};
  return Fail(PathOf(links_.begin()->first), ErrorCode::kTooManyLinks);
}

// A directory gets no new entries once it is immutable, so its entries are read after it was added.
Result<void> Namespace::CollectTree(const InodePtr& top, Tree* tree) {
  RETURN_IF_ERROR(tree->Add(top, {}));
  std::vector<std::pair<InodeId, std::string>> directories = {{top->id, {}}};
  while (!directories.empty()) {
    const auto [directory, path] = std::move(directories.back());
    directories.pop_back();
    const auto entry = catalog_.NewIterator(keys::EntryPrefix(directory));
    for (; entry->Valid(); entry->Next()) {
      const auto key = keys::ParseNamed(entry->key());
      const auto record = EntryRecord::Decode(entry->value());
      if (!key || !record) {
        static_cast<void>(Damaged(directory, "one of its entries is damaged"));
        return tree->Fail(path, ErrorCode::kCorrupt);
      }
      const std::string name = path.empty() ? std::string(key->name) : path + "/" + std::string(key->name);
      const auto inode = inodes_.Get(record->ino);
      if (!inode) return tree->Fail(name, inode.error().code);
      RETURN_IF_ERROR(tree->Add(*inode, name));
      if (S_ISDIR(record->type)) directories.emplace_back(record->ino, name);
    }
    RETURN_IF_ERROR(entry->status());
  }
  return tree->CheckNames();
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

Result<PublicationRecord> Namespace::PublishTree(InodeId ino, const Credentials& who, std::optional<uint64_t> version,
                                                 std::string* failed) {
  failed->clear();
  RETURN_IF_ERROR(CheckWritable(KvChange::kGrow));
  if (ino == kRootInode || version.value_or(0) > kMaximumVersion) return ErrorCode::kInvalid;
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  while (true) {
    auto existing = GetPublication(ino);
    if (existing && version && *version != existing->version) return ErrorCode::kExists;
    if (existing || existing.error().code != ErrorCode::kNoAttribute) return existing;
    auto published = TryPublish(directory, who, version, failed);
    if (published || published.error().code != ErrorCode::kAgain) return published;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Returns kAgain while another call is publishing the same directory: its publication will be that of both.
Result<PublicationRecord> Namespace::TryPublish(const InodePtr& directory, const Credentials& who,
                                                std::optional<uint64_t> version, std::string* failed) {
  Tree tree(who, /*freeze=*/true, failed);
  RETURN_IF_ERROR(CollectTree(directory, &tree));
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
  transaction.PutAttribute(directory, kPublicationName, publication.Encode(), std::nullopt);
  RETURN_IF_ERROR(transaction.CommitPublication());
  return publication;
}

Result<void> Namespace::UnpublishTree(InodeId ino, const Credentials& who, std::string* failed) {
  failed->clear();
  RETURN_IF_ERROR(CheckWritable(KvChange::kUpdate));
  ASSIGN_OR_RETURN(const InodePtr directory, GetDirectory(ino));
  ASSIGN_OR_RETURN(const PublicationRecord before, GetPublication(ino));
  Tree tree(who, /*freeze=*/false, failed);
  RETURN_IF_ERROR(CollectTree(directory, &tree));
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

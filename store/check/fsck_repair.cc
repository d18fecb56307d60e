// SPDX-License-Identifier: Apache-2.0
// Writes the corrections of the passes. After each batch the catalog is in a state that another check can repair
// further.
#include <fmt/format.h>

#include <algorithm>

#include "meta/records.h"
#include "store/check/fsck_internal.h"

namespace weightfs::fsck {
namespace {

constexpr size_t kBatchChanges = 1000;
constexpr const char* kLostAndFound = "lost+found";

}  // namespace

Result<void> Checker::WriteBatch() {
  if (batch_.empty()) return {};
  return catalog_.Write(std::exchange(batch_, KvBatch()));
}

Result<void> Checker::Put(std::string key, std::string value) {
  batch_.Put(std::move(key), std::move(value));
  return batch_.changes().size() < kBatchChanges ? Result<void>() : WriteBatch();
}

// Does not check for cancellation: every batch leaves a sound catalog, but the message "nothing was changed" would be
// false.
void Checker::CountRepair() {
  ++progress_.done;
  ShowProgress("repairing");
}

Result<void> Checker::Repair() {
  const auto lost =
      static_cast<uint64_t>(std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.lost; }));
  const auto rewritten = static_cast<uint64_t>(
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.rewrite && !node.lost; }));
  // A lost inode counts twice, because it gets a name and is then rewritten.
  StartPass(Progress::Unit::kItems, missing_checksums_.size() + puts_.size() + 2 * lost + rewritten + drops_.size());
  // Rebuild checksums first, while all records that they depend on still exist.
  if (!missing_checksums_.empty()) {
    ASSIGN_OR_RETURN(const auto reader, DataReader::Create(devices_, 0));
    for (const Segment& segment : missing_checksums_) {
      CountRepair();
      RETURN_IF_ERROR(RebuildChecksums(*reader, segment));
    }
  }
  for (auto& [key, value] : puts_) {
    CountRepair();
    RETURN_IF_ERROR(Put(std::move(key), std::move(value)));
  }
  if (lost > 0) {
    RETURN_IF_ERROR(MakeLostAndFound());
    for (Node& node : nodes_) {
      if (!node.lost) continue;
      CountRepair();
      RETURN_IF_ERROR(NameLost(node));
    }
  }
  for (const Node& node : nodes_) {
    if (!node.rewrite) continue;
    CountRepair();
    RETURN_IF_ERROR(RewriteInode(node));
  }
  for (std::string& key : drops_) {
    CountRepair();
    batch_.Delete(std::move(key));
    if (batch_.changes().size() >= kBatchChanges) RETURN_IF_ERROR(WriteBatch());
  }
  RETURN_IF_ERROR(Put(keys::Store(kNextInodeFact), EncodeFact(next_ino_)));
  RETURN_IF_ERROR(Put(keys::Store(kInodeCountFact), EncodeFact(nodes_.size())));
  RETURN_IF_ERROR(WriteBatch());
  return catalog_.Sync();
}

// Skips unused inode numbers for which records will be deleted at the end, because that would delete records of new
// inodes.
void Checker::SkipDroppedNumbers() {
  const auto dropped = [this](uint64_t ino) {
    const std::string number = keys::Inode(InodeId{ino}).substr(1);
    return std::any_of(drops_.begin(), drops_.end(),
                       [&](const std::string& key) { return key.compare(1, number.size(), number) == 0; });
  };
  while (dropped(next_ino_)) ++next_ino_;
}

// Uses the directory of that name in the root, or creates one under a free name.
Result<void> Checker::MakeLostAndFound() {
  std::string name = kLostAndFound;
  for (int suffix = 1;; ++suffix) {
    ASSIGN_OR_RETURN(const auto bytes, catalog_.Get(keys::Entry(kRootInode, name)));
    if (!bytes) break;
    const auto entry = EntryRecord::Decode(*bytes);
    const Node* node = entry ? Find(entry->ino.value) : nullptr;
    if (node != nullptr && node->IsDirectory() && node->place == kRootInode.value && !node->lost) {
      lost_and_found_ = node->ino;
      return {};
    }
    name = fmt::format("{}.{}", kLostAndFound, suffix);
  }
  SkipDroppedNumbers();
  Node made;
  made.ino = lost_and_found_ = next_ino_++;
  made.mode = S_IFDIR;
  made.damaged = made.rewrite = true;  // RewriteInode creates it like a damaged inode
  made.parent = made.place = kRootInode.value;
  made.names = 1;
  made.links = 2;
  nodes_.push_back(made);
  Node& root = *Find(kRootInode.value);
  ++root.links;
  root.rewrite = true;
  return Put(keys::Entry(kRootInode, name), EntryRecord{InodeId{made.ino}, S_IFDIR}.Encode());
}

Result<void> Checker::NameLost(Node& node) {
  const InodeId directory{lost_and_found_};
  std::string name = fmt::format("#{}", node.ino);
  for (int suffix = 1;; ++suffix) {
    ASSIGN_OR_RETURN(const auto taken, catalog_.Get(keys::Entry(directory, name)));
    if (!taken) break;
    name = fmt::format("#{}.{}", node.ino, suffix);
  }
  Node& above = *Find(lost_and_found_);
  above.rewrite = true;
  node.rewrite = true;
  if (node.IsDirectory()) {
    node.parent = lost_and_found_;
    ++above.links;
  }
  return Put(keys::Entry(directory, name), EntryRecord{InodeId{node.ino}, node.mode & S_IFMT}.Encode());
}

Result<void> Checker::RewriteInode(const Node& node) {
  const std::string key = keys::Inode(InodeId{node.ino});
  InodeRecord record;
  if (node.damaged) {
    // The owner is unknown, so restrict the inode to the superuser.
    record.mode = (node.mode & S_IFMT) | (node.IsDirectory() ? 0700 : 0600);
    if (node.ino == kRootInode.value) record.mode = S_IFDIR | 0755;
    record.generation = 1;
    record.size = node.IsRegular() ? node.SizeAfterRepair() : 0;
    record.data_version = node.version;  // the next commit's is later: its entry tells its extents from these
    record.accessed = record.modified = record.changed = record.created = Timestamp::Now();
  } else {
    ASSIGN_OR_RETURN(const auto bytes, catalog_.Get(key));
    if (!bytes) return ErrorCode::kCorrupt;  // it existed a moment ago
    ASSIGN_OR_RETURN(record, InodeRecord::Decode(*bytes));
  }
  record.links = node.links;
  record.flags = node.flags;
  record.blocks = node.blocks;
  if (node.IsDirectory()) record.parent = node.parent;
  return Put(key, record.Encode());
}

}  // namespace weightfs::fsck

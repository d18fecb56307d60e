// SPDX-License-Identifier: Apache-2.0
// Checks of names: inodes, entries, the tree, attributes and the facts of the store.
#include <fmt/format.h>

#include <algorithm>

#include "common/hex.h"
#include "meta/records.h"
#include "store/check/fsck_internal.h"
#include "store/names/acl.h"
#include "store/names/namespace_internal.h"
#include "store/types.h"

namespace weightfs::fsck {
namespace {

// Far more than were ever used. A greater number is damage, and would leave no unused numbers.
constexpr uint64_t kMaximumInode = uint64_t{1} << 62;

// Formats a key of unknown form for messages.
std::string Hex(std::string_view bytes) { return ToHex(bytes.substr(0, 24)); }

}  // namespace

Result<void> Checker::ScanInodes() {
  RETURN_IF_ERROR(ForEach(keys::kInode, "inodes", [&](std::string_view key, std::string_view value) -> Result<void> {
    const auto parsed = keys::ParseInode(key);
    if (!parsed || parsed->value == 0 || parsed->value > kMaximumInode) {
      return Reject(key, FindingKind::kDamagedKey, 0, fmt::format("the key {} names no inode", Hex(key)));
    }
    return TakeInode(*parsed, value);
  }));
  CheckRoot();
  return {};
}

Result<void> Checker::TakeInode(InodeId ino, std::string_view value) {
  ++inode_records_;
  Node node;
  node.ino = ino.value;
  if (const auto record = InodeRecord::Decode(value)) {
    node.mode = record->mode;
    node.links = record->links;
    node.flags = record->flags;
    node.parent = record->parent;
    node.size = record->size;
    node.blocks = record->blocks;
  } else {
    Report(FindingKind::kDamagedRecord, ino.value, "its record cannot be decoded");
    node.damaged = node.rewrite = true;
    // The records that belong to the inode reveal its type; otherwise the entry that refers to it does.
    const auto entries = catalog_.NewIterator(keys::EntryPrefix(ino));
    const auto extents = catalog_.NewIterator(keys::ExtentPrefix(ino));
    if (entries->Valid()) {
      node.mode = S_IFDIR;
    } else if (extents->Valid()) {
      node.mode = S_IFREG;
    }
    RETURN_IF_ERROR(entries->status());
    RETURN_IF_ERROR(extents->status());
  }
  nodes_.push_back(node);
  return {};
}

void Checker::CheckRoot() {
  Node* root = Find(kRootInode.value);
  if (root == nullptr) {
    nodes_.insert(nodes_.begin(), Node{.ino = kRootInode.value});
    root = &nodes_.front();
    root->damaged = root->rewrite = true;
    root->mode = S_IFDIR;
    Report(FindingKind::kDamagedRecord, kRootInode.value, "the root directory is missing");
  } else if (!root->IsDirectory()) {
    if (!root->damaged) Report(FindingKind::kDamagedRecord, kRootInode.value, "the root is no directory");
    root->damaged = root->rewrite = true;
    root->mode = S_IFDIR;
  }
  root->place = kRootInode.value;
  root->names = 1;
  root->reaches_root = true;
}

Result<void> Checker::ScanOrphans() {
  return ForEach(keys::kOrphan, "orphans", [&](std::string_view key, std::string_view) -> Result<void> {
    const auto parsed = keys::ParseInode(key);
    Node* node = parsed ? Find(parsed->value) : nullptr;
    if (!parsed) {
      return Reject(key, FindingKind::kDamagedKey, 0, fmt::format("the key {} names no orphan", Hex(key)));
    }
    if (node == nullptr || node->ino == kRootInode.value) {
      return Reject(key, FindingKind::kWrongOrphan, parsed->value,
                    "listed as deleted, but there is no such inode to delete");
    }
    node->orphan = true;
    ++report_.orphans;
    return {};
  });
}

Result<void> Checker::ScanEntries() {
  RETURN_IF_ERROR(ForEach(keys::kEntry, "names", [&](std::string_view key, std::string_view value) {
    ++report_.entries;
    return TakeEntry(key, value);
  }));
  // An orphan with a name is not an orphan: deleting it would leave the name behind.
  for (Node& node : nodes_) {
    if (!node.orphan || node.names == 0) continue;
    Report(FindingKind::kWrongOrphan, node.ino, "listed as deleted, but it has a name");
    Drop(keys::Orphan(InodeId{node.ino}));
    node.orphan = false;
    --report_.orphans;
  }
  return {};
}

Result<void> Checker::TakeEntry(std::string_view key, std::string_view value) {
  const auto drop = [&](FindingKind kind, uint64_t ino, std::string what) {
    return Reject(key, kind, ino, std::move(what));
  };
  const auto parsed = keys::ParseNamed(key);
  if (!parsed) return drop(FindingKind::kDamagedKey, 0, fmt::format("the key {} names no entry", Hex(key)));
  const InodeId parent = parsed->ino;
  const std::string name = Quoted(parsed->name);
  auto entry = EntryRecord::Decode(value);
  if (!entry) {
    return drop(FindingKind::kDamagedRecord, parent.value, fmt::format("its entry {} cannot be decoded", name));
  }
  const Node* directory = Find(parent.value);
  if (directory == nullptr || !directory->IsDirectory()) {
    return drop(FindingKind::kDanglingEntry, parent.value, fmt::format("is no directory, but has an entry {}", name));
  }
  if (directory->orphan) {
    return drop(FindingKind::kDanglingEntry, parent.value, fmt::format("was removed, but has an entry {}", name));
  }
  if (!CheckName(parsed->name) || IsDots(parsed->name)) {
    return drop(FindingKind::kDanglingEntry, parent.value, fmt::format("its entry {} has an impossible name", name));
  }
  Node* node = Find(entry->ino.value);
  if (node == nullptr) {
    return drop(FindingKind::kDanglingEntry, parent.value,
                fmt::format("its entry {} leads to inode {}, which does not exist", name, entry->ino.value));
  }
  if (node->mode == 0) {
    // A damaged inode can be rebuilt only if nothing essential is lost, such as the target of a symbolic link.
    if (!S_ISREG(entry->type) && !S_ISDIR(entry->type)) {
      return drop(FindingKind::kDanglingEntry, parent.value,
                  fmt::format("its entry {} leads to inode {}, which is damaged", name, entry->ino.value));
    }
    node->mode = entry->type;
  }
  if ((node->mode & S_IFMT) != entry->type) {
    Report(FindingKind::kWrongEntryType, parent.value,
           fmt::format("its entry {} has another type than its inode", name));
    entry->type = node->mode & S_IFMT;
    puts_.emplace_back(key, entry->Encode());
  }
  if (node->IsDirectory()) return TakeDirectoryEntry(*node, parent, key);
  ++node->names;
  if (node->place == 0) node->place = parent.value;
  return {};
}

// A directory has one name. Of two, the one in the directory that its record names as parent is right.
Result<void> Checker::TakeDirectoryEntry(Node& node, InodeId parent, std::string_view key) {
  if (node.place == 0) {
    node.place = parent.value;
    node.names = 1;
    return {};
  }
  Report(FindingKind::kSecondEntry, node.ino, fmt::format("a directory with a second name, in inode {}", parent.value));
  const bool keep_new = node.ino != kRootInode.value && node.parent == parent.value && node.place != parent.value;
  if (!keep_new) {
    Drop(key);
    return {};
  }
  ASSIGN_OR_RETURN(const auto old_name, NameIn(node.place, node.ino));
  if (old_name) Drop(keys::Entry(InodeId{node.place}, *old_name));
  node.place = parent.value;
  return {};
}

Result<void> Checker::CheckTree() {
  for (Node& node : nodes_) {
    if (node.IsDirectory() && node.place != 0) RETURN_IF_ERROR(ConnectToRoot(node));
  }
  CheckLost();
  for (Node& node : nodes_) {
    if (!node.IsDirectory() || node.lost || node.orphan) continue;
    if (node.parent != node.place) {
      if (!node.damaged) {
        Report(FindingKind::kWrongParent, node.ino,
               fmt::format("inode {} is noted as its parent, not {}", node.parent, node.place));
      }
      node.parent = node.place;
      node.rewrite = true;
    }
    if (node.ino != kRootInode.value) ++Find(node.place)->subdirectories;
  }
  return {};
}

// Follows the parents up to the root, or to a directory without a parent (which is lost, and reported as such). Breaks
// a cycle where it closes.
Result<void> Checker::ConnectToRoot(Node& node) {
  std::vector<Node*> path;
  Node* at = &node;
  while (!at->reaches_root && !at->on_path && at->place != 0) {
    at->on_path = true;
    path.push_back(at);
    at = Find(at->place);
  }
  if (at->on_path) {
    Report(FindingKind::kUnreachable, at->ino,
           "no path leads to it: the directories above it list each other in a ring");
    ASSIGN_OR_RETURN(const auto name, NameIn(at->place, at->ino));
    if (name) Drop(keys::Entry(InodeId{at->place}, *name));
    at->place = 0;
    at->names = 0;
    at->lost = at->rewrite = true;
  }
  for (Node* passed : path) {
    passed->on_path = false;
    passed->reaches_root = true;
  }
  return {};
}

void Checker::CheckLost() {
  for (Node& node : nodes_) {
    if (node.mode == 0) {
      // The finding was reported when the record was read.
      Drop(keys::Inode(InodeId{node.ino}));
      if (node.orphan) Drop(keys::Orphan(InodeId{node.ino}));
      continue;
    }
    if (node.names > 0 || node.orphan || node.lost) continue;
    Report(FindingKind::kLostInode, node.ino, "no name leads to it");
    node.lost = node.rewrite = true;
  }
  std::erase_if(nodes_, [](const Node& node) { return node.mode == 0; });
}

// Everything below a published directory is published. CheckTree has removed the cycles.
uint32_t Checker::PublishedFlag(const Node& node) {
  const Node* at = publications_ == 0 ? nullptr : &node;
  while (at != nullptr && !at->publication && !at->publishing) {
    if (at->lost || at->place == 0 || at->ino == kRootInode.value) return 0;
    at = Find(at->place);
  }
  if (at == nullptr) return 0;
  return at->publication ? kInodePublished : node.flags & kInodePublished;
}

void Checker::CheckCounts() {
  for (Node& node : nodes_) {
    ++report_.inodes;
    report_.directories += node.IsDirectory() ? 1 : 0;
    report_.files += node.IsRegular() ? 1 : 0;
    // A lost inode gets its name in Repair, and with it these counts.
    const uint32_t names = node.lost ? 1 : node.names;
    const uint32_t links = node.orphan ? 0 : node.IsDirectory() ? 2 + node.subdirectories : names;
    const uint64_t blocks = node.found_blocks;
    uint32_t flags = node.flags;
    if (node.attributes) flags |= kInodeHasAttributes;
    if (!node.orphan) flags &= ~static_cast<uint32_t>(kInodeUnnamed);
    flags = (flags & ~static_cast<uint32_t>(kInodePublished)) | PublishedFlag(node);
    const bool quiet = node.damaged || node.lost;
    if (!quiet && node.links != links) {
      Report(FindingKind::kWrongLinkCount, node.ino, fmt::format("{} links, not {}", node.links, links));
    }
    if (!node.damaged && node.blocks > blocks) {
      Report(FindingKind::kMissingExtents, node.ino,
             fmt::format("{} of its {} blocks are lost, and read as zeros: restore it from a backup",
                         node.blocks - blocks, node.blocks));
    } else if (!node.damaged && node.blocks != blocks) {
      Report(FindingKind::kWrongBlockCount, node.ino, fmt::format("{} blocks, not {}", node.blocks, blocks));
    }
    if (!quiet && node.flags != flags) Report(FindingKind::kWrongFlags, node.ino, "its flags do not fit what it has");
    if (node.links != links || node.blocks != blocks || node.flags != flags) node.rewrite = true;
    node.links = links;
    node.blocks = blocks;
    node.flags = flags;
  }
}

Result<void> Checker::ScanAttributes() {
  return ForEach(keys::kAttribute, "attributes", [&](std::string_view key, std::string_view value) -> Result<void> {
    const auto parsed = keys::ParseNamed(key);
    Node* node = parsed ? Find(parsed->ino.value) : nullptr;
    const bool is_acl = parsed && (parsed->name == kAccessAclName || parsed->name == kDefaultAclName);
    const bool publishes = parsed && parsed->name == kPublicationName;
    if (!parsed) {
      Report(FindingKind::kDamagedKey, 0, fmt::format("the key {} names no attribute", Hex(key)));
    } else if (node == nullptr) {
      Report(FindingKind::kStrayRecord, parsed->ino.value,
             fmt::format("does not exist, but has an attribute {}", Quoted(parsed->name)));
    } else if (value.size() > kMaximumAttributeValue || (is_acl && !Acl::Decode(value)) ||
               (publishes && (!node->IsDirectory() || !PublicationRecord::Decode(value)))) {
      Report(FindingKind::kDamagedRecord, node->ino, fmt::format("its attribute {} is damaged", Quoted(parsed->name)));
    } else {
      node->attributes = true;
      if (publishes) node->publication = true;
      if (publishes) ++publications_;
      return {};
    }
    Drop(key);
    return {};
  });
}

Result<void> Checker::ScanPublishing() {
  const auto facts = catalog_.NewIterator(keys::Store(kPublishingFact));
  for (; facts->Valid(); facts->Next()) {
    const auto ino = DecodeFact(facts->value());
    if (!ino) {
      Report(FindingKind::kWrongFact, 0, "the number of a directory with an interrupted publication is damaged");
      Drop(facts->key());
    } else if (Node* node = Find(*ino); node != nullptr) {
      node->publishing = true;
      ++publications_;
    }
  }
  return facts->status();
}

Result<void> Checker::CheckFacts() {
  const uint64_t greatest = nodes_.back().ino;
  next_ino_ = greatest + 1;
  RETURN_IF_ERROR(CheckFact(kNextInodeFact, greatest + 1, kMaximumInode + 1));
  RETURN_IF_ERROR(CheckFact(kInodeCountFact, inode_records_, inode_records_, /*optional=*/true));
  RETURN_IF_ERROR(CheckFact(kLastVersionFact, 0, kMaximumVersion, /*optional=*/true));
  return CheckFact(kLastPublicationFact, 0, INT64_MAX, /*optional=*/true);
}

Result<void> Checker::CheckFact(const char* name, uint64_t least, uint64_t most, bool optional) {
  const auto fact = ReadFact(catalog_, name);
  if (!fact && fact.error().code == ErrorCode::kIo) return fact.error();
  const bool known = fact && *fact;
  if (known ? **fact >= least && **fact <= most : optional && fact) {
    if (name == kNextInodeFact) next_ino_ = **fact;
    return {};
  }
  const bool at_most = optional && least < most;
  if (optional) Drop(keys::Store(name));
  Report(FindingKind::kWrongFact, 0,
         known ? fmt::format("the store's number {} is {}, not {}{}", Quoted(name), **fact, at_most ? "at most " : "",
                             at_most ? most : least)
               : fmt::format("the store's number {} is missing or damaged", Quoted(name)));
  return {};
}

}  // namespace weightfs::fsck

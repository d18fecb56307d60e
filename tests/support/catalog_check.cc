// SPDX-License-Identifier: Apache-2.0
#include "tests/support/catalog_check.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <set>

#include "meta/keys.h"
#include "meta/records.h"

namespace weightfs {
namespace {

class Check {
 public:
  explicit Check(const KvContent& content) : content_(content) {}

  std::vector<std::string> Run() {
    for (const auto& [key, value] : content_) Take(key, value);
    for (const auto& [ino, record] : inodes_) CheckInode(ino, record);
    for (const uint64_t ino : orphans_) {
      if (!inodes_.contains(ino)) Complain(ino, "is an orphan without a record");
    }
    CheckFacts();
    return complaints_;
  }

 private:
  void Complain(uint64_t ino, const std::string& text) { complaints_.push_back(fmt::format("inode {} {}", ino, text)); }

  void Take(const std::string& key, const std::string& value) {
    if (key[0] == keys::kInode) {
      inodes_[keys::ParseInode(key)->value] = InodeRecord::Decode(value).value();
    } else if (key[0] == keys::kEntry) {
      const uint64_t parent = keys::ParseNamed(key)->ino.value;
      const EntryRecord entry = EntryRecord::Decode(value).value();
      entries_[parent].push_back(entry);
      parents_[entry.ino.value].insert(parent);
      ++names_[entry.ino.value];
    } else if (key[0] == keys::kOrphan) {
      orphans_.insert(keys::ParseInode(key)->value);
    } else if (key[0] == keys::kAttribute) {
      attributed_.insert(keys::ParseNamed(key)->ino.value);
    }
  }

  void CheckInode(uint64_t ino, const InodeRecord& record) {
    const uint64_t names = ino == kRootInode.value ? 1 : names_[ino];
    const bool orphan = orphans_.contains(ino), directory = S_ISDIR(record.mode);
    if (orphan != (names == 0)) Complain(ino, fmt::format("has {} names, orphan: {}", names, orphan));
    uint64_t expected = names;
    if (directory && !orphan) {
      expected = 2;
      for (const EntryRecord& entry : entries_[ino]) expected += S_ISDIR(entry.type) ? 1 : 0;
      if (names != 1) Complain(ino, "is a directory with more than one name");
      if (ino != kRootInode.value && *parents_[ino].begin() != record.parent) Complain(ino, "has a wrong parent");
      if (!ReachesRoot(ino)) Complain(ino, "does not reach the root");
    }
    if (record.links != expected) Complain(ino, fmt::format("has {} links, not {}", record.links, expected));
    if (directory && orphan && !entries_[ino].empty()) Complain(ino, "was removed but has entries");
    for (const EntryRecord& entry : entries_[ino]) {
      const auto target = inodes_.find(entry.ino.value);
      if (!directory) Complain(ino, "is no directory but has entries");
      if (target == inodes_.end())
        Complain(ino, fmt::format("names inode {}, which is missing", entry.ino.value));
      else if ((target->second.mode & S_IFMT) != entry.type)
        Complain(ino, "names a type wrongly");
    }
  }

  bool ReachesRoot(uint64_t ino) {
    for (size_t steps = 0; steps <= inodes_.size(); ++steps) {
      if (ino == kRootInode.value) return true;
      if (parents_[ino].empty()) return false;
      ino = *parents_[ino].begin();
    }
    return false;
  }

  void CheckFacts() {
    const auto fact = [&](const char* name) { return DecodeFact(content_.at(keys::Store(name))).value(); };
    const bool counted = content_.contains(keys::Store(kInodeCountFact));
    if (counted && fact(kInodeCountFact) != inodes_.size()) complaints_.push_back("the count of inodes is wrong");
    if (!inodes_.empty() && inodes_.rbegin()->first >= fact(kNextInodeFact)) {
      complaints_.push_back("an inode lies behind the bound of numbers");
    }
    for (const uint64_t ino : attributed_) {
      const auto inode = inodes_.find(ino);
      if (inode == inodes_.end())
        Complain(ino, "has attributes but no record");
      else if ((inode->second.flags & kInodeHasAttributes) == 0)
        Complain(ino, "has attributes but not the flag");
    }
  }

  const KvContent& content_;
  std::map<uint64_t, InodeRecord> inodes_;
  std::map<uint64_t, std::vector<EntryRecord>> entries_;  // by parent
  std::map<uint64_t, std::set<uint64_t>> parents_;
  std::map<uint64_t, uint64_t> names_;
  std::set<uint64_t> orphans_, attributed_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::string> CheckCatalog(const KvContent& content) { return Check(content).Run(); }

}  // namespace weightfs

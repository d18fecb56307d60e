// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/short_history.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <memory>
#include <set>
#include <utility>

#include "tests/support/whole_directory.h"

namespace weightfs {
namespace {

// What a program sees of an inode at `path`, other than its content.
std::string Describe(const std::string& path, InodeId ino, uint32_t mode, uint32_t links, bool published,
                     const std::map<std::string, std::string>& attributes, std::string_view target) {
  std::string text = fmt::format("{} inode={} mode={:o}", path, ino.value, mode);
  if (!S_ISDIR(mode)) text += fmt::format(" links={}", links);
  if (published) text += " published";
  for (const auto& [name, value] : attributes) text += fmt::format(" {}={}", name, value);
  if (!target.empty()) text += fmt::format(" target={}", target);
  return text;
}

}  // namespace

std::string_view ToText(Persist persist) {
  switch (persist) {
    case Persist::kNothing: return "";
    case Persist::kFile: return ", fsync";
    case Persist::kDirectory: return ", fsync of the directory";
    case Persist::kAll: break;
  }
  return ", sync";
}

TestStoreOptions ShortHistory::Options(size_t devices) {
  TestStoreOptions options;
  options.devices = devices;
  options.device_size = ByteCount{16 * kMiB};
  options.store.memory = ByteCount{32 * kMiB};
  options.store.commit_interval = std::chrono::hours(1);
  options.store.close_delay = std::chrono::hours(1);
  options.store.space_wait = std::chrono::milliseconds(1);
  return options;
}

// The store that every history starts from.
struct ShortHistory::Base {
  CrashImage image;
  History history;
  std::vector<Node> nodes;
  Paths paths;
};

const ShortHistory::Base& ShortHistory::BaseOf(const Kind& kind) {
  const auto make = [](size_t devices, bool full) {
    TestStore store(Options(devices));
    Base made;
    const auto add = [&](const std::string& path, uint32_t mode, const std::string& data, std::string_view target) {
      const size_t slash = path.rfind('/');
      const InodeId parent = slash == std::string::npos ? kRootInode : store.Resolve(path.substr(0, slash)).value();
      CreateRequest request;
      request.mode = mode;
      request.symlink = target;
      const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
      const auto created = store->names().Create(parent, name, request);
      made.paths[path] = made.nodes.size();
      made.nodes.push_back({.ino = created.value().ino, .mode = created.value().mode, .target = std::string(target)});
      if (!S_ISREG(mode)) return;
      EXPECT_TRUE(store.WriteFile(path, data).has_value());
      made.nodes.back().file = made.history.NewFile(data);
    };
    add("A", S_IFDIR | 0755, {}, {});
    add("A/C", S_IFDIR | 0755, {}, {});
    add("B", S_IFDIR | 0755, {}, {});
    add("A/C/in", S_IFREG | 0644, Pattern(3, 100), {});
    add("foo", S_IFREG | 0644, Pattern(1, 9000), {});
    add("A/bar", S_IFREG | 0644, Pattern(2, 5000), {});
    add("A/soft", S_IFLNK | 0777, {}, "bar");
    Node& bar = made.nodes[made.paths["A/bar"]];
    EXPECT_TRUE(store->names().SetExtendedAttribute(bar.ino, kAttribute, "first", AttributeWrite::kAny).has_value());
    bar.attributes[kAttribute] = "first";
    EXPECT_TRUE(store->names().Link(bar.ino, kRootInode, "bar").has_value());
    made.paths["bar"] = made.paths["A/bar"];
    if (full) {
      add("fill", S_IFREG | 0644, {}, {});
      const uint64_t size = (store->Space().available.value - 5) * kBlockSize;
      const InodePtr fill = store.OpenPath("fill").value();
      EXPECT_TRUE(store->files().Fallocate(fill, FallocateMode::kAllocateKeepSize, 0, size).has_value());
      store->CloseFile(fill);
    }
    EXPECT_TRUE(store->Close().has_value());
    made.image = store.journal().ImageAt(store.journal().size(), {.kind = CrashOptions::Kind::kProcessKill});
    return made;
  };
  static const std::array<Base, 4> bases = {make(1, false), make(2, false), make(1, true), make(2, true)};
  return bases[kind.devices - 1 + (kind.full ? 2 : 0)];
}

ShortHistory::ShortHistory(const Kind& kind) : ShortHistory(kind, Options(kind.devices)) {}

ShortHistory::ShortHistory(const Kind& kind, const TestStoreOptions& options)
    : keeps_open_(kind.keeps_open),
      full_(kind.full),
      store_(BaseOf(kind).image, options),
      history_(BaseOf(kind).history),
      nodes_(BaseOf(kind).nodes),
      paths_(BaseOf(kind).paths) {
  EXPECT_TRUE(store_.opened().has_value());
  Named(0);
  ExpectAll();
}

void ShortHistory::Run(const Operation& operation, Persist persist) {
  began_ = Now();
  used_ = {};
  directory_ = {0};
  operation.run(*this);
  switch (persist) {
    case Persist::kNothing: break;
    case Persist::kFile:
      if (used_.inode == nullptr || !Took(store_->Sync(used_.inode)) || failed_) break;
      if (used_.file == History::kDirectory) {
        history_.SyncedNames(Now());
      } else {
        history_.Synced(used_.file, Now());
        replacing_.erase(used_.file);
      }
      break;
    case Persist::kDirectory: {
      if (directory_.value == 0) break;
      const auto inode = store_->inodes().Get(directory_);
      if (inode && Took(store_->Sync(*inode)) && !failed_) history_.SyncedNames(Now());
      break;
    }
    case Persist::kAll:
      if (Took(store_->SyncAll())) ExpectAll();
      break;
  }
  if (!keeps_open_) CloseUsed();
}

void ShortHistory::CloseUsed() {
  for (const Used& used : open_) {
    const auto reported = std::make_shared<std::atomic<uint64_t>>(0);
    store_->Flush(used.inode, reported.get(),
                  [this, reported](const Result<void>& result) {
                    EXPECT_TRUE(result.has_value() || expects_errors_);
                    if (!result) failed_ = true;
                  });
    store_->CloseFile(used.inode, 0, used.writes);
  }
  open_.clear();
  replacing_.clear();
}

void ShortHistory::ExpectAll() {
  if (failed_) return;
  for (const Node& node : nodes_) {
    if (node.file != History::kDirectory && !replacing_.contains(node.file)) history_.Synced(node.file, Now());
  }
  history_.SyncedNames(Now());
}

void ShortHistory::End() { EXPECT_TRUE(TryToEnd()); }

bool ShortHistory::TryToEnd() {
  used_ = {};
  CloseUsed();
  if (!store_->Close()) return false;
  ExpectAll();
  return true;
}

std::string ShortHistory::Operation::Word() const {
  std::string word;
  for (const char letter : name) word += std::isalnum(static_cast<unsigned char>(letter)) != 0 ? letter : '_';
  return word;
}

void ShortHistory::ReadTree(TestStore& store, History::Tree* tree, size_t* damaged) {
  const std::function<void(InodeId, const std::string&)> read = [&](InodeId directory, const std::string& prefix) {
    const auto entries = ReadDirectory(store->names(), directory);
    ASSERT_TRUE(entries.has_value()) << ToString(entries.error());
    for (const auto& entry : *entries) {
      if (entry.name == "." || entry.name == "..") continue;
      const std::string path = prefix + entry.name;
      const auto inode = store->inodes().Get(entry.ino);
      ASSERT_TRUE(inode.has_value()) << path << ": " << ToString(inode.error());
      const auto found = store->names().GetAttributes(entry.ino);
      ASSERT_TRUE(found.has_value()) << path << ": " << ToString(found.error());
      const auto names = store->names().ListExtendedAttributes(entry.ino);
      ASSERT_TRUE(names.has_value()) << path << ": " << ToString(names.error());
      std::map<std::string, std::string> attributes;
      for (const std::string& name : *names) {
        const auto value = store->names().GetExtendedAttribute(entry.ino, name);
        ASSERT_TRUE(value.has_value()) << path << ": " << ToString(value.error());
        attributes[name] = *value;
      }
      std::string target, content;
      if (S_ISLNK(entry.type)) {
        const auto link = store->names().ReadLink(entry.ino);
        ASSERT_TRUE(link.has_value()) << path << ": " << ToString(link.error());
        target = *link;
      }
      if (S_ISREG(entry.type)) {
        const auto text = store.ReadPath(path);
        ASSERT_TRUE(text.has_value() || damaged != nullptr) << path << ": " << ToString(text.error());
        content = text.value_or(History::kUnreadable);
        if (!text) ++*damaged;
        ASSERT_TRUE(!text || found->size == content.size()) << path;
      }
      bool published = false;
      {
        MutexLock lock((*inode)->mutex);
        published = (*inode)->IsImmutable();
      }
      (*tree)[Describe(path, entry.ino, found->mode, found->links, published, attributes, target)] = content;
      if (S_ISDIR(entry.type)) read(entry.ino, path + "/");
    }
  };
  read(kRootInode, "");
}

ShortHistory::Node* ShortHistory::Find(const std::string& path) {
  const auto found = paths_.find(path);
  return found == paths_.end() ? nullptr : &nodes_[found->second];
}

std::pair<InodeId, std::string> ShortHistory::Place(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) {
    directory_ = kRootInode;
    return {kRootInode, path};
  }
  const Node* parent = Find(path.substr(0, slash));
  directory_ = parent != nullptr && S_ISDIR(parent->mode) ? parent->ino : InodeId{0};
  return {directory_, path.substr(slash + 1)};
}

void ShortHistory::Named(size_t began, std::vector<History::FileId> ordered) {
  std::vector<uint32_t> links(nodes_.size());
  for (const auto& [path, index] : paths_) ++links[index];
  History::Names names;
  for (const auto& [path, index] : paths_) {
    const Node& node = nodes_[index];
    names[Describe(path, node.ino, node.mode, links[index], node.published, node.attributes, node.target)] = node.file;
  }
  history_.Named(began, std::move(names), std::move(ordered));
}

std::vector<History::FileId> ShortHistory::FilesBelow(const std::string& path) {
  std::vector<History::FileId> files;
  for (const auto& [other, index] : paths_) {
    if (nodes_[index].file == History::kDirectory) continue;
    const bool below = (path.empty() || other.starts_with(path + "/")) && !replacing_.contains(nodes_[index].file);
    if (other == path || below) files.push_back(nodes_[index].file);
  }
  return files;
}

bool ShortHistory::Takes(const Error* error) {
  if (error == nullptr) return true;
  static const std::set<ErrorCode> refusals = {ErrorCode::kNotFound,  ErrorCode::kExists,      ErrorCode::kNotDirectory,
                                               ErrorCode::kNotEmpty,  ErrorCode::kIsDirectory, ErrorCode::kPermission,
                                               ErrorCode::kInvalid,   ErrorCode::kNoAttribute, ErrorCode{ETXTBSY},
                                               ErrorCode::kTooManyLinks, ErrorCode::kBusy,     ErrorCode::kNoSpace};
  if (refusals.contains(error->code)) return false;
  EXPECT_TRUE(expects_errors_) << ToString(*error);
  failed_ = true;
  return false;
}

InodePtr ShortHistory::Open(const std::string& path, bool truncate) {
  const auto [parent, name] = Place(path);
  const Node* node = Find(path);
  if (node == nullptr) return nullptr;
  if (!S_ISREG(node->mode)) {
    const auto inode = store_->inodes().Get(node->ino);
    if (!Took(inode)) return nullptr;
    Use(*inode, History::kDirectory, path, false, false);
    return *inode;
  }
  const auto inode = store_->OpenFile(node->ino, truncate, true);
  if (!Took(inode)) return nullptr;
  Use(*inode, node->file, path, true, true);
  return *inode;
}

void ShortHistory::Use(InodePtr inode, History::FileId file, const std::string& path, bool opened, bool writes) {
  static_cast<void>(Place(path));
  used_ = {std::move(inode), file, opened, writes};
  if (opened) open_.push_back(used_);
}

}  // namespace weightfs

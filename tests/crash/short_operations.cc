// SPDX-License-Identifier: Apache-2.0
// The operations of ShortHistory.
#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "tests/crash/short_history.h"

namespace weightfs {
namespace {

const Credentials kRoot{.uid = 0, .capabilities = uint64_t{1} << CAP_FOWNER};

}  // namespace

const std::vector<ShortHistory::Operation>& ShortHistory::Operations() {
  using H = ShortHistory;
  using Mode = FallocateMode;
  static const std::vector<Operation> operations = {
      {"create new", true, [](H& h) { h.Make("new", S_IFREG | 0644); }},
      {"create A/new", true, [](H& h) { h.Make("A/new", S_IFREG | 0600); }},
      {"mkdir D", true, [](H& h) { h.Make("D", S_IFDIR | 0755); }},
      {"mkdir A/D", true, [](H& h) { h.Make("A/D", S_IFDIR | 0700); }},
      {"symlink B/new", true, [](H& h) { h.Make("B/new", S_IFLNK | 0777, "../foo"); }},
      {"tmpfile new", false, [](H& h) { h.MakeUnnamed("new"); }},
      {"link foo A/new", true, [](H& h) { h.Link("foo", "A/new"); }},
      {"link A/bar new", true, [](H& h) { h.Link("A/bar", "new"); }},
      {"unlink foo", true, [](H& h) { h.Unlink("foo"); }},
      {"unlink A/bar", true, [](H& h) { h.Unlink("A/bar"); }},
      {"unlink bar", true, [](H& h) { h.Unlink("bar"); }},
      {"unlink new", true, [](H& h) { h.Unlink("new"); }},
      {"rmdir B", true, [](H& h) { h.RemoveDirectory("B"); }},
      {"unlink A/C/in", true, [](H& h) { h.Unlink("A/C/in"); }},
      {"rmdir A/C", true, [](H& h) { h.RemoveDirectory("A/C"); }},
      {"rename foo new", true, [](H& h) { h.Rename("foo", "new"); }},
      {"rename foo A/bar", true, [](H& h) { h.Rename("foo", "A/bar"); }},
      {"rename A/bar foo", true, [](H& h) { h.Rename("A/bar", "foo"); }},
      {"rename new foo", true, [](H& h) { h.Rename("new", "foo"); }},
      {"rename A/bar B/bar", true, [](H& h) { h.Rename("A/bar", "B/bar"); }},
      {"rename A D", true, [](H& h) { h.Rename("A", "D"); }},
      {"rename A/C B", true, [](H& h) { h.Rename("A/C", "B"); }},
      {"rename A B/A", true, [](H& h) { h.Rename("A", "B/A"); }},
      {"rename A/soft soft", true, [](H& h) { h.Rename("A/soft", "soft"); }},
      {"exchange foo A/bar", true, [](H& h) { h.Rename("foo", "A/bar", RenameMode::kExchange); }},
      {"exchange A B", true, [](H& h) { h.Rename("A", "B", RenameMode::kExchange); }},
      {"chmod foo", true, [](H& h) { h.SetMode("foo", 0640); }},
      {"chmod A", true, [](H& h) { h.SetMode("A", 0711); }},
      {"setxattr foo", true, [](H& h) { h.SetAttribute("foo"); }},
      {"setxattr A", true, [](H& h) { h.SetAttribute("A"); }},
      {"removexattr A/bar", true, [](H& h) { h.RemoveAttribute("A/bar"); }},
      {"publish A", true, [](H& h) { h.Publish("A"); }},
      {"publish A/C", true, [](H& h) { h.Publish("A/C"); }},
      {"unpublish A/C", true, [](H& h) { h.Unpublish("A/C"); }},
      {"overwrite foo", false, [](H& h) { h.Write("foo", 1000, 3000); }},
      {"overwrite a block of foo", false, [](H& h) { h.Write("foo", kBlockSize, kBlockSize); }},
      {"extend foo", false, [](H& h) { h.Write("foo", 8000, 9000); }},
      {"write foo behind its end", false, [](H& h) { h.Write("foo", 30000, 100); }},
      {"write A/bar", false, [](H& h) { h.Write("A/bar", 0, 6000); }},
      {"write A/C/in", false, [](H& h) { h.Write("A/C/in", 50, 200); }},
      {"write new", false, [](H& h) { h.Write("new", 0, 5000); }},
      {"append foo", false, [](H& h) { h.Append("foo", 4000); }},
      {"replace foo", false, [](H& h) { h.Replace("foo", 7000); }},
      {"empty foo", false, [](H& h) { h.Replace("foo", 0); }},
      {"replace bar", false, [](H& h) { h.Replace("bar", 20000); }},
      {"truncate foo 100", false, [](H& h) { h.Truncate("foo", 100); }},
      {"truncate foo 8192", false, [](H& h) { h.Truncate("foo", 8192); }},
      {"truncate foo 50000", false, [](H& h) { h.Truncate("foo", 50000); }},
      {"fallocate foo", false, [](H& h) { h.Allocate("foo", Mode::kAllocate, 8000, 20000); }},
      {"fallocate -n foo", false, [](H& h) { h.Allocate("foo", Mode::kAllocateKeepSize, 8000, 20000); }},
      {"punch foo", false, [](H& h) { h.Allocate("foo", Mode::kPunchHole, 1000, 6000); }},
      // In several steps; for lack of space, one of them may be committed alone.
      {"zero foo", false, [](H& h) { if (!h.full_) h.Allocate("foo", Mode::kZeroRange, 4000, 9000); }},
      {"lease write foo", false, [](H& h) { h.WriteLeased("foo", 12000); }},
      {"save_many foo new", false, [](H& h) { h.SaveMany({"foo", "new"}, 6000); }},
      {"save_many new", false, [](H& h) { h.SaveMany({"new", "more"}, 0); }},
  };
  return operations;
}

void ShortHistory::Make(const std::string& path, uint32_t type, std::string_view target) {
  const auto [parent, name] = Place(path);
  if (parent.value == 0) return;
  CreateRequest request;
  request.mode = type;
  request.symlink = target;
  const size_t began = Now();
  const auto created = store_->names().Create(parent, name, request);
  if (!Took(created)) return;
  Node node{.ino = created->ino, .mode = created->mode, .target = std::string(target)};
  if (S_ISREG(type)) node.file = history_.NewFile();
  paths_[path] = nodes_.size();
  nodes_.push_back(node);
  Named(began);
  static_cast<void>(Open(path));
}

void ShortHistory::MakeUnnamed(const std::string& path) {
  const auto [parent, name] = Place(path);
  CreateRequest request;
  request.mode = S_IFREG | 0644;
  const auto created = store_->names().CreateUnnamed(parent, request);
  if (!Took(created)) return;
  const std::string data = NewData(5000);
  Node node{.ino = created->ino, .mode = created->mode, .file = history_.NewFile()};
  const InodePtr inode = store_->OpenFile(node.ino, false, true).value();
  Use(inode, node.file, path, true, true);
  size_t began = Now();
  if (!Took(store_.WriteAt(inode, 0, data))) return;
  history_.Wrote(node.file, began, data);
  began = Now();
  if (!Took(store_->names().Link(node.ino, parent, name))) {
    used_ = {};
    return;
  }
  paths_[path] = nodes_.size();
  nodes_.push_back(node);
  Named(began, {node.file});
}

void ShortHistory::Link(const std::string& from, const std::string& to) {
  const Node* node = Find(from);
  const auto [parent, name] = Place(to);
  if (node == nullptr || parent.value == 0) return;
  const size_t began = Now();
  if (!Took(store_->names().Link(node->ino, parent, name))) return;
  paths_[to] = paths_.at(from);
  Named(began, {node->file});
  replacing_.erase(node->file);
  static_cast<void>(Open(to));
}

void ShortHistory::Unlink(const std::string& path) {
  const auto [parent, name] = Place(path);
  if (keeps_open_) static_cast<void>(Open(path));
  const size_t began = Now();
  if (parent.value == 0 || !Took(store_->names().Unlink(parent, name))) return;
  paths_.erase(path);
  Named(began);
}

void ShortHistory::RemoveDirectory(const std::string& path) {
  const auto [parent, name] = Place(path);
  const size_t began = Now();
  if (parent.value == 0 || !Took(store_->names().RemoveDirectory(parent, name))) return;
  paths_.erase(path);
  Named(began);
}

void ShortHistory::Rename(const std::string& from, const std::string& to, RenameMode mode) {
  const auto [from_parent, from_name] = Place(from);
  const auto [to_parent, to_name] = Place(to);
  if (from_parent.value == 0 || to_parent.value == 0) return;
  const bool same = Find(from) != nullptr && Find(from) == Find(to);
  const size_t began = Now();
  if (!Took(store_->names().Rename(from_parent, from_name, to_parent, to_name, mode))) return;
  if (same) return;  // two names of one file: rename does nothing
  // A symbolic link may lead to any file.
  std::vector<History::FileId> ordered = S_ISLNK(Find(from)->mode) ? FilesBelow("") : FilesBelow(from);
  if (mode == RenameMode::kExchange) {
    for (const History::FileId file : FilesBelow(to)) ordered.push_back(file);
  }
  Paths paths;
  const auto moved = [](const std::string& path, const std::string& old, const std::string& now) {
    return now + path.substr(old.size());
  };
  for (const auto& [path, index] : paths_) {
    if (path == from || path.starts_with(from + "/")) {
      paths[moved(path, from, to)] = index;
    } else if (path == to || path.starts_with(to + "/")) {
      if (mode == RenameMode::kExchange) paths[moved(path, to, from)] = index;
    } else {
      paths[path] = index;
    }
  }
  paths_ = std::move(paths);
  if (Find(to)->file != History::kDirectory) replacing_.erase(Find(to)->file);
  Named(began, std::move(ordered));
  static_cast<void>(Open(to));
}

void ShortHistory::Write(const std::string& path, uint64_t at, size_t size) {
  const InodePtr inode = Open(path);
  if (inode == nullptr) return;
  const std::string text = NewData(size);
  const size_t began = Now();
  if (!Changed(store_.WriteAt(inode, at, text))) return;
  std::string data = history_.content(used_.file);
  if (data.size() < at + size) data.resize(at + size, '\0');
  data.replace(at, size, text);
  history_.Wrote(used_.file, began, std::move(data));
}

void ShortHistory::Append(const std::string& path, size_t size) {
  const InodePtr inode = Open(path);
  if (inode == nullptr) return;
  const std::string text = NewData(size);
  const size_t began = Now();
  if (!Changed(store_->files().Append(inode, AsBytes(text)))) return;
  history_.Wrote(used_.file, began, history_.content(used_.file) + text);
}

void ShortHistory::Replace(const std::string& path, size_t size) {
  const std::string text = NewData(size);
  const size_t began = Now();
  const InodePtr inode = Open(path, true);
  if (inode == nullptr) return;
  // For lack of space, a replacement is committed as it is.
  if (full_) history_.Wrote(used_.file, began, {});
  replacing_.insert(used_.file);
  if (size > 0 && !Changed(store_.WriteAt(inode, 0, text))) return;
  history_.Wrote(used_.file, began, text);
}

void ShortHistory::Truncate(const std::string& path, uint64_t size) {
  const InodePtr inode = Open(path);
  if (inode == nullptr) return;
  std::string data = history_.content(used_.file);
  data.resize(size, '\0');
  const size_t began = Now();
  if (Changed(store_->files().Truncate(inode, size))) history_.Wrote(used_.file, began, std::move(data));
}

void ShortHistory::Allocate(const std::string& path, FallocateMode mode, uint64_t at, uint64_t size) {
  const InodePtr inode = Open(path);
  if (inode == nullptr) return;
  std::string data = history_.content(used_.file);
  const bool grows = mode == FallocateMode::kAllocate || mode == FallocateMode::kZeroRange;
  if (grows && data.size() < at + size) data.resize(at + size, '\0');
  if (mode == FallocateMode::kPunchHole || mode == FallocateMode::kZeroRange) {
    for (uint64_t byte = at; byte < std::min<uint64_t>(at + size, data.size()); ++byte) data[byte] = '\0';
  }
  const size_t began = Now();
  if (!Changed(store_->files().Fallocate(inode, mode, at, size))) {
    data = store_.ReadAll(inode).value();  // for lack of space, a part of it
  }
  history_.Wrote(used_.file, began, std::move(data));
}

void ShortHistory::SetMode(const std::string& path, uint32_t mode) {
  if (Open(path) == nullptr) return;
  Node& node = *Find(path);
  const size_t began = Now();
  if (!Took(store_->SetAttributes(node.ino, {.mode = mode}))) return;
  node.mode = (node.mode & S_IFMT) | mode;
  Named(began);
}

void ShortHistory::SetAttribute(const std::string& path) {
  if (Open(path) == nullptr) return;
  Node& node = *Find(path);
  const std::string value = fmt::format("value-{}", ++seed_);
  const size_t began = Now();
  if (!Took(store_->names().SetExtendedAttribute(node.ino, kAttribute, value, AttributeWrite::kAny))) return;
  node.attributes[kAttribute] = value;
  Named(began);
}

void ShortHistory::RemoveAttribute(const std::string& path) {
  if (Open(path) == nullptr) return;
  Node& node = *Find(path);
  const size_t began = Now();
  if (!Took(store_->names().RemoveExtendedAttribute(node.ino, kAttribute))) return;
  node.attributes.erase(kAttribute);
  Named(began);
}

void ShortHistory::Publish(const std::string& path) {
  const Node* node = Find(path);
  static_cast<void>(Place(path));
  if (node == nullptr) return;
  Namespace::PublishCall call(node->ino, kRoot, 7, std::chrono::milliseconds(0));
  const size_t began = Now();
  auto published = store_->PublishTree(&call);
  if (!published && published.error().code == ErrorCode::kAgain) return;  // a file is open for writing
  if (!Changed(published)) return;
  for (auto& [other, index] : paths_) {
    if (other == path || other.starts_with(path + "/")) nodes_[index].published = true;
  }
  Named(began, FilesBelow(path));
  if (failed_) return;
  for (const History::FileId file : FilesBelow(path)) history_.Synced(file, Now());
  history_.SyncedNames(Now());
  static_cast<void>(Open(path));
}

void ShortHistory::Unpublish(const std::string& path) {
  const Node* node = Find(path);
  static_cast<void>(Place(path));
  if (node == nullptr) return;
  std::string failed;
  const size_t began = Now();
  if (!Changed(store_->UnpublishTree(node->ino, kRoot, &failed))) return;
  for (auto& [other, index] : paths_) {
    if (other == path || other.starts_with(path + "/")) nodes_[index].published = false;
  }
  Named(began);
  if (!failed_) history_.SyncedNames(Now());
}

void ShortHistory::WriteLeased(const std::string& path, size_t size) {
  const InodePtr inode = Open(path);
  if (inode == nullptr) return;
  const std::string text = NewData(size);
  const size_t began = Now();
  if (Changed(store_.WriteDirect(inode, 0, text, size))) history_.Wrote(used_.file, began, text);
}

void ShortHistory::SaveMany(const std::vector<std::string>& names, size_t size) {
  std::vector<TestStore::NamedFile> files;
  for (const std::string& name : names) files.push_back({name, NewData(size)});
  directory_ = kRootInode;
  const size_t began = Now();
  if (!Took(store_.CreateMany("", files))) return;
  for (const auto& file : files) {
    auto found = store_->names().Lookup(kRootInode, file.name);
    if (!Took(found)) found = store_->names().Lookup(kRootInode, file.name);  // one read of the index may fail
    paths_[file.name] = nodes_.size();
    nodes_.push_back({.ino = found.value().ino, .mode = found.value().mode, .file = history_.NewFile(file.data)});
  }
  Named(began);
  static_cast<void>(Open(names.front()));
}

}  // namespace weightfs

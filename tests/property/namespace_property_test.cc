// SPDX-License-Identifier: Apache-2.0
// Compares the namespace with a model in memory under random operations, and checks the catalog after every batch. A
// failure prints its seed; set WEIGHTFS_SEED to repeat it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "store/check/fsck.h"
#include "store/names/namespace.h"
#include "tests/support/catalog_check.h"
#include "tests/support/file_services.h"
#include "tests/support/memory_kv_store.h"
#include "tests/support/seeds.h"
#include "tests/support/whole_directory.h"

namespace weightfs {
namespace {

class NoData final : public DataOwner {
 public:
  Result<void> CheckWritable(KvChange) const override { return {}; }
  Result<void> CommitBeforeNaming(std::span<const InodePtr>, bool, InodePtr*) override { return {}; }
  void CommitSettledBeforeNaming(const std::vector<InodePtr>*) override {}
  Result<void> ReportErrors(std::span<const InodePtr>, bool) override { return {}; }
  std::vector<InodePtr> UncommittedFiles() override { return {}; }
  bool IsPassed(const Inode&) const override { return false; }
  void DropReadAhead(const Inode&) override {}
  Result<DataRecords> ReadRecords(const InodePtr&, bool restorable) override {
    DataRecords records;
    if (restorable) records.restore.emplace();
    return records;
  }
  bool DeleteRecords(const InodePtr&, const DataRecords&, KvBatch*) override { return true; }
  void DropData(const InodePtr&, const DataRecords&) override {}
};

// The model: a tree of nodes, with the simplest statement of each rule.
struct Node {
  bool directory = false;
  uint32_t links = 1;
  int opens = 0;
  uint64_t lookups = 0;
  Node* parent = nullptr;  // for a directory
  std::map<std::string, Node*> children;
  InodeId ino;
  std::map<std::string, std::string> attributes;
  uint32_t mode = 0;
  bool unnamed = false;
};
using Outcome = std::optional<ErrorCode>;  // nullopt: success

class Model {
 public:
  Model() {
    root = New(true);
    root->parent = root;
    root->links = 2;
    root->ino = kRootInode;
    root->mode = 0755;
  }

  Node* New(bool directory) {
    nodes.push_back(std::make_unique<Node>());
    nodes.back()->directory = directory;
    return nodes.back().get();
  }
  static Node* Child(Node* parent, const std::string& name) {
    const auto found = parent->children.find(name);
    return found == parent->children.end() ? nullptr : found->second;
  }
  static bool IsBelow(const Node* node, const Node* above) {
    if (node->links == 0) return false;  // removed
    for (; node->parent != node; node = node->parent) {
      if (node == above) return true;
    }
    return node == above;
  }

  Outcome Create(Node* parent, const std::string& name, Node* node) {
    if (!parent->directory) return ErrorCode::kNotDirectory;
    if (Child(parent, name) != nullptr) return ErrorCode::kExists;
    if (parent->links == 0) return ErrorCode::kNotFound;
    parent->children[name] = node;
    node->links = node->directory ? 2 : 1;
    node->parent = parent;
    if (node->directory) ++parent->links;
    return std::nullopt;
  }
  Outcome Link(Node* node, Node* parent, const std::string& name) {
    if (!parent->directory) return ErrorCode::kNotDirectory;
    if (Child(parent, name) != nullptr) return ErrorCode::kExists;
    if (node->directory) return ErrorCode::kPermission;
    if (parent->links == 0 || (node->links == 0 && !node->unnamed)) return ErrorCode::kNotFound;
    parent->children[name] = node;
    ++node->links;
    node->unnamed = false;
    return std::nullopt;
  }
  static void Drop(Node* parent, Node* node) {
    node->links = node->directory ? 0 : node->links - 1;
    if (node->directory) --parent->links;
  }
  Outcome Remove(Node* parent, const std::string& name, bool directory) {
    if (!parent->directory) return ErrorCode::kNotDirectory;
    Node* node = Child(parent, name);
    if (node == nullptr) return ErrorCode::kNotFound;
    if (!directory && node->directory) return ErrorCode::kIsDirectory;
    if (directory && !node->directory) return ErrorCode::kNotDirectory;
    if (!node->children.empty()) return ErrorCode::kNotEmpty;
    parent->children.erase(name);
    Drop(parent, node);
    return std::nullopt;
  }
  Outcome Rename(Node* from, const std::string& name, Node* to, const std::string& new_name, RenameMode mode) {
    if (!from->directory || !to->directory) return ErrorCode::kNotDirectory;
    Node* source = Child(from, name);
    Node* target = Child(to, new_name);
    if (source == nullptr || (mode == RenameMode::kExchange && target == nullptr)) return ErrorCode::kNotFound;
    if (mode == RenameMode::kNoReplace && target != nullptr) return ErrorCode::kExists;
    if (source == target) return std::nullopt;
    const bool moves = from != to;
    if (source->directory && moves && IsBelow(to, source)) return ErrorCode::kInvalid;
    if (mode == RenameMode::kExchange) {
      if (target->directory && moves && IsBelow(from, target)) return ErrorCode::kInvalid;
      from->children[name] = target;
      to->children[new_name] = source;
      if (source->directory) --from->links, ++to->links, source->parent = to;
      if (target->directory) --to->links, ++from->links, target->parent = from;
      return std::nullopt;
    }
    if (target != nullptr) {
      if (source->directory && !target->directory) return ErrorCode::kNotDirectory;
      if (!source->directory && target->directory) return ErrorCode::kIsDirectory;
      if (!target->children.empty()) return ErrorCode::kNotEmpty;
    }
    if (to->links == 0) return ErrorCode::kNotFound;
    if (target != nullptr) Drop(to, target);
    from->children.erase(name);
    to->children[new_name] = source;
    if (source->directory) --from->links, ++to->links, source->parent = to;
    return std::nullopt;
  }

  Node* root;
  std::vector<std::unique_ptr<Node>> nodes;
};

class Harness {
 public:
  explicit Harness(uint64_t seed) : random_(seed), journal_(std::make_shared<Journal>()) {
    kv_ = std::make_unique<MemoryKvStore>(journal_);
    EXPECT_TRUE(Namespace::Initialize(*kv_, 0, 0));
    Mount();
  }

  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
      case 2: return Create();
      case 3: return CreateUnnamed();
      case 4: return Link();
      case 5: return Remove(false);
      case 6: return Remove(true);
      case 7:
      case 8:
      case 9: return Rename();
      case 10: return Open();
      case 11: return Close();
      case 12: return AddLookup();
      case 13: return Forget();
      case 14: return Attribute();
      default: return Below(20) == 0 ? Crash() : Chmod();
    }
  }

  void CheckAll() {
    const KvContent content = kv_->content();
    uint64_t stored = 0;
    for (const auto& node : model_.nodes) {
      if (Gone(node.get())) {
        ASSERT_FALSE(names_->GetAttributes(node->ino)) << node->ino.value;
        continue;
      }
      if (content.contains(keys::Inode(node->ino))) {
        ++stored;
      } else {
        ASSERT_TRUE(node->links == 0 && node->opens == 0 && node->lookups > 0) << "it may have no record";
      }
      const auto attributes = names_->GetAttributes(node->ino);
      ASSERT_TRUE(attributes) << node->ino.value;
      ASSERT_EQ(attributes->links, node->links) << node->ino.value;
      ASSERT_EQ(attributes->mode, node->mode | (node->directory ? S_IFDIR : S_IFREG));
      for (const auto& [name, value] : node->attributes) {
        ASSERT_EQ(*names_->GetExtendedAttribute(node->ino, name), value);
      }
      ASSERT_EQ(names_->ListExtendedAttributes(node->ino)->size(), node->attributes.size());
      if (node->directory) CheckDirectory(node.get());
    }
    ASSERT_EQ(names_->inode_count(), stored);
    ASSERT_THAT(CheckCatalog(content), ::testing::IsEmpty());
  }

  // A crash keeps a prefix of the batches, so no prefix may contain half a change.
  void CheckEveryPrefix() {
    KvContent content;
    for (const Journal::Event& event : journal_->events()) {
      if (event.kind != Journal::Event::Kind::kBatch) continue;
      ApplyBatch(*event.batch, content);
      ASSERT_THAT(CheckCatalog(content), ::testing::IsEmpty());
      if (Below(8) != 0) continue;
      MemoryKvStore left(std::make_shared<Journal>(), content);
      const auto report = CheckStore(left, {}, {});
      ASSERT_TRUE(report);
      for (const Finding& finding : report->findings) ADD_FAILURE() << finding.text;
    }
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  std::string Name() { return std::string(1, static_cast<char>('a' + Below(6))); }

  static bool Gone(const Node* node) {
    return node->links == 0 && node->opens == 0 && node->lookups == 0 && !node->unnamed;
  }
  Node* Any() {
    while (true) {
      Node* node = model_.nodes[Below(model_.nodes.size())].get();
      if (!Gone(node)) return node;
    }
  }
  Node* AnyDirectory() {
    Node* node = Any();
    return node->directory || Below(30) == 0 ? node : model_.root;
  }
  // The store and the model must return the same result.
  template <typename T>
  bool Agree(const Result<T>& result, Outcome expected) {
    EXPECT_EQ(result.has_value(), !expected.has_value());
    if (result && !expected) return true;
    if (!result && expected) {
      EXPECT_EQ(ErrorCodeName(result.error().code), ErrorCodeName(*expected));
    }
    return false;
  }

  void Mount() {
    inodes_ = std::make_unique<InodeTable>(*kv_, file_services_.services(), 8);
    names_ = std::make_unique<Namespace>(*kv_, *inodes_, data_);
    ASSERT_TRUE(names_->Recover(false));
  }

  void Create() {
    Node* parent = AnyDirectory();
    Node* node = model_.New(Below(2) == 0);
    node->mode = static_cast<uint32_t>(Below(01000));
    const std::string name = Name();
    const CreateRequest request{.mode = node->mode | (node->directory ? S_IFDIR : S_IFREG)};
    const auto made = names_->Create(parent->ino, name, request);
    if (Agree(made, model_.Create(parent, name, node)))
      node->ino = made->ino;
    else
      model_.nodes.pop_back();
  }
  void CreateUnnamed() {
    Node* parent = AnyDirectory();
    if (!parent->directory) return;
    const auto made = names_->CreateUnnamed(parent->ino, {.mode = S_IFREG | 0600});
    if (!Agree(made, parent->links == 0 ? Outcome(ErrorCode::kNotFound) : std::nullopt)) return;
    Node* node = model_.New(false);
    node->links = 0;
    node->mode = 0600;
    node->ino = made->ino;
    node->unnamed = true;
  }
  void Link() {
    Node* node = Any();
    Node* parent = AnyDirectory();
    const std::string name = Name();
    Agree(names_->Link(node->ino, parent->ino, name), model_.Link(node, parent, name));
  }
  void Remove(bool directory) {
    Node* parent = AnyDirectory();
    const std::string name = Name();
    const auto expected = model_.Remove(parent, name, directory);
    Agree(directory ? names_->RemoveDirectory(parent->ino, name) : names_->Unlink(parent->ino, name), expected);
  }
  void Rename() {
    Node* from = AnyDirectory();
    Node* to = AnyDirectory();
    const std::string name = Name(), new_name = Name();
    const auto mode = static_cast<RenameMode>(Below(3));
    const auto expected = model_.Rename(from, name, to, new_name, mode);
    Agree(names_->Rename(from->ino, name, to->ino, new_name, mode), expected);
  }
  void Open() {
    Node* node = Any();
    const auto inode = names_->Open(node->ino);
    ASSERT_TRUE(inode);
    ++node->opens;
    open_.emplace_back(node, *inode);
  }
  void Close() {
    if (open_.empty()) return;
    const size_t index = Below(open_.size());
    const auto [node, inode] = open_[index];
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(index));
    names_->Close(inode);
    if (--node->opens == 0 && node->lookups == 0) node->unnamed = false;  // no longer used
  }
  void AddLookup() {
    Node* node = Any();
    const uint64_t count = 1 + Below(3);
    inodes_->AddLookups(node->ino, count);
    node->lookups += count;
  }
  void Forget() {
    Node* node = Any();
    if (node->lookups == 0) return;
    const uint64_t count = 1 + Below(node->lookups);
    names_->Forget(node->ino, count);
    node->lookups -= count;
    if (node->opens == 0 && node->lookups == 0) node->unnamed = false;
  }
  void Attribute() {
    Node* node = Any();
    const std::string name = "user." + Name();
    if (Below(3) == 0) {
      const bool had = node->attributes.erase(name) > 0;
      Agree(names_->RemoveExtendedAttribute(node->ino, name), had ? std::nullopt : Outcome(ErrorCode::kNoAttribute));
      return;
    }
    const std::string value = std::to_string(random_());
    Agree(names_->SetExtendedAttribute(node->ino, name, value, AttributeWrite::kAny), std::nullopt);
    node->attributes[name] = value;
  }
  void Chmod() {
    Node* node = Any();
    node->mode = static_cast<uint32_t>(Below(01000));
    Agree(names_->SetAttributes(node->ino, {.mode = node->mode}), std::nullopt);
  }
  // Simulates a kill of the process: open files are closed, and unlinked inodes are gone.
  void Crash() {
    open_.clear();
    for (const auto& node : model_.nodes) {
      node->opens = 0;
      node->lookups = 0;
      node->unnamed = false;
    }
    names_.reset();
    Mount();
  }

  void CheckDirectory(Node* node) {
    const auto entries = ReadDirectory(*names_, node->ino);
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), node->children.size() + 2);
    ASSERT_EQ((*entries)[1].ino, node->parent->ino);
    size_t index = 2;
    for (const auto& [name, child] : node->children) {
      ASSERT_EQ((*entries)[index].name, name);
      ASSERT_EQ((*entries)[index].ino, child->ino);
      ASSERT_EQ((*entries)[index].type, static_cast<uint32_t>(child->directory ? S_IFDIR : S_IFREG));
      ASSERT_EQ(names_->Lookup(node->ino, name)->ino, child->ino);
      ++index;
    }
  }

  std::mt19937_64 random_;
  std::shared_ptr<Journal> journal_;
  std::unique_ptr<MemoryKvStore> kv_;
  NoData data_;
  TestFileServices file_services_;
  std::unique_ptr<InodeTable> inodes_;
  std::unique_ptr<Namespace> names_;
  Model model_;
  std::vector<std::pair<Node*, InodePtr>> open_;
};

TEST(NamespaceProperty, AgreesWithAModelAndHoldsAtEveryBatch) {
  const uint64_t first_seed = FirstSeed();
  for (uint64_t seed = first_seed; seed != first_seed + 60; ++seed) {
    SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed));
    Harness harness(seed);
    for (int step = 0; step < 1500; ++step) {
      harness.Step();
      if (::testing::Test::HasFailure()) return;
      if (step % 25 == 0) harness.CheckAll();
      if (::testing::Test::HasFailure()) return;
    }
    harness.CheckEveryPrefix();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace weightfs

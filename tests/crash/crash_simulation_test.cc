// SPDX-License-Identifier: Apache-2.0
// Cuts power after each event of a workload with overwrites, truncations, renames and deletes. Unflushed writes and
// unsynced batches are dropped, torn and reordered. The recovered state must be one that the store guarantees.
#include <gtest/gtest.h>

#include <random>

#include "tests/crash/history.h"
#include "tests/support/seeds.h"
#include "tests/support/test_store.h"
#include "tests/support/whole_directory.h"

namespace weightfs {
namespace {

class Workload {
 public:
  Workload(uint64_t seed, size_t devices) : random_(seed), store_(Options(seed, devices)) { Mark(); }

  void Run(int steps) {
    for (int step = 0; step < steps; ++step) {
      while (store_->Space().available < BlockCount{7 * kMiB / kBlockSize} && !Any().empty()) Unlink();
      switch (random_() % 22) {
        case 0:
        case 1:
        case 2: Create(); break;
        case 3:
        case 4:
        case 5: Overwrite(); break;
        case 6: Append(); break;
        case 7: Truncate(); break;
        case 8:
        case 9: ReplaceByRename(random_() % 2 == 0); break;
        case 10: Rename(); break;
        case 11: Unlink(); break;
        case 12: MakeDirectory(); break;
        case 13:
        case 14: SyncOne(); break;
        case 15:
        case 16: ReplaceDirect(); break;
        case 17: Abandon(); break;
        case 18: CreateMany(); break;
        case 19: RenameDirectory(); break;
        case 20: Link(); break;
        default: SyncEverything(); break;
      }
    }
  }
  Journal& journal() { return store_.journal(); }
  const History& history() const { return history_; }
  size_t start() const { return start_; }
  static TestStoreOptions Options(uint64_t seed, size_t devices) {
    TestStoreOptions options;
    options.devices = devices;
    options.device_size = ByteCount{(devices == 1 ? 18 : 10) * kMiB};  // small, so that freed space is soon reused
    options.device = {.reorder = true, .seed = seed};
    options.store.memory = ByteCount{32 * kMiB};
    options.store.commit_interval = std::chrono::milliseconds(seed % 2 == 0 ? 2 : 20);
    options.store.close_delay = std::chrono::milliseconds(1);
    return options;
  }

 private:
  size_t Now() { return store_.journal().size(); }
  void Mark() { start_ = Now(); }
  size_t Size() {
    static constexpr size_t kSizes[] = {0, 100, 5000, 70000, 300000, 2500000};
    return kSizes[random_() % std::size(kSizes)] + random_() % 100;
  }
  // Returns the path of an existing file, or an empty string.
  std::string Any() {
    std::vector<std::string> files;
    for (const auto& [path, id] : history_.names()) {
      if (id != History::kDirectory) files.push_back(path);
    }
    return files.empty() ? std::string() : files[random_() % files.size()];
  }
  std::string NewPath() {
    std::string parent;
    for (const auto& [path, id] : history_.names()) {
      if (id == History::kDirectory && random_() % 3 == 0) parent = path;
    }
    return parent + "f" + std::to_string(next_name_++);
  }
  History::FileId Id(const std::string& path) { return history_.names().at(path); }
  std::pair<InodeId, std::string> Place(const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {kRootInode, path};
    return {store_.Resolve(path.substr(0, slash)).value(), path.substr(slash + 1)};
  }
  void Write(const InodePtr& file, History::FileId id, uint64_t at, const std::string& text) {
    const size_t began = Now();
    ASSERT_TRUE(store_.WriteAt(file, at, text).has_value());
    std::string data = history_.content(id);
    if (data.size() < at + text.size()) data.resize(at + text.size(), '\0');
    data.replace(at, text.size(), text);
    history_.Wrote(id, began, std::move(data));
  }
  History::FileId CreateAt(const std::string& path, bool sync) {
    size_t began = Now();
    const InodePtr file = store_.Create(path).value();
    const History::FileId id = history_.NewFile();
    auto names = history_.names();
    names[path] = id;
    history_.Named(began, std::move(names));
    if (const size_t size = Size(); size > 0) Write(file, id, 0, Pattern(random_(), size));
    if (sync) Sync(file, id);
    Close(file);
    return id;
  }
  void Sync(const InodePtr& file, History::FileId id) {
    ASSERT_TRUE(store_->Sync(file).has_value());
    history_.Synced(id, Now());
  }
  void Close(const InodePtr& file) {
    const auto told = std::make_shared<std::atomic<uint64_t>>(0);
    store_->Flush(file, told.get(), [told](Result<void> result) { EXPECT_TRUE(result.has_value()); });
    store_->CloseFile(file);
  }
  void Create() { CreateAt(NewPath(), random_() % 3 == 0); }
  void Overwrite() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    for (int part = 0; part < 3; ++part) {
      const uint64_t at = random_() % (history_.content(Id(path)).size() + 5000);
      Write(file, Id(path), at, Pattern(random_(), 1 + random_() % 20000));
    }
    if (random_() % 3 == 0) Sync(file, Id(path));
    Close(file);
  }
  void Append() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    Write(file, Id(path), history_.content(Id(path)).size(), Pattern(random_(), 1 + random_() % 9000));
    Sync(file, Id(path));
    Close(file);
  }
  void Truncate() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    std::string data = history_.content(Id(path));
    data.resize(random_() % (data.size() + 3000), '\0');
    const size_t began = Now();
    ASSERT_TRUE(store_->files().Truncate(file, data.size()).has_value());
    history_.Wrote(Id(path), began, std::move(data));
    Close(file);
  }
  void ReplaceByRename(bool sync) {
    const std::string path = Any();
    if (path.empty()) return;
    const std::string temporary = path + ".tmp";
    const History::FileId id = CreateAt(temporary, sync);
    MoveTo(temporary, path, id);
  }
  void MoveTo(const std::string& from, const std::string& to, History::FileId id) {
    const auto [from_parent, from_name] = Place(from);
    const auto [to_parent, to_name] = Place(to);
    const size_t began = Now();
    ASSERT_TRUE(store_->names().Rename(from_parent, from_name, to_parent, to_name, RenameMode::kReplace).has_value());
    auto names = history_.names();
    names.erase(from);
    names[to] = id;
    history_.Named(began, std::move(names), {id});
  }
  void Rename() {
    const std::string path = Any();
    if (!path.empty()) MoveTo(path, NewPath(), Id(path));
  }
  // Publishes all files below the directory, most of which were never synced.
  void RenameDirectory() {
    std::vector<std::string> directories;
    for (const auto& [path, id] : history_.names()) {
      if (id == History::kDirectory) directories.push_back(path.substr(0, path.size() - 1));
    }
    if (directories.empty()) return;
    const std::string from = directories[random_() % directories.size()], to = "r" + std::to_string(next_name_++);
    for (int file = 0; file < 2; ++file) CreateAt(from + "/f" + std::to_string(next_name_++), false);
    const size_t began = Now();
    ASSERT_TRUE(store_->names().Rename(kRootInode, from, kRootInode, to, RenameMode::kReplace).has_value());
    History::Names names;
    std::vector<History::FileId> below;
    for (const auto& [path, id] : history_.names()) {
      const bool moved = path.starts_with(from + "/");
      names[moved ? to + path.substr(from.size()) : path] = id;
      if (moved && id != History::kDirectory) below.push_back(id);
    }
    history_.Named(began, std::move(names), std::move(below));
  }
  void Link() {
    const std::string path = Any();
    if (path.empty()) return;
    const std::string other = NewPath();
    const auto [parent, name] = Place(other);
    const size_t began = Now();
    ASSERT_TRUE(store_->names().Link(store_.Resolve(path).value(), parent, name).has_value());
    auto names = history_.names();
    names[other] = Id(path);
    history_.Named(began, std::move(names), {Id(path)});
  }
  void Unlink() {
    const std::string path = Any();
    if (path.empty()) return;
    const auto [parent, name] = Place(path);
    const size_t began = Now();
    ASSERT_TRUE(store_->names().Unlink(parent, name).has_value());
    auto names = history_.names();
    names.erase(path);
    history_.Named(began, std::move(names));
  }
  void MakeDirectory() {
    if (next_directory_ > 4) return;
    const std::string name = "d" + std::to_string(next_directory_++);
    CreateRequest request;
    request.mode = S_IFDIR | 0755;
    const size_t began = Now();
    ASSERT_TRUE(store_->names().Create(kRootInode, name, request).has_value());
    auto names = history_.names();
    names[name + "/"] = History::kDirectory;
    history_.Named(began, std::move(names));
  }
  // Replaces the whole file, bypassing the store: a crash leaves the old content or the new.
  void ReplaceDirect() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    const std::string data = Pattern(random_(), 1 + Size());
    const size_t began = Now();
    const auto written = store_.WriteDirect(file, 0, data, data.size());
    ASSERT_TRUE(written.has_value()) << ToString(written.error());
    history_.Wrote(Id(path), began, data);
    if (random_() % 2 == 0) Sync(file, Id(path));
    Close(file);
  }
  // Leaves blocks that were written but never committed.
  void Abandon() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    ASSERT_TRUE(store_.Fill(file, FileBlock{0}, Pattern(random_(), 1 + Size())).has_value());
    Close(file);
  }
  // Creates several files at once; one of them replaces another file.
  void CreateMany() {
    std::vector<TestStore::NamedFile> files;
    auto names = history_.names();
    const std::string old = Any();
    for (int index = 0; index < 3; ++index) {
      std::string path = "p" + std::to_string(next_name_++);
      if (index == 1 && !old.empty() && old.find('/') == std::string::npos) path = old;
      files.push_back({path, Pattern(random_(), Size() % 400000)});
      names[path] = history_.NewFile(files.back().data);
    }
    const size_t began = Now();
    const auto created = store_.CreateMany("", files);
    ASSERT_TRUE(created.has_value()) << ToString(created.error());
    history_.Named(began, std::move(names));
    if (random_() % 2 == 0) SyncEverything();
  }
  void SyncOne() {
    const std::string path = Any();
    if (path.empty()) return;
    const InodePtr file = store_.OpenPath(path).value();
    Sync(file, Id(path));
    Close(file);
  }
  void SyncEverything() {
    ASSERT_TRUE(store_->SyncAll().has_value());
    history_.SyncedAll(Now());
  }

  std::mt19937_64 random_;
  TestStore store_;
  History history_;
  size_t start_ = 0;
  int next_name_ = 0, next_directory_ = 0;
};

void ReadTree(TestStore& store, InodeId directory, const std::string& prefix, History::Tree* tree) {
  const auto entries = ReadDirectory(store->names(), directory);
  ASSERT_TRUE(entries.has_value());
  for (const auto& entry : *entries) {
    if (entry.name == "." || entry.name == "..") continue;
    if (S_ISDIR(entry.type)) {
      (*tree)[prefix + entry.name + "/"];
      ReadTree(store, entry.ino, prefix + entry.name + "/", tree);
      continue;
    }
    const auto text = store.ReadPath(prefix + entry.name);
    ASSERT_TRUE(text.has_value()) << prefix << entry.name << ": " << ToString(text.error());
    (*tree)[prefix + entry.name] = *text;
  }
}

void CheckCut(Workload& workload, uint64_t seed, size_t devices, size_t cut, CrashOptions crash) {
  SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed) + ", cut after event " + std::to_string(cut) + ", crash seed " +
               std::to_string(crash.seed));
  const CrashImage image = workload.journal().ImageAt(cut, crash);
  TestStore store(image, Workload::Options(seed, devices));
  ASSERT_TRUE(store.opened().has_value()) << ToString(store.opened().error());
  ASSERT_FALSE(store->read_only()) << "recovery found damage";
  History::Tree tree;
  ReadTree(store, kRootInode, "", &tree);
  if (::testing::Test::HasFatalFailure()) return;
  const std::string wrong = workload.history().Check(cut, tree);
  ASSERT_TRUE(wrong.empty()) << wrong;
  // The recovered store works, and deleting everything frees all space.
  ASSERT_TRUE(store.WriteFile("after", Pattern(cut, 10000)).has_value());
  ASSERT_TRUE(store->SyncAll().has_value());
  ASSERT_EQ(store.ReadPath("after").value(), Pattern(cut, 10000));
}

class CrashSimulation : public ::testing::TestWithParam<int> {};

TEST_P(CrashSimulation, EveryCutLeavesAGuaranteedState) {
  const uint64_t seed = FirstSeed(static_cast<uint64_t>(GetParam()));
  const size_t devices = 1 + seed % 2;
  Workload workload(seed, devices);
  workload.Run(60);
  if (HasFatalFailure()) return;
  const size_t end = workload.journal().size();
  const size_t stride = std::max<size_t>(1, (end - workload.start()) / 150);
  size_t cuts = 0;
  for (size_t cut = workload.start() + seed % stride; cut <= end; cut += stride) {
    CrashOptions crash;
    crash.seed = seed * 1000003 + cut;
    crash.kind = cut % 5 == 0 ? CrashOptions::Kind::kProcessKill : CrashOptions::Kind::kPowerLoss;
    CheckCut(workload, seed, devices, cut, crash);
    if (HasFatalFailure()) return;
    ++cuts;
  }
  RecordProperty("cuts", static_cast<int>(cuts));
  EXPECT_GT(cuts, 50U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CrashSimulation, ::testing::Range(1, 13));

}  // namespace
}  // namespace weightfs

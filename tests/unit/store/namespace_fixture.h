// SPDX-License-Identifier: Apache-2.0
// A namespace on a key-value store in memory, with a data owner that only records its calls.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meta/keys.h"
#include "store/names/namespace.h"
#include "tests/support/catalog_check.h"
#include "tests/support/file_services.h"
#include "tests/support/memory_kv_store.h"
#include "tests/support/whole_directory.h"

namespace weightfs {

// Thread-safe.
class FakeDataOwner final : public DataOwner {
 public:
  Result<void> CheckWritable(KvChange) const override {
    if (failed || read_only) return ErrorCode::kReadOnly;
    return {};
  }
  Result<void> CommitBeforeNaming(std::span<const InodePtr> files, bool kept, InodePtr* /*failed*/) override {
    {
      MutexLock lock(mutex_);
      for (const InodePtr& inode : files) committed_.push_back(inode->id.value);
    }
    // Called without the lock, like the real one: the call may use the namespace.
    if (on_commit) std::exchange(on_commit, nullptr)();
    kept_errors = kept;
    if (commit_error && !files.empty()) return *commit_error;
    return {};
  }
  void CommitSettledBeforeNaming(const std::vector<InodePtr>* files) override {
    if (files == nullptr) {
      ++settled;
      return;
    }
    MutexLock lock(mutex_);
    for (const InodePtr& inode : *files) committed_.push_back(inode->id.value);
  }
  Result<void> ReportErrors(std::span<const InodePtr> files, bool) override {
    if (commit_error && !files.empty()) return *commit_error;
    return {};
  }
  std::vector<InodePtr> UncommittedFiles() override {
    if (looks_before_call > 0 && --looks_before_call == 0) on_look();
    return uncommitted;
  }
  bool IsPassed(const Inode&) const override { return false; }
  void DropReadAhead(const Inode&) override {}
  Result<DataRecords> ReadRecords(const InodePtr& inode, bool restorable) override {
    if (on_read) std::exchange(on_read, nullptr)();
    DataRecords records;
    if (restorable && uncommitted.empty()) records.restore.emplace();
    records.extents.push_back(keys::Extent(inode->id, FileBlock{0}));
    return records;
  }
  bool DeleteRecords(const InodePtr&, const DataRecords& records, KvBatch* batch) override {
    for (const std::string& key : records.extents) batch->Delete(key);
    return true;
  }
  void DropData(const InodePtr& inode, const DataRecords&) override {
    MutexLock lock(mutex_);
    deleted_.push_back(inode->id.value);
  }
  std::vector<uint64_t> committed() {
    MutexLock lock(mutex_);
    return committed_;
  }
  std::vector<uint64_t> deleted() {
    MutexLock lock(mutex_);
    return deleted_;
  }

  std::function<void()> on_commit;  // called once; set before use, for one thread
  std::function<void()> on_read;    // called once, when the records of a deletion are read
  std::function<void()> on_look;  // called by the UncommittedFiles with this number
  int looks_before_call = 0;
  std::optional<ErrorCode> commit_error;
  bool read_only = false;
  bool failed = false;                // all later commits fail
  bool kept_errors = false;           // argument of the last CommitBeforeNaming
  std::vector<InodePtr> uncommitted;  // set before use
  int settled = 0;                    // number of calls, by one thread

 private:
  Mutex mutex_;
  std::vector<uint64_t> committed_ GUARDED_BY(mutex_), deleted_ GUARDED_BY(mutex_);
};

class NamespaceTest : public ::testing::Test {
 protected:
  NamespaceTest() : journal_(std::make_shared<Journal>()), kv_(std::make_unique<MemoryKvStore>(journal_)) {
    EXPECT_TRUE(Namespace::Initialize(*kv_, 10, 20));
    Start();
  }
  ~NamespaceTest() override {
    if (!check_at_end_) return;
    EXPECT_THAT(CheckCatalog(kv_->content()), ::testing::IsEmpty());
  }

  // Starts a new mount of the catalog's content.
  void Start() {
    names_.reset();
    inodes_ = std::make_unique<InodeTable>(*kv_, file_services_.services(), 64);
    names_ = std::make_unique<Namespace>(*kv_, *inodes_, data_);
    EXPECT_TRUE(names_->Recover(/*read_only=*/false));
  }
  // Simulates a kill: everything that was only in memory is gone.
  void Restart() {
    kv_ = std::make_unique<MemoryKvStore>(journal_, kv_->content());
    Start();
  }

  static CreateRequest File(uint32_t permissions = 0644) { return {.mode = S_IFREG | permissions, .uid = 1, .gid = 2}; }
  static CreateRequest Directory(uint32_t permissions = 0755) {
    return {.mode = S_IFDIR | permissions, .uid = 1, .gid = 2};
  }
  InodeId MakeFile(InodeId parent, std::string_view name) {
    const auto made = names_->Create(parent, name, File());
    EXPECT_TRUE(made) << name;
    return made ? made->ino : InodeId{};
  }
  InodeId MakeDirectory(InodeId parent, std::string_view name) {
    const auto made = names_->Create(parent, name, Directory());
    EXPECT_TRUE(made) << name;
    return made ? made->ino : InodeId{};
  }
  Attributes Stat(InodeId ino) {
    const auto attributes = names_->GetAttributes(ino);
    EXPECT_TRUE(attributes) << ino.value;
    return attributes.value_or(Attributes());
  }
  std::vector<std::string> List(InodeId ino) {
    std::vector<std::string> list;
    const auto entries = ReadDirectory(*names_, ino);
    EXPECT_TRUE(entries);
    if (!entries) return list;
    for (const auto& entry : *entries) list.push_back(entry.name);
    return list;
  }
  // Moves an inode's times into the past, so that updates by a call can be detected.
  void Age(InodeId ino) {
    const Timestamp old{1};
    EXPECT_TRUE(names_->SetAttributes(ino, {.accessed = old, .modified = old, .changed = old}));
  }
  InodeRecord StoredRecord(InodeId ino) {
    const auto bytes = kv_->Get(keys::Inode(ino));
    EXPECT_TRUE(bytes && *bytes);
    return InodeRecord::Decode(**bytes).value();
  }
  bool IsStored(const std::string& key) { return kv_->content().contains(key); }
  void Put(std::string key, std::string value) {
    KvBatch batch;
    batch.Put(std::move(key), std::move(value));
    EXPECT_TRUE(kv_->Write(batch));
  }

  std::shared_ptr<Journal> journal_;
  std::unique_ptr<MemoryKvStore> kv_;
  FakeDataOwner data_;
  TestFileServices file_services_;
  std::unique_ptr<InodeTable> inodes_;
  std::unique_ptr<Namespace> names_;
  bool check_at_end_ = true;  // off for tests that damage the catalog
};

// The error of a call; kNotFound is never mistaken for success.
template <typename T>
std::optional<ErrorCode> Code(const Result<T>& result) {
  return result ? std::nullopt : std::optional(result.error().code);
}

}  // namespace weightfs

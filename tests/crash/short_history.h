// SPDX-License-Identifier: Apache-2.0
// Bounded workloads: every short sequence of operations on a small tree, each with what a crash may leave of it. The
// method is that of ACE: Mohan, Martinez, Ponnapalli, Raju, Chidambaram, "Finding Crash-Consistency Bugs with Bounded
// Black-Box Crash Testing", OSDI 2018.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/crash/history.h"
#include "tests/support/test_store.h"

namespace weightfs {

// What follows an operation.
enum class Persist : unsigned char {
  kNothing,
  kFile,       // fsync of the inode that it changed
  kDirectory,  // fsync of the directory of its name
  kAll,        // a sync of the store
};
std::string_view ToText(Persist persist);

// A store with a small tree, and what it may contain after a crash. Not thread-safe.
//
// The tree: directories A, A/C and B; the files foo (9,000 bytes), A/C/in (100 bytes), and A/bar (5,000 bytes, with an
// attribute) with its second name bar; the symbolic link A/soft. All of it is durable.
class ShortHistory {
 public:
  struct Operation {
    std::string_view name;
    bool of_names;  // changes no data
    std::function<void(ShortHistory&)> run;
    std::string Word() const;  // the name, as a part of a test's name
  };
  static const std::vector<Operation>& Operations();

  struct Kind {
    size_t devices = 1;       // or 2
    bool keeps_open = false;  // descriptors stay open until the end, as those of a program that uses its files further
    bool full = false;        // 5 blocks are free, so that freed blocks are soon used again
  };
  explicit ShortHistory(const Kind& kind);
  ShortHistory(const Kind& kind, const TestStoreOptions& options);
  // With 1 or 2 devices. Only what somebody asks for becomes durable.
  static TestStoreOptions Options(size_t devices);

  // The operations after it may fail, because a device lies; then failed() is true, and what they would have written
  // counts as written.
  void ExpectErrors() { expects_errors_ = true; }
  bool failed() const { return failed_; }

  // An operation that POSIX refuses in this state changes nothing. Any other error fails the test.
  void Run(const Operation& operation, Persist persist);
  // Closes everything, and the store.
  void End();
  // Same, and returns false if the store reports an error.
  bool TryToEnd();

  TestStore& store() { return store_; }
  const History& history() const { return history_; }
  // The size of the journal before the last operation.
  size_t began() const { return began_; }
  // From now on, everything that happened so far must be in every crash image, except the content of files that are
  // being replaced.
  void ExpectAll();

  // What is in a store: path and attributes, as History's paths, and content. A file that cannot be read fails the
  // test, or with `damaged` it has History::kUnreadable, and is counted there.
  static void ReadTree(TestStore& store, History::Tree* tree, size_t* damaged = nullptr);

 private:
  struct Node {
    InodeId ino;
    uint32_t mode = 0;
    bool published = false;
    std::map<std::string, std::string> attributes = {};
    std::string target = {};
    History::FileId file = History::kDirectory;  // of a regular file
  };
  using Paths = std::map<std::string, size_t>;  // path → index in nodes_
  struct Base;
  static constexpr char kAttribute[] = "user.kind";
  static const Base& BaseOf(const Kind& kind);
  friend struct Base;

  size_t Now() { return store_.journal().size(); }
  Node* Find(const std::string& path);
  // The parent's inode (0 if there is none) and the name.
  std::pair<InodeId, std::string> Place(const std::string& path);
  // Records the tree, which differs since `began`.
  void Named(size_t began, std::vector<History::FileId> ordered = {});
  // The regular files at or below the path, without those below it that are being replaced.
  std::vector<History::FileId> FilesBelow(const std::string& path);
  // Null: no error.
  bool Takes(const Error* error);
  template <typename T>
  bool Took(const Result<T>& result) {
    return Takes(result ? nullptr : &result.error());
  }
  // Took, or may have changed something.
  template <typename T>
  bool Changed(const Result<T>& result) {
    return Took(result) || failed_;
  }
  // Opens a file, or notes a directory, as what the operation changed.
  InodePtr Open(const std::string& path, bool truncate = false);
  void Use(InodePtr inode, History::FileId file, const std::string& path, bool opened, bool writes);
  void CloseUsed();

  void Make(const std::string& path, uint32_t type, std::string_view target = {});
  void MakeUnnamed(const std::string& path);
  void Link(const std::string& from, const std::string& to);
  void Unlink(const std::string& path);
  void RemoveDirectory(const std::string& path);
  void Rename(const std::string& from, const std::string& to, RenameMode mode = RenameMode::kReplace);
  void Write(const std::string& path, uint64_t at, size_t size);
  void Append(const std::string& path, size_t size);
  void Replace(const std::string& path, size_t size);
  void Truncate(const std::string& path, uint64_t size);
  void Allocate(const std::string& path, FallocateMode mode, uint64_t at, uint64_t size);
  void SetMode(const std::string& path, uint32_t mode);
  void SetAttribute(const std::string& path);
  void RemoveAttribute(const std::string& path);
  void Publish(const std::string& path);
  void Unpublish(const std::string& path);
  void WriteLeased(const std::string& path, size_t size);
  void SaveMany(const std::vector<std::string>& names, size_t size);
  std::string NewData(size_t size) { return Pattern(++seed_, size); }

  const bool keeps_open_, full_;
  bool expects_errors_ = false;
  std::atomic<bool> failed_{false};
  TestStore store_;
  History history_;
  std::vector<Node> nodes_;
  Paths paths_;
  uint64_t seed_ = 100;
  size_t began_ = 0;

  struct Used {
    InodePtr inode;
    History::FileId file = History::kDirectory;
    bool opened = false, writes = false;
  };
  Used used_;             // by the operation in progress
  InodeId directory_{0};  // of its name
  std::vector<Used> open_;
  std::set<History::FileId> replacing_;  // O_TRUNC, and neither closed nor committed since
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Records what a workload did and when it was acknowledged, and checks whether a crash may leave a given tree.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weightfs {

// Positions are sizes of the journal. An operation that began at `began` may be visible after a crash at that position
// or later. An operation acknowledged at `done` and made durable must be visible. Single-threaded.
class History {
 public:
  using FileId = size_t;
  using Tree = std::map<std::string, std::string>;  // path → content; a directory's path ends in '/' and it has no
                                                    // content

  // The content of the file is `data` from now on.
  void Wrote(FileId file, size_t began, std::string data);
  // Everything written to the file so far, and every namespace change so far, is durable.
  void Synced(FileId file, size_t done);
  void SyncedAll(size_t done);
  // Every namespace change so far is durable.
  void SyncedNames(size_t done);
  FileId NewFile(std::string data = {});

  // Records that the tree changed to `names` (path → file; directories map to kDirectory). The files in `ordered` were
  // renamed: if this change is visible, their content must be at least as new as it is now.
  static constexpr FileId kDirectory = static_cast<FileId>(-1);
  using Names = std::map<std::string, FileId>;
  void Named(size_t began, Names names, std::vector<FileId> ordered = {});

  const Names& names() const { return changes_.back().names; }
  const std::string& content(FileId file) const { return files_[file].versions.back().data; }

  // Returns an empty string if a crash after `cut` events may leave `found`. Otherwise describes the difference to the
  // nearest possible state.
  std::string Check(size_t cut, const Tree& found) const;
  // The content, in a Tree, of a file that cannot be read.
  static constexpr char kUnreadable[] = "unreadable";
  // Same for disks that lie: a file that cannot be read is no difference, and neither is any state that was there once.
  std::string CheckForWrongBytes(const Tree& found) const;
  // Same, but only for the last state.
  std::string CheckLast(const Tree& found) const;
  // The number of positions up to `cut` that matter: Check has the same result for all cuts with the same number.
  size_t Phase(size_t cut) const;

 private:
  struct Version {
    size_t began;
    std::string data;
  };
  struct Sync {
    size_t done;
    size_t version;  // this version or a later one
  };
  struct File {
    std::vector<Version> versions;
    std::vector<Sync> syncs;
  };
  struct Change {
    size_t began;
    Names names;
    std::vector<std::pair<FileId, size_t>> ordered;  // files, and their versions at that time
  };

  std::string CheckChange(size_t cut, size_t change, const Tree& found) const;
  std::string CheckKnown(size_t change, bool last, const Tree& found) const;

  std::vector<File> files_;
  std::vector<Change> changes_ = {{0, {}, {}}};
  std::vector<Sync> name_syncs_;  // here `version` is an index into changes_
};

}  // namespace weightfs

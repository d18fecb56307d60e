// SPDX-License-Identifier: Apache-2.0
// What a workload did and when it was acknowledged, and whether a recovered tree is one that a crash may leave.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weightfs {

// Positions are sizes of the journal. An operation that began at `began` may show in a crash at or after it; one
// acknowledged at `done` and made durable must. Single-threaded.
class History {
 public:
  using FileId = size_t;
  using Tree = std::map<std::string, std::string>;  // path → content; a directory ends in '/' and has none

  // The content of the file is `data` from now on.
  void Wrote(FileId file, size_t began, std::string data);
  // Everything so far in the file (and every namespace change so far) is durable.
  void Synced(FileId file, size_t done);
  void SyncedAll(size_t done);
  FileId NewFile(std::string data = {});

  // The tree changed to `names` (path → file; directories map to kDirectory). `ordered` files were renamed: where this
  // change shows, their content is at least as new as it is now.
  static constexpr FileId kDirectory = static_cast<FileId>(-1);
  using Names = std::map<std::string, FileId>;
  void Named(size_t began, Names names, std::vector<FileId> ordered = {});

  const Names& names() const { return changes_.back().names; }
  const std::string& content(FileId file) const { return files_[file].versions.back().data; }

  // Empty when `found` is a state that a crash after `cut` events may leave, else what is wrong with the nearest one.
  std::string Check(size_t cut, const Tree& found) const;

 private:
  struct Version {
    size_t began;
    std::string data;
  };
  struct Sync {
    size_t done;
    size_t version;  // at least this one
  };
  struct File {
    std::vector<Version> versions;
    std::vector<Sync> syncs;
  };
  struct Change {
    size_t began;
    Names names;
    std::vector<std::pair<FileId, size_t>> ordered;  // file and its version then
  };

  std::string CheckChange(size_t cut, size_t change, const Tree& found) const;

  std::vector<File> files_;
  std::vector<Change> changes_ = {{0, {}, {}}};
  std::vector<Sync> name_syncs_;  // `version` is an index into changes_
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/history.h"

#include <algorithm>

namespace weightfs {

History::FileId History::NewFile(std::string data) {
  files_.push_back({{{0, std::move(data)}}, {}});
  return files_.size() - 1;
}

void History::Wrote(FileId file, size_t began, std::string data) {
  files_[file].versions.push_back({began, std::move(data)});
}

void History::Synced(FileId file, size_t done) {
  files_[file].syncs.push_back({done, files_[file].versions.size() - 1});
  SyncedNames(done);
}

void History::SyncedAll(size_t done) {
  for (FileId file = 0; file < files_.size(); ++file)
    files_[file].syncs.push_back({done, files_[file].versions.size() - 1});
  SyncedNames(done);
}

void History::SyncedNames(size_t done) { name_syncs_.push_back({done, changes_.size() - 1}); }

void History::Named(size_t began, Names names, std::vector<FileId> ordered) {
  Change change{began, std::move(names), {}};
  for (const FileId file : ordered) change.ordered.emplace_back(file, files_[file].versions.size() - 1);
  changes_.push_back(std::move(change));
}

std::string History::Check(size_t cut, const Tree& found) const {
  size_t first = 0;
  for (const Sync& sync : name_syncs_) {
    if (sync.done <= cut) first = std::max(first, sync.version);
  }
  std::string nearest = "no state of the tree could be tried";
  for (size_t change = changes_.size(); change-- > first;) {
    if (changes_[change].began > cut && change > first) continue;
    std::string wrong = CheckChange(cut, change, found);
    if (wrong.empty()) return {};
    // The state with matching names is the most informative one.
    if (nearest.empty() || wrong.find("content") != std::string::npos || nearest[0] == 'n') nearest = std::move(wrong);
  }
  return nearest;
}

std::string History::CheckForWrongBytes(const Tree& found) const {
  std::string wrong;
  for (size_t change = changes_.size(); change-- > 0;) {
    wrong = CheckKnown(change, false, found);
    if (wrong.empty()) break;
  }
  return wrong;
}

std::string History::CheckLast(const Tree& found) const { return CheckKnown(changes_.size() - 1, true, found); }

std::string History::CheckKnown(size_t change, bool last, const Tree& found) const {
  const Names& names = changes_[change].names;
  for (const auto& [path, content] : found) {
    if (!names.contains(path)) return "state " + std::to_string(change) + ": " + path + " should not exist";
  }
  for (const auto& [path, id] : names) {
    const auto match = found.find(path);
    if (match == found.end()) return "state " + std::to_string(change) + ": " + path + " is missing";
    if (id == kDirectory || match->second == kUnreadable) continue;
    const auto& versions = files_[id].versions;
    const auto begin = last ? versions.end() - 1 : versions.begin();
    const auto is_found = [&](const Version& version) { return version.data == match->second; };
    if (std::none_of(begin, versions.end(), is_found)) {
      return path + " has wrong bytes: " + std::to_string(match->second.size());
    }
  }
  return {};
}

size_t History::Phase(size_t cut) const {
  const auto begins = [cut](const auto& change) { return change.began <= cut; };
  const auto ends = [cut](const Sync& sync) { return sync.done <= cut; };
  auto count = std::count_if(changes_.begin(), changes_.end(), begins);
  count += std::count_if(name_syncs_.begin(), name_syncs_.end(), ends);
  for (const File& file : files_) {
    count += std::count_if(file.versions.begin(), file.versions.end(), begins);
    count += std::count_if(file.syncs.begin(), file.syncs.end(), ends);
  }
  return static_cast<size_t>(count);
}

std::string History::CheckChange(size_t cut, size_t change, const Tree& found) const {
  const Names& names = changes_[change].names;
  for (const auto& [path, content] : found) {
    if (!names.contains(path)) return "state " + std::to_string(change) + ": " + path + " should not exist";
  }
  std::map<FileId, size_t> at_least;
  for (size_t index = 0; index <= change; ++index) {
    for (const auto& [file, version] : changes_[index].ordered) at_least[file] = std::max(at_least[file], version);
  }
  for (const auto& [path, id] : names) {
    const auto match = found.find(path);
    if (match == found.end()) return "state " + std::to_string(change) + ": " + path + " is missing";
    if (id == kDirectory) continue;
    const File& file = files_[id];
    size_t oldest = at_least.contains(id) ? at_least[id] : 0;
    for (const Sync& sync : file.syncs) {
      if (sync.done <= cut) oldest = std::max(oldest, sync.version);
    }
    bool allowed = false;
    for (size_t version = oldest; version < file.versions.size() && !allowed; ++version) {
      allowed =
          (version == oldest || file.versions[version].began <= cut) && file.versions[version].data == match->second;
    }
    if (!allowed) {
      return "state " + std::to_string(change) + ": content of " + path + " (" + std::to_string(match->second.size()) +
             " bytes) is none of versions " + std::to_string(oldest) + ".." + std::to_string(file.versions.size() - 1);
    }
  }
  return {};
}

}  // namespace weightfs

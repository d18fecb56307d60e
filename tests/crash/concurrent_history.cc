// SPDX-License-Identifier: Apache-2.0
#include "tests/crash/concurrent_history.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace weightfs {
namespace {

uint64_t Stamp(uint64_t action, size_t cell) { return action == 0 ? 0 : action << 8 | cell; }

}  // namespace

ConcurrentHistory::Action ConcurrentHistory::Begin() {
  const size_t position = journal_();
  actions_.push_back({.began = ++clock_, .journal_began = position});
  return actions_.size() - 1;
}

void ConcurrentHistory::End(Action action) {
  const size_t position = journal_();
  actions_[action].journal_ended = position;
  actions_[action].ended = ++clock_;
}

void ConcurrentHistory::Cancel(Action action) { actions_[action].cancelled = true; }

void ConcurrentHistory::Fail(Action action) {
  uncertain_since_ = std::min(uncertain_since_, actions_[action].began);
}

void ConcurrentHistory::SetName(Action action, const std::string& name, InodeId ino) {
  names_[name].push_back({action, ino.value});
}

void ConcurrentHistory::Publish(Action action, InodeId ino) { actions_[action].published = ino; }

void ConcurrentHistory::SetCells(Action action, InodeId ino, size_t first, size_t count) {
  for (size_t cell = first; cell < first + count; ++cell) cells_[{ino, cell}].push_back({action, action});
}

void ConcurrentHistory::ClearCells(Action action, InodeId ino, size_t first, size_t count) {
  for (size_t cell = first; cell < first + count; ++cell) cells_[{ino, cell}].push_back({action, 0});
}

void ConcurrentHistory::Sync(Action action, std::optional<InodeId> ino) { syncs_.push_back({action, ino}); }

void ConcurrentHistory::AddWriter(InodeId ino, bool replaces) {
  ++writers_[ino];
  if (replaces) replacements_.push_back({ino, ++clock_});
}

void ConcurrentHistory::RemoveWriter(InodeId ino) {
  if (--writers_[ino] > 0) return;
  ++clock_;
  for (Replacement& one : replacements_) {
    if (one.ino == ino && one.ended == kNever) one.ended = clock_;
  }
}

std::string ConcurrentHistory::Bytes(Action action, size_t first, size_t count) {
  std::string bytes;
  for (size_t cell = first; cell < first + count; ++cell) {
    const uint64_t stamp = Stamp(action, cell);
    for (size_t at = 0; at < kCellSize; at += sizeof(stamp)) {
      bytes.append(reinterpret_cast<const char*>(&stamp), sizeof(stamp));
    }
  }
  return bytes;
}

std::vector<ConcurrentHistory::Action> ConcurrentHistory::Candidates(const Register& written, uint64_t value,
                                                                     const Bounds& bounds) const {
  const auto replaced = [&](const Interval& by) {
    return std::any_of(written.begin(), written.end(), [&](const Write& later) {
      const Interval& interval = actions_[later.action];
      if (interval.cancelled || interval.began <= by.ended) return false;
      return interval.ended < bounds.before || bounds.visible.contains(later.action);
    });
  };
  std::vector<Action> candidates;
  for (const Write& write : written) {
    const Interval& interval = actions_[write.action];
    if (write.value != value || interval.cancelled || interval.journal_began > bounds.cut) continue;
    if (!replaced(interval)) candidates.push_back(write.action);
  }
  if (value == 0 && !replaced(actions_[0])) candidates.push_back(0);
  return candidates;
}

bool ConcurrentHistory::Covers(const SyncAction& sync, InodeId ino) const {
  if (sync.ino) return *sync.ino == ino;
  if (faults_) return false;  // a file that has returned to its last commit keeps its error for calls of its own
  const Interval& interval = actions_[sync.action];
  return std::none_of(replacements_.begin(), replacements_.end(), [&](const Replacement& one) {
    return one.ino == ino && one.began < interval.ended && one.ended > interval.began;
  });
}

// After a failed write, a sync may have succeeded that does not cover it, because another one returned the error.
uint64_t ConcurrentHistory::DataSyncedBefore(InodeId ino, size_t cut) const {
  uint64_t before = 0;
  for (const SyncAction& sync : syncs_) {
    const Interval& interval = actions_[sync.action];
    if (interval.ended >= uncertain_since_ || interval.journal_ended > cut || !Covers(sync, ino)) continue;
    before = std::max(before, interval.began);
  }
  return before;
}

std::string ConcurrentHistory::CheckName(Action read, const std::string& name, InodeId found) const {
  const auto written = names_.find(name);
  const Register none;
  const Register& values = written == names_.end() ? none : written->second;
  if (!Candidates(values, found.value, {.before = actions_[read].began}).empty()) return {};
  return fmt::format("action {}: {} is inode {}, after{}", read, name, found.value, Describe(values));
}

std::string ConcurrentHistory::CheckRefused(Action change) const {
  const uint64_t began = actions_[change].began;
  const bool meanwhile = std::any_of(refusing_.begin(), refusing_.end(),
                                     [&](Action action) { return actions_[action].ended > began; });
  return meanwhile ? std::string() : CheckName(change, kPublished, InodeId{1});
}

std::string ConcurrentHistory::CheckContent(Action read, InodeId ino, std::string_view found) const {
  Bounds bounds{.before = actions_[read].began};
  if (faults_) bounds.before = std::min(bounds.before, DataSyncedBefore(ino, bounds.cut));
  std::string wrong = CheckCells(ino, found, bounds);
  return wrong.empty() ? wrong : fmt::format("action {}: {}", read, wrong);
}

std::string ConcurrentHistory::CheckCells(InodeId ino, std::string_view found, const Bounds& bounds) const {
  if (found.size() % kCellSize != 0 || found.size() > kCells * kCellSize) {
    return fmt::format("inode {} has {} bytes", ino.value, found.size());
  }
  const Register none;
  for (size_t cell = 0; cell < kCells; ++cell) {
    uint64_t stamp = 0;
    if (cell * kCellSize < found.size()) {
      const std::string_view bytes = found.substr(cell * kCellSize, kCellSize);
      std::memcpy(&stamp, bytes.data(), sizeof(stamp));
      if (bytes.substr(sizeof(stamp)) != bytes.substr(0, kCellSize - sizeof(stamp))) {
        return fmt::format("cell {} of inode {} is torn", cell, ino.value);
      }
    }
    const auto written = cells_.find({ino, cell});
    const Register& values = written == cells_.end() ? none : written->second;
    if ((stamp == 0 || (stamp & 0xFF) == cell) && !Candidates(values, stamp >> 8, bounds).empty()) continue;
    return fmt::format("cell {} of inode {} has the bytes of action {} (cell {}), after{}", cell, ino.value, stamp >> 8,
                       stamp & 0xFF, Describe(values));
  }
  return {};
}

// An action that the crash left shows that all actions on names that ended before it are there, too.
std::string ConcurrentHistory::CheckNames(const Tree& found, Bounds* bounds) const {
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [name, written] : names_) {
      if (found.unknown.contains(name)) continue;
      const auto entry = found.names.find(name);
      const InodeId ino = entry == found.names.end() ? InodeId{0} : entry->second;
      const std::vector<Action> candidates = Candidates(written, ino.value, *bounds);
      if (candidates.empty()) {
        return fmt::format("{} is inode {}, after{}", name, ino.value, Describe(written));
      }
      if (candidates.size() == 1 && bounds->visible.insert(candidates.front()).second) changed = true;
      uint64_t began = kNever;
      for (const Action action : candidates) began = std::min(began, actions_[action].began);
      changed = changed || began > bounds->before;
      bounds->before = std::max(bounds->before, began);
    }
  }
  return {};
}

std::string ConcurrentHistory::CheckCrash(size_t cut, const Tree& found) const {
  Bounds names{.cut = cut};
  for (const SyncAction& sync : syncs_) {
    const Interval& interval = actions_[sync.action];
    if (interval.ended == kNever || interval.journal_ended > cut) continue;
    names.before = std::max(names.before, interval.began);
  }
  if (std::string wrong = CheckNames(found, &names); !wrong.empty()) return wrong;
  for (const auto& [ino, content] : found.content) {
    Bounds bounds{.cut = cut, .before = DataSyncedBefore(ino, cut)};
    for (const Action action : names.visible) {
      const Interval& interval = actions_[action];
      if (interval.published == ino && interval.ended < uncertain_since_) {
        bounds.before = std::max(bounds.before, interval.began);
      }
    }
    if (std::string wrong = CheckCells(ino, content, bounds); !wrong.empty()) return wrong;
  }
  return {};
}

std::set<std::string> ConcurrentHistory::Names() const {
  std::set<std::string> names;
  for (const auto& [name, written] : names_) names.insert(name);
  return names;
}

std::string ConcurrentHistory::Describe(const Register& written) const {
  std::string text;
  for (const Write& write : written) {
    const Interval& interval = actions_[write.action];
    if (interval.cancelled) continue;
    const std::string end = interval.ended == kNever ? "?" : fmt::format("{}", interval.ended);
    text += fmt::format(" {} by action {} ({} to {}, event {})", write.value, write.action, interval.began, end,
                        interval.journal_began);
  }
  return text.empty() ? " nothing" : text;
}

}  // namespace weightfs

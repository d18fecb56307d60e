// SPDX-License-Identifier: Apache-2.0
// Records what concurrent clients did to names and files, and checks what they read, and what a crash left.
//
// Each name, and each cell of a file, is a register: its value is an inode (0: no entry), or the action that wrote it
// (0: zeros). An action has an interval, so the order of two is known only if one ended before the other began. A read
// may return a value unless another one certainly replaced it: by an action that began after the value's had ended, and
// that ended before the read began, or before a sync that the crash left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/units.h"

namespace weightfs {

// Used by one thread at a time.
class ConcurrentHistory {
 public:
  using Action = size_t;  // from 1
  static constexpr size_t kCellSize = 2048, kCells = 24;

  // `journal` returns the size of the journal. `faults`: a file may return to its last commit at any time, because a
  // write of it has failed.
  ConcurrentHistory(std::function<size_t()> journal, bool faults) : journal_(std::move(journal)), faults_(faults) {}

  Action Begin();
  void End(Action action);     // it has happened
  void Cancel(Action action);  // it has changed nothing
  // It may have happened. A sync that ends after its beginning may cover less.
  void Fail(Action action);

  // Before the call of the store, except for names that no other client uses.
  void SetName(Action action, const std::string& name, InodeId ino);
  // These have registers like names: the attribute of an inode, which is a number, and whether the directory of
  // publications is published (1).
  static std::string AttributeOf(InodeId ino) { return "@" + std::to_string(ino.value); }
  static inline const std::string kPublished = "!published";
  static bool IsFile(std::string_view name) { return name[0] != '@' && name[0] != '!'; }
  // Before a call that publishes, or reverts it. Meanwhile any change may be refused, even if the call then fails.
  void MayRefuse(Action action) { refusing_.push_back(action); }
  // The whole files behind a new name are as new as they were when the action began.
  void Publish(Action action, InodeId ino);
  void SetCells(Action action, InodeId ino, size_t first, size_t count);
  void ClearCells(Action action, InodeId ino, size_t first, size_t count);
  // A sync of the file, or of everything except files that are being replaced meanwhile.
  void Sync(Action action, std::optional<InodeId> ino);
  // Around the time in which a client has the file open for writing. A replacement (O_TRUNC) lasts until the last one
  // closes it.
  void AddWriter(InodeId ino, bool replaces);
  void RemoveWriter(InodeId ino);

  // The bytes of cells that the action writes.
  static std::string Bytes(Action action, size_t first, size_t count);

  // Return a text for a person; empty if all is well. `read` began before the read.
  std::string CheckName(Action read, const std::string& name, InodeId found) const;
  std::string CheckContent(Action read, InodeId ino, std::string_view found) const;
  // A change in the published directory was refused, or was made.
  std::string CheckRefused(Action change) const;
  std::string CheckChanged(Action change) const { return CheckName(change, kPublished, InodeId{0}); }
  struct Tree {
    std::map<std::string, InodeId> names;    // and the other registers
    std::map<InodeId, std::string> content;  // of all files in `names`
    std::set<std::string> unknown;           // attributes of inodes that are gone
  };
  std::string CheckCrash(size_t cut, const Tree& found) const;

  std::set<std::string> Names() const;

 private:
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();
  struct Interval {
    uint64_t began = 0, ended = kNever;  // in the order of all beginnings and ends
    size_t journal_began = 0, journal_ended = 0;
    bool cancelled = false;
    std::optional<InodeId> published;
  };
  struct Write {
    Action action;
    uint64_t value;
  };
  using Register = std::vector<Write>;
  struct SyncAction {
    Action action;
    std::optional<InodeId> ino;
  };
  struct Replacement {
    InodeId ino;
    uint64_t began, ended = kNever;
  };
  // What must be there.
  struct Bounds {
    size_t cut = std::numeric_limits<size_t>::max();
    uint64_t before = 0;        // what ended before
    std::set<Action> visible;   // and these
  };

  std::vector<Action> Candidates(const Register& written, uint64_t value, const Bounds& bounds) const;
  uint64_t DataSyncedBefore(InodeId ino, size_t cut) const;
  bool Covers(const SyncAction& sync, InodeId ino) const;
  std::string CheckNames(const Tree& found, Bounds* bounds) const;
  std::string CheckCells(InodeId ino, std::string_view found, const Bounds& bounds) const;
  std::string Describe(const Register& written) const;

  const std::function<size_t()> journal_;
  const bool faults_;
  uint64_t clock_ = 0;
  std::vector<Interval> actions_ = {{0, 0, 0, 0, false, std::nullopt}};  // the first one made everything zero
  std::map<std::string, Register> names_;
  std::map<std::pair<InodeId, size_t>, Register> cells_;
  std::vector<SyncAction> syncs_;
  std::vector<Action> refusing_;
  std::vector<Replacement> replacements_;
  std::map<InodeId, int> writers_;
  uint64_t uncertain_since_ = kNever;  // the beginning of the first action that failed
};

}  // namespace weightfs

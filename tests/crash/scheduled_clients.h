// SPDX-License-Identifier: Apache-2.0
// Concurrent clients of one store that share names and files. A list of steps says what each does, so that a test can
// leave steps out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/crash/concurrent_history.h"
#include "tests/support/test_store.h"

namespace weightfs {

struct ClientStep {
  enum class Kind : unsigned char {
    kSave,     // a new file, renamed over a shared name
    kWrite,    // cells of a shared file
    kRead,
    kSync,
    kTruncate,
    kPunch,
    kUnlink,
    kLink,
    kMove,     // a shared file to another shared name
    kReplace,  // O_TRUNC and a write
    kWriteLease,
    kReadLease,
    kSaveMany,
    kMark,     // an attribute of a shared file
    kPublish,  // the directory of a shared file, or the end of that
    kRecall,   // opens a file again that the kernel knows, whether it has a name or not
    kForget,   // the kernel forgets all files
    kSyncAll,
    kPause,    // until timers may have ended
  };
  static constexpr size_t kKinds = 19;
  size_t client;
  Kind kind;
  uint32_t a, b, c;
};
std::string ToText(const ClientStep& step);
std::vector<ClientStep> RandomSteps(uint64_t seed);
inline constexpr size_t kScheduledClients = 4;  // at most

// Not thread-safe, but clients of one store may share a history if they run one at a time.
class ScheduledClient {
 public:
  // Requests of the store may fail if `faults`, and those that need space if `full`. The kernel forgets a file after
  // each step if `forgets`, and otherwise keeps it until kForget.
  static constexpr std::string_view kPublishedDirectory = "e";
  struct Conditions {
    bool faults = false, full = false, forgets = false;
  };
  ScheduledClient(TestStore& store, ConcurrentHistory& history, const Conditions& conditions, size_t number)
      : store_(store), history_(history), conditions_(conditions), number_(number) {}

  // Takes its steps until something is wrong, or the store has ended all writing.
  void Run(const std::vector<ClientStep>& steps);
  void Take(const ClientStep& step);
  void Forget();
  // Reads everything.
  void CheckAll();
  const std::string& complaint() const { return complaint_; }

  static ConcurrentHistory::Tree ReadTree(TestStore& store, const std::set<std::string>& names, std::string* error);
  static const std::vector<std::string>& SharedNames();

 private:
  struct Opened {
    InodePtr inode;
    InodeId ino{0};
    bool writes = false;
  };
  struct Place {
    InodeId directory{0};
    std::string name;
  };

  Place PlaceOf(const std::string& path);
  std::string NewName();
  // Ends the action or, after an error, notes that it may have happened, or has changed nothing. Returns true if it has
  // succeeded.
  bool Finish(ConcurrentHistory::Action action, const Result<void>& result);
  void Complain(std::string text);
  std::optional<InodeId> Lookup(const std::string& path);
  Opened Open(const std::string& path, bool writes);
  void Close(const Opened& opened);
  void CheckBytes(const Opened& opened, bool leased);
  bool Write(const Opened& opened, size_t first, size_t count);
  void Sync(const Opened& opened);
  void Rename(const std::string& from, const std::string& to, InodeId ino);
  std::string SharedName(uint32_t number) const { return SharedNames()[number % SharedNames().size()]; }

  void Save(const ClientStep& step);
  void Unlink(const ClientStep& step);
  void Link(const ClientStep& step);
  void Move(const ClientStep& step);
  void Replace(const ClientStep& step);
  void WriteLease(const ClientStep& step);
  void SaveMany(const ClientStep& step);
  void Mark(const ClientStep& step);
  void Publish(const ClientStep& step);
  // A change below a name has been made.
  void CheckChanged(ConcurrentHistory::Action action, const std::string& path);
  void CheckRegister(const std::string& name);
  void Recall();
  void ChangeRange(const ClientStep& step);

  TestStore& store_;
  ConcurrentHistory& history_;
  const Conditions conditions_;
  const size_t number_;
  size_t names_ = 0;
  std::vector<InodeId> known_;        // lookups
  std::optional<InodeId> recallable_;  // certainly known since before its last name went
  std::string complaint_;
};

}  // namespace weightfs

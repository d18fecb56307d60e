// SPDX-License-Identifier: Apache-2.0
// A process beside the benchmark that cleans up when the benchmark dies of what it cannot catch: SIGKILL, a crash.
#pragma once

#include <string>

#include "bench/suite/basics.h"
#include "common/result.h"

namespace weightfs::bench {

// What has to be taken away; each is noted before it is made, and forgotten when it is gone.
enum class Kept : char {
  kDirectory = 'd',  // deleted with all in it
  kMount = 'm',      // of weightfs
  kLoopDevice = 'l',
  kCgroup = 'c',
};

// Removes an empty cgroup; waits while its last process ends.
void RemoveCgroup(const std::string& directory);

// Not thread-safe. Its process ignores the signals that end the benchmark, and ends after it.
class Keeper {
 public:
  // `program` is the weightfs that unmounts. Called while the process has no other threads and no mount open.
  static Result<Keeper> Start(const std::string& program);
  Keeper() = default;
  Keeper(Keeper&&) noexcept = default;
  Keeper& operator=(Keeper&&) noexcept = default;

  void Note(Kept kind, const std::string& path) const { Tell('+', kind, path); }
  void Forget(Kept kind, const std::string& path) const { Tell('-', kind, path); }

 private:
  explicit Keeper(File pipe) : pipe_(std::move(pipe)) {}
  void Tell(char sign, Kept kind, const std::string& path) const;
  File pipe_;
};

}  // namespace weightfs::bench

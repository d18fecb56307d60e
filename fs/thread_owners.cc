// SPDX-License-Identifier: Apache-2.0
#include "fs/thread_owners.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "common/processes.h"

namespace weightfs {
namespace {

constexpr std::chrono::seconds kFresh{1};

// /proc may belong to another PID namespace, where the same numbers are other processes.
bool ProcShowsThisNamespace() { return ReadProcLink("self") == std::to_string(getpid()); }

std::optional<ThreadOwner> ReadOwner(int32_t thread) {
  constexpr std::string_view kField = "\nTgid:";
  const std::string status = ReadProcFile(fmt::format("{}/status", thread)).value_or("");
  const size_t at = status.find(kField);
  if (at == std::string::npos) return std::nullopt;
  ThreadOwner owner{.process = std::strtoull(status.c_str() + at + kField.size(), nullptr, 10)};
  std::string name = ReadProcFile(fmt::format("{}/comm", owner.process)).value_or("");
  name.resize(std::min(name.find_last_not_of('\n') + 1, owner.name.size()));
  std::copy(name.begin(), name.end(), owner.name.begin());
  return owner;
}

}  // namespace

ThreadOwner ThreadOwners::Of(int32_t thread) {
  static const bool readable = ProcShowsThisNamespace();
  if (thread <= 0) return {};
  const auto now = Clock::now();
  {
    MutexLock lock(mutex_);
    const auto found = known_.find(thread);
    if (found != known_.end() && (!readable || now - found->second.read < kFresh)) return found->second.owner;
  }
  const auto read = readable ? ReadOwner(thread) : std::nullopt;
  MutexLock lock(mutex_);
  if (known_.size() >= kMostKnown && !known_.contains(thread)) known_.clear();
  Known& known = known_[thread];
  if (known.owner.process == 0) known.owner.process = static_cast<uint64_t>(thread);
  if (read.has_value()) known.owner = *read;
  known.read = now;
  return known.owner;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "cli/keepers.h"

#include "cli/mount_table.h"
#include "common/make_error.h"
#include "common/processes.h"
#include "common/shell_quote.h"
#include "store/volume/store_guard.h"

namespace weightfs::cli {
namespace {

struct Row {
  pid_t process;
  std::string command, where;
};

std::vector<Row> RowsOf(const Keepers& keepers) {
  std::vector<Row> rows;
  for (const NamespaceMounts& elsewhere : keepers.elsewhere) {
    const std::string& directory = elsewhere.mounts.front().directory;
    for (const pid_t process : elsewhere.processes) {
      rows.push_back({process, CommandOf(process), directory + " (another mount namespace)"});
    }
  }
  for (const MountUser& user : keepers.users) rows.push_back({user.process, user.command, user.reason});
  return rows;
}

// "process 4711 (sleep)", "the processes 4711 (sleep), 4712 (bash) and 3 more"
std::string ShortList(const std::vector<Row>& rows) {
  constexpr size_t kShown = 5;
  std::string text = rows.size() == 1 ? "process " : "the processes ";
  for (size_t index = 0; index < std::min(rows.size(), kShown); ++index) {
    text += fmt::format("{}{} ({})", index == 0 ? "" : ", ", rows[index].process, rows[index].command);
  }
  return rows.size() > kShown ? fmt::format("{} and {} more", text, rows.size() - kShown) : text;
}

using Clock = std::chrono::steady_clock;

constexpr auto kLimit = std::chrono::minutes(1);
constexpr auto kPoll = std::chrono::milliseconds(20);
// A command that is just starting or ending changes its note within this time. Also the interval between scans of all
// processes.
constexpr auto kSettled = std::chrono::seconds(1);

Error InUse(const StoreLocation& store, const StoreHolder& holder, std::string_view advice) {
  return MakeError(ErrorCode::kBusy, "{}: the store is in use by {}; {}", store.name, DescribeProcess(holder.process),
                   advice);
}

// kBusy if waiting for the holder cannot help, as far as this process can see.
Result<void> CheckHolder(const StoreLocation& store, const StoreHolder& holder, bool settled) {
  const auto mount = FindServedMount(holder);
  // A process in another PID namespace may have been killed.
  if (mount.has_value() && (holder.process > 0 || settled)) {
    return InUse(store, holder, "unmount it first: weightfs umount " + ShellQuote(mount->directory));
  }
  if (!settled) return {};
  if (holder.state == StoreHolder::State::kWorking) {
    return InUse(store, holder, "wait until that command has ended");
  }
  // A holder on another machine cannot be seen from here.
  if (holder.state == StoreHolder::State::kServing && holder.process == 0 &&
      MayLoseLocks(store.directory)) {
    return InUse(store, holder, "unmount it on the machine that serves it; if that machine has failed, the filesystem "
                                "drops its locks after a while");
  }
  const Keepers keepers = FindKeepers(holder.filesystem);
  return keepers.empty() ? Result<void>() : StillServed(store.name, holder, keepers);
}

}  // namespace

Keepers UsersOf(const MountedFilesystem& filesystem) {
  MountUsers found = FindMountUsers(filesystem);
  return {.users = std::move(found.users), .complete = found.complete};
}

Keepers FindKeepers(const MountedFilesystem& filesystem) {
  Keepers keepers;
  keepers.here = MountsOf(filesystem);
  MountsElsewhere elsewhere = FindMountsElsewhere(filesystem);
  if (elsewhere.reused) return {};
  keepers.elsewhere = std::move(elsewhere.namespaces);
  keepers.complete = elsewhere.complete;
  if (!keepers.empty()) return keepers;
  Keepers users = UsersOf(filesystem);
  users.complete = users.complete && keepers.complete;
  return users;
}

std::string DescribeKeepers(const Keepers& keepers) {
  if (!keepers.here.empty()) return fmt::format("it is also mounted on {}", keepers.here.front().directory);
  const std::string list = ShortList(RowsOf(keepers));
  if (!keepers.elsewhere.empty()) {
    const size_t count = keepers.elsewhere.size();
    return count == 1 ? fmt::format("it is mounted in another mount namespace, by {}", list)
                      : fmt::format("it is mounted in {} other mount namespaces, by {}", count, list);
  }
  if (!keepers.users.empty()) return fmt::format("its files are in use by {}", list);
  return keepers.complete ? "it has not ended yet"
                          : "it has not ended yet; processes of other users may use it (only root can list them)";
}

std::string KeepersAdvice(const Keepers& keepers, pid_t daemon) {
  if (!keepers.here.empty()) {
    return fmt::format("unmount that too: weightfs umount {}", ShellQuote(keepers.here.front().directory));
  }
  const std::string end = daemon > 0 ? fmt::format("'kill {}' ends the mount for all, and written data is kept", daemon)
                                     : "SIGTERM to the daemon ends the mount for all";
  return keepers.empty() ? end : fmt::format("end the programs that use it there, or: {}", end);
}

std::string KeepersTable(const Keepers& keepers) {
  constexpr size_t kShown = 20;
  const std::vector<Row> rows = RowsOf(keepers);
  if (rows.empty()) return {};
  Table table({{"pid", true}, {"command"}, {"holds"}});
  for (size_t index = 0; index < std::min(rows.size(), kShown); ++index) {
    table.Add({fmt::format("{}", rows[index].process), rows[index].command, rows[index].where});
  }
  return table.ToString() + (rows.size() > kShown ? fmt::format("... and {} more\n", rows.size() - kShown) : "") +
         (keepers.complete ? "" : "Processes of other users may also hold it; only root can list them.\n");
}

Error StillServed(const std::string& store, const StoreHolder& holder, const Keepers& keepers) {
  return MakeError(ErrorCode::kBusy, "{}: still served by {} although it is not mounted here: {}; {}", store,
                   DescribeProcess(holder.process), DescribeKeepers(keepers), KeepersAdvice(keepers, holder.process));
}

Result<void> WaitUntilReleased(const StoreLocation& store) {
  const auto start = Clock::now();
  auto next_look = start + kSettled;
  StoreHolder before;
  for (auto now = start; now < start + kLimit; now = Clock::now()) {
    const StoreHolder holder = ReadStoreHolder(store.directory);
    if (!holder.held) return {};
    if (holder.noted != before.noted || holder.state != before.state) next_look = now + kSettled;
    before = holder;
    if (!holder.IsEnding()) RETURN_IF_ERROR(CheckHolder(store, holder, now >= next_look));
    if (now >= next_look) next_look = now + kSettled;
    std::this_thread::sleep_for(kPoll);
  }
  if (before.state != StoreHolder::State::kServing || before.IsEnding()) return {};
  return StillServed(store.name, before, FindKeepers(before.filesystem));
}

}  // namespace weightfs::cli

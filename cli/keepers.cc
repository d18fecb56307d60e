// SPDX-License-Identifier: Apache-2.0
#include "cli/keepers.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/processes.h"
#include "common/shell_quote.h"

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

}  // namespace

Keepers UsersOf(const std::string& device) {
  MountUsers found = FindMountUsers(device);
  return {.users = std::move(found.users), .complete = found.complete};
}

Keepers FindKeepers(const std::string& device) {
  Keepers keepers;
  keepers.here = MountsOf(device);
  MountsElsewhere elsewhere = FindMountsElsewhere(device);
  keepers.elsewhere = std::move(elsewhere.namespaces);
  keepers.complete = elsewhere.complete;
  if (!keepers.empty()) return keepers;
  Keepers users = UsersOf(device);
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
  return {ErrorCode::kBusy, fmt::format("{}: still served by {} although it is not mounted here: {}; {}", store,
                                        DescribeProcess(holder.process), DescribeKeepers(keepers),
                                        KeepersAdvice(keepers, holder.process))};
}

}  // namespace weightfs::cli

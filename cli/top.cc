// SPDX-License-Identifier: Apache-2.0
// weightfs top: the processes and files that use a mount, once a second.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <vector>

#include "cli/commands.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/watch.h"
#include "common/printable.h"
#include "common/processes.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

// Of one process or file in an interval, per second.
struct Row {
  uint64_t id = 0;
  std::string name;
  double read = 0, written = 0, leased_read = 0, leased_written = 0;  // bytes
  double requests = 0;
  double busy = 0;  // the mean number of its requests in progress

  double bytes() const { return read + written + leased_read + leased_written; }
};

// The names of files, which the mount does not know: a file is named by the processes that have it open or mapped.
class FileNames {
 public:
  void Add(uint64_t inode, const std::string& path) {
    if (names_.size() >= kMostNames) names_.clear();
    if (!path.empty()) names_[inode] = Printable(path);
  }
  void LookAt(dev_t device, uint64_t process) {
    if (process == 0 || process == WEIGHTFS_TOP_OTHERS) return;
    const std::string folder = fmt::format("{}/fd", process);
    for (const std::string& number : ListProc(folder).value_or(std::vector<std::string>())) {
      const std::string entry = fmt::format("{}/{}", folder, number);
      // Asks no filesystem for the attributes: another one may not answer, and this one would count the request.
      struct statx status {};
      if (statx(ProcDirectory(), entry.c_str(), AT_STATX_DONT_SYNC, STATX_INO, &status) != 0) continue;
      if (makedev(status.stx_dev_major, status.stx_dev_minor) == device) Add(status.stx_ino, ReadProcLink(entry));
    }
    LookAtMappings(device, process);
  }
  std::string Of(uint64_t inode) const {
    if (inode == WEIGHTFS_TOP_OTHERS) return "(others)";
    const auto found = names_.find(inode);
    return found != names_.end() ? found->second : fmt::format("inode {}", inode);
  }

 private:
  // Example: "7f0000000000-7f0000001000 r--s 00000000 00:2b 17    /mnt/tensors/w.pt".
  void LookAtMappings(dev_t device, uint64_t process) {
    const std::string wanted = fmt::format("{:02x}:{:02x}", major(device), minor(device));
    std::istringstream lines(ReadProcFile(fmt::format("{}/maps", process)).value_or(""));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string range, access, offset, where, path;
      uint64_t inode = 0;
      if (!(fields >> range >> access >> offset >> where >> inode) || where != wanted) continue;
      std::getline(fields >> std::ws, path);
      Add(inode, path);
    }
  }
  static constexpr size_t kMostNames = 100'000;
  std::map<uint64_t, std::string> names_;
};

std::string ProcessName(const weightfs_top_entry& entry) {
  if (entry.id == WEIGHTFS_TOP_OTHERS) return "(others)";
  if (entry.id == 0) return "(kernel)";
  const std::string name(entry.name, strnlen(entry.name, sizeof(entry.name)));
  return name.empty() ? "(ended)" : Printable(name);
}

std::vector<Row> RowsOf(std::span<const weightfs_top_entry> entries, double seconds) {
  std::vector<Row> rows;
  for (const weightfs_top_entry& entry : entries) {
    const auto rate = [seconds](uint64_t count) { return static_cast<double>(count) / seconds; };
    Row row{.id = entry.id, .name = ProcessName(entry)};
    row.read = rate(entry.read_bytes);
    row.written = rate(entry.written_bytes);
    row.leased_read = rate(entry.leased_read_bytes);
    row.leased_written = rate(entry.leased_written_bytes);
    row.requests = rate(entry.requests);
    row.busy = rate(entry.nanoseconds) / 1e9;
    rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.bytes(), a.requests) > std::pair(b.bytes(), b.requests);
  });
  return rows;
}

// The name is the last column, where a narrow terminal may cut it.
std::string TableOf(const char* title, const std::vector<Row>& rows, size_t most, bool with_id) {
  std::vector<Table::Column> columns = {{"read", true},
                                        {"written", true},
                                        {"leased read", true},
                                        {"leased write", true},
                                        {"requests/s", true},
                                        {"in progress", true},
                                        {title}};
  if (with_id) columns.insert(columns.begin(), {"PID", true});
  Table table(columns);
  for (const Row& row : std::span(rows).first(std::min(rows.size(), most))) {
    std::vector<std::string> cells = {RateText(row.read),
                                      RateText(row.written),
                                      RateText(row.leased_read),
                                      RateText(row.leased_written),
                                      CountText(row.requests),
                                      row.busy < 0.005 ? "-" : fmt::format("{:.2f}", row.busy),
                                      row.name};
    const bool numbered = row.id != 0 && row.id != WEIGHTFS_TOP_OTHERS;
    if (with_id) cells.insert(cells.begin(), numbered ? fmt::format("{}", row.id) : "");
    table.Add(std::move(cells));
  }
  return table.ToString();
}

Json JsonOf(const std::vector<Row>& rows, const char* id) {
  Json json = Json::array();
  for (const Row& row : rows) {
    json.push_back({{id, row.id == WEIGHTFS_TOP_OTHERS ? Json() : Json(row.id)},
                    {"name", row.name},
                    {"read_bytes_per_s", row.read},
                    {"written_bytes_per_s", row.written},
                    {"leased_read_bytes_per_s", row.leased_read},
                    {"leased_written_bytes_per_s", row.leased_written},
                    {"requests_per_s", row.requests},
                    {"in_progress", row.busy}});
  }
  return json;
}

// What the mount has counted since the last look.
struct Look {
  dev_t device = 0;
  weightfs_top top{};
};

Result<Look> Ask(const WatchArguments& arguments, uint64_t since) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenOnMount(arguments.path));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return SystemError(arguments.path, "cannot be examined");
  Look look{.device = status.st_dev};
  look.top.version = WEIGHTFS_IOC_VERSION;
  look.top.since = since;
  RETURN_IF_ERROR(AskMount(arguments, file.get(), WEIGHTFS_IOC_TOP, &look.top));
  return look;
}

std::string TopText(const WatchArguments& arguments, double seconds, const std::vector<Row>& processes,
                    const std::vector<Row>& files, size_t screen_rows) {
  constexpr size_t kMost = 15, kOtherLines = 5;
  // The tables share the rows of a small terminal.
  const size_t free = screen_rows > kOtherLines ? screen_rows - kOtherLines : 2;
  const size_t most_processes =
      screen_rows == 0 ? kMost : std::min(kMost, std::max(free / 2, free - std::min(free, files.size())));
  const size_t most_files =
      screen_rows == 0 ? kMost : std::min(kMost, free - std::min({free, processes.size(), most_processes}));
  return Paint(Tone::kBold, Printable(arguments.path)) + fmt::format("  in the last {:.1f} s\n\n", seconds) +
         TableOf("process", processes, most_processes, true) + "\n" + TableOf("file", files, most_files, false);
}

int Run(const WatchArguments& arguments) {
  const auto first = Ask(arguments, 0);
  if (!first.has_value()) return Fail(first.error());
  const auto mount = FindMountAbove(arguments.path);
  FileNames names;
  constexpr uint64_t kRootInode = 1;
  if (mount.has_value() && mount->root == "/") names.Add(kRootInode, mount->directory);
  const std::string below = mount.has_value() ? Printable(mount->directory) + "/" : "";
  uint64_t since = first->top.next;
  return Watch(arguments, [&](size_t screen_rows) -> Result<std::string> {
    ASSIGN_OR_RETURN(const Look look, Ask(arguments, since));
    const weightfs_top& top = look.top;
    since = top.next;
    const double seconds = std::max(1e-9, static_cast<double>(top.watched_ns) / 1e9);
    const auto processes = RowsOf({top.process, top.processes}, seconds);
    auto files = RowsOf({top.file, top.files}, seconds);
    for (const Row& row : processes) names.LookAt(look.device, row.id);
    for (Row& row : files) {
      row.name = names.Of(row.id);
      if (!arguments.json && !below.empty() && row.name.starts_with(below)) row.name.erase(0, below.size());
    }
    if (!arguments.json) return TopText(arguments, seconds, processes, files, screen_rows);
    const auto time = std::chrono::system_clock::now().time_since_epoch();
    const Json json = {{"time", std::chrono::duration<double>(time).count()},
                       {"interval_s", seconds},
                       {"processes", JsonOf(processes, "pid")},
                       {"files", JsonOf(files, "inode")}};
    return json.dump() + "\n";
  });
}

}  // namespace

void AddTop(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("top", "Show the processes and files that use a mount");
  auto arguments = AddWatchArguments(*command, 5);  // the mount stops counting after ten
  command->footer(
      "For root (user 0 with CAP_DAC_OVERRIDE) and the user who runs the mount. Data of leases counts when a lease\n"
      "for reading begins and when a written one is committed; save_many and load_many count for their directory.\n"
      "Files are named by the processes that have them open or mapped; a file that was closed before the look is\n"
      "shown by its inode. (kernel) closes files, and writes what programs changed through mappings.\n\n"
      "Examples:\n"
      "  weightfs top /mnt/tensors\n"
      "  weightfs top /mnt/tensors --count 1 --json");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

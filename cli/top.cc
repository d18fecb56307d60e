// SPDX-License-Identifier: Apache-2.0
// weightfs top: the processes and files that use a mount, once a second.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <vector>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/watch.h"
#include "common/printable.h"
#include "common/processes.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Of one process or file in an interval, per second.
struct Row {
  uint64_t id = 0;
  std::string name;
  double read = 0, written = 0, leased_read = 0, leased_written = 0;  // bytes
  double requests = 0;
  double busy = 0;  // the mean number of its requests in progress

  double bytes() const { return read + written + leased_read + leased_written; }
};

// The names of processes and files, which the mount does not know: a file is named by the descriptors of the processes
// that use it.
class Names {
 public:
  explicit Names(dev_t device) : device_(device) {}

  std::string OfProcess(uint64_t process) {
    if (process == 0) return "(other)";
    std::string& name = processes_[process];
    const std::string now = CommandOf(static_cast<pid_t>(process));
    if (!now.empty()) name = now;  // it may have ended
    return name.empty() ? "(ended)" : name;
  }
  void LookAtFiles(uint64_t process) {
    std::error_code error;
    for (fs::directory_iterator entry(fmt::format("/proc/{}/fd", process), error), end; !error && entry != end;
         entry.increment(error)) {
      struct stat status {};
      if (stat(entry->path().c_str(), &status) != 0 || status.st_dev != device_) continue;
      std::error_code unread;
      const std::string path = fs::read_symlink(entry->path(), unread).string();
      if (!unread) files_[status.st_ino] = Printable(path);
    }
  }
  std::string OfFile(uint64_t inode) const {
    if (inode == 0) return "(other)";
    const auto found = files_.find(inode);
    return found != files_.end() ? found->second : fmt::format("inode {}", inode);
  }

 private:
  const dev_t device_;
  std::map<uint64_t, std::string> processes_, files_;
};

std::vector<Row> RowsOf(std::span<const weightfs_top_entry> before, std::span<const weightfs_top_entry> after,
                        double seconds) {
  std::vector<Row> rows;
  for (const weightfs_top_entry& now : after) {
    const auto earlier =
        std::find_if(before.begin(), before.end(), [&](const weightfs_top_entry& other) { return other.id == now.id; });
    const weightfs_top_entry from = earlier != before.end() ? *earlier : weightfs_top_entry{};
    const auto rate = [seconds](uint64_t a, uint64_t b) { return b > a ? static_cast<double>(b - a) / seconds : 0; };
    Row row{.id = now.id};
    row.read = rate(from.read_bytes, now.read_bytes);
    row.written = rate(from.written_bytes, now.written_bytes);
    row.leased_read = rate(from.leased_read_bytes, now.leased_read_bytes);
    row.leased_written = rate(from.leased_written_bytes, now.leased_written_bytes);
    row.requests = rate(from.requests, now.requests);
    row.busy = rate(from.nanoseconds, now.nanoseconds) / 1e9;
    if (row.requests > 0) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.bytes(), a.requests) > std::pair(b.bytes(), b.requests);
  });
  return rows;
}

std::string TableOf(const char* title, const std::vector<Row>& rows, bool with_id) {
  constexpr size_t kMost = 15;
  std::vector<Table::Column> columns = {{title},
                                        {"read", true},
                                        {"written", true},
                                        {"leased read", true},
                                        {"leased write", true},
                                        {"requests/s", true},
                                        {"in progress", true}};
  if (with_id) columns.insert(columns.begin(), {"PID", true});
  Table table(columns);
  for (const Row& row : std::span(rows).first(std::min(rows.size(), kMost))) {
    std::vector<std::string> cells = {row.name,
                                      RateText(row.read),
                                      RateText(row.written),
                                      RateText(row.leased_read),
                                      RateText(row.leased_written),
                                      CountText(row.requests),
                                      row.busy < 0.005 ? "-" : fmt::format("{:.2f}", row.busy)};
    if (with_id) cells.insert(cells.begin(), row.id == 0 ? "" : fmt::format("{}", row.id));
    table.Add(std::move(cells));
  }
  return table.ToString();
}

Json JsonOf(const std::vector<Row>& rows, const char* id) {
  Json json = Json::array();
  for (const Row& row : rows) {
    json.push_back({{id, row.id},
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

int Run(const WatchArguments& arguments) {
  const auto file = OpenOnMount(arguments.path);
  if (!file.has_value()) return Fail(file.error());
  struct stat status {};
  if (fstat(file->get(), &status) != 0) return Fail(SystemError(arguments.path, "cannot look at it"));
  Names names(status.st_dev);
  const auto look = [&] { return AskMount<weightfs_top>(arguments, file->get(), WEIGHTFS_IOC_TOP); };
  auto before = look();
  if (!before.has_value()) return Fail(before.error());
  return Watch(arguments, [&]() -> Result<std::string> {
    ASSIGN_OR_RETURN(const weightfs_top now, look());
    const bool again = now.watched_ns < before->watched_ns;  // the counts began anew: nobody looked for too long
    const double seconds = static_cast<double>(now.watched_ns - (again ? 0 : before->watched_ns)) / 1e9;
    const weightfs_top from = again ? weightfs_top{} : *before;
    *before = now;
    auto processes = RowsOf({from.process, from.processes}, {now.process, now.processes}, seconds);
    auto files = RowsOf({from.file, from.files}, {now.file, now.files}, seconds);
    for (Row& row : processes) {
      row.name = names.OfProcess(row.id);
      names.LookAtFiles(row.id);
    }
    for (Row& row : files) row.name = names.OfFile(row.id);
    if (arguments.json) {
      const Json json = {
          {"interval_s", seconds}, {"processes", JsonOf(processes, "pid")}, {"files", JsonOf(files, "inode")}};
      return json.dump() + "\n";
    }
    return Paint(Tone::kBold, arguments.path) + fmt::format("  in the last {:.1f} s\n\n", seconds) +
           TableOf("process", processes, true) + "\n" + TableOf("file", files, false);
  });
}

}  // namespace

void AddTop(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("top", "Show the processes and files that use a mount");
  auto arguments = AddWatchArguments(*command, 5);  // the mount stops counting after ten
  command->footer(
      "For root and the user who runs the mount. Data of leases counts when a lease for reading begins and when a\n"
      "written one is committed; save_many and load_many count for their directory. Files are named by the "
      "descriptors\n"
      "of their processes; a file that was closed before anybody looked is shown by its inode.\n\n"
      "Examples:\n"
      "  weightfs top /mnt/tensors\n"
      "  weightfs top /mnt/tensors --count 1 --json");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

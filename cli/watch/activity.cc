// SPDX-License-Identifier: Apache-2.0
// weightfs stats --by: the processes and files that use a mount.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/watch/watch.h"
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
    if (entry.requests == 0) continue;
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
  std::ranges::sort(rows, [](const Row& a, const Row& b) {
    return std::pair(a.bytes(), a.requests) > std::pair(b.bytes(), b.requests);
  });
  return rows;
}

// A name that is too long loses its beginning, because the ends of paths tell files apart.
std::string Shortened(const std::string& name, size_t columns) {
  if (TextWidth(name) <= columns) return name;
  size_t begin = name.size();
  for (size_t kept = 1; kept < columns; ++kept) {
    do --begin;
    while ((static_cast<unsigned char>(name[begin]) & 0xC0) == 0x80);
  }
  return "…" + name.substr(begin);
}

// What --by asks for.
struct Kinds {
  explicit Kinds(const std::string& by)
      : processes(by.find("process") != std::string::npos), files(by.find("file") != std::string::npos) {}
  bool processes, files;
};

std::vector<std::string> CellsOf(const Row& row, bool process) {
  const bool numbered = process && row.id != 0 && row.id != WEIGHTFS_TOP_OTHERS;
  return {row.name,
          numbered ? fmt::format("{}", row.id) : "",
          RateText(row.read),
          RateText(row.written),
          RateText(row.leased_read),
          RateText(row.leased_written),
          CountText(row.requests),
          row.busy < 0.005 ? "-" : fmt::format("{:.2f}", row.busy)};
}

// One table, so that the columns of processes and files are aligned. Empty columns are left out.
std::string TablesOf(const Kinds& kinds, std::span<const Row> processes, std::span<const Row> files, size_t columns) {
  using Cells = std::vector<std::string>;
  constexpr size_t kLeastName = 16;
  Cells titles = {"process", "PID", "read", "written", "leased rd", "leased wr", "req/s", "busy"};
  if (!kinds.processes) titles[0] = "file";
  size_t middle = std::string::npos;  // the line of the titles of the files
  std::vector<Cells> lines;
  for (const Row& row : processes) lines.push_back(CellsOf(row, /*process=*/true));
  if (kinds.processes && kinds.files) {
    lines.emplace_back(titles.size());
    middle = lines.size();
    lines.push_back(titles);
    lines.back()[0] = "file";
    lines.back()[1].clear();
  }
  for (const Row& row : files) lines.push_back(CellsOf(row, /*process=*/false));
  std::vector<size_t> shown = {0};
  size_t others = 0;  // the width of the other columns
  for (size_t column = 1; column < titles.size(); ++column) {
    size_t width = 0;
    for (size_t line = 0; line < lines.size(); ++line) {
      if (line != middle && lines[line][column] != "-") width = std::max(width, TextWidth(lines[line][column]));
    }
    if (width == 0) continue;
    shown.push_back(column);
    others += 2 + std::max(width, titles[column].size());
  }
  const size_t most = columns == 0 ? std::string::npos : std::max(kLeastName, columns - std::min(columns, others));
  std::vector<Table::Column> heads;
  for (const size_t column : shown) heads.push_back({titles[column], column != 0});
  Table table(std::move(heads));
  for (size_t line = 0; line < lines.size(); ++line) {
    Cells cells;
    for (const size_t column : shown) {
      const std::string& cell = lines[line][column];
      cells.push_back(column == 0 ? Shortened(cell, most) : cell);
      if (line == middle) cells.back() = Paint(Tone::kBold, cells.back());
    }
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

// Of one program. The mount does not count its requests. But the kernel closes its descriptors, soon after each look:
// `closes_` are those that were not counted yet.
class Looker {
 public:
  explicit Looker(const WatchArguments& arguments) : arguments_(arguments) {}

  Result<Look> Ask() {
    ASSIGN_OR_RETURN(const UniqueFd file, OpenOnMount(arguments_.path));
    struct stat status {};
    if (fstat(file.get(), &status) != 0) return SystemError(arguments_.path, "cannot be examined");
    Look look{.device = status.st_dev};
    look.top.version = WEIGHTFS_IOC_VERSION;
    look.top.since = since_;
    RETURN_IF_ERROR(AskMount(arguments_, file.get(), WEIGHTFS_IOC_TOP, &look.top));
    since_ = look.top.next;
    uint64_t dropped = 0;
    const auto drop_closes = [&](std::span<weightfs_top_entry> entries, uint64_t id) {
      for (weightfs_top_entry& entry : entries) {
        if (entry.id == id) entry.requests -= dropped = std::min<uint64_t>(entry.requests, closes_);
      }
    };
    drop_closes({look.top.process, look.top.processes}, 0);
    drop_closes({look.top.file, look.top.files}, status.st_ino);
    closes_ += 1 - dropped;
    return look;
  }

 private:
  const WatchArguments& arguments_;
  uint64_t since_ = 0, closes_ = 0;
};

std::string ScreenText(const WatchArguments& arguments, double seconds, const std::vector<Row>& processes,
                       const std::vector<Row>& files, const WatchView& view) {
  constexpr size_t kMost = 15, kOtherLines = 5;
  // The tables share the rows of a small terminal.
  const size_t free = view.rows > kOtherLines ? view.rows - kOtherLines : 2;
  const size_t most_processes =
      view.rows == 0 ? kMost : std::min(kMost, std::max(free / 2, free - std::min(free, files.size())));
  const size_t most_files =
      view.rows == 0 ? kMost : std::min(kMost, free - std::min({free, processes.size(), most_processes}));
  const auto first = [](const std::vector<Row>& rows, size_t most) {
    return std::span(rows).first(std::min(rows.size(), most));
  };
  return Heading(Printable(arguments.path), seconds) +
         TablesOf(Kinds(arguments.by), first(processes, most_processes), first(files, most_files),
                  view.columns) +
         (view.redrawn ? "" : "\n");
}

}  // namespace

Result<int> WatchActivity(const WatchArguments& arguments) {
  const Kinds kinds(arguments.by);
  Looker looker(arguments);
  RETURN_IF_ERROR(looker.Ask());
  const auto mount = FindMountAbove(arguments.path);
  FileNames names;
  constexpr uint64_t kRootInode = 1;
  if (mount.has_value() && mount->root == "/") names.Add(kRootInode, mount->directory);
  const std::string below = mount.has_value() ? Printable(mount->directory) + "/" : "";
  return Watch(arguments, [&](const WatchView& view) -> Result<std::string> {
    ASSIGN_OR_RETURN(const Look look, looker.Ask());
    const weightfs_top& top = look.top;
    const double seconds = std::max(1e-9, static_cast<double>(top.watched_ns) / 1e9);
    auto processes = RowsOf({top.process, top.processes}, seconds);
    auto files = RowsOf({top.file, top.files}, seconds);
    for (const Row& row : processes) names.LookAt(look.device, row.id);
    for (Row& row : files) {
      row.name = names.Of(row.id);
      if (!arguments.json && !below.empty() && row.name.starts_with(below)) row.name.erase(0, below.size());
    }
    if (!kinds.processes) processes.clear();
    if (!kinds.files) files.clear();
    if (!arguments.json) return ScreenText(arguments, seconds, processes, files, view);
    Json json = {{"time", NowSeconds()}, {"interval_s", seconds}};
    if (kinds.processes) json["processes"] = JsonOf(processes, "pid");
    if (kinds.files) json["files"] = JsonOf(files, "inode");
    return json.dump() + "\n";
  });
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs scrub and weightfs verify: read the files of a mount, and report blocks whose checksums differ.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/data_reader.h"
#include "cli/interrupt.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/watch.h"
#include "common/json.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

namespace fs = std::filesystem;

// How often an interrupted scrub may have to repeat work: the state is written after this many bytes.
constexpr uint64_t kStateInterval = 256 * kMiB;

struct Arguments {
  std::string directory;           // of scrub: of a mount, or a store
  std::vector<std::string> paths;  // of verify
  std::string rate = "200M", state;
  bool json = false;
};

struct Report {
  uint64_t files = 0, bytes = 0;
  std::vector<DamagedFile> damaged;
  std::vector<std::string> failures;  // files that could not be checked, with the reason
  bool interrupted = false;

  int ExitCode() const {
    return (damaged.empty() ? kSuccess : kFsckUncorrected) | (failures.empty() ? 0 : kFsckOperationalError) |
           (interrupted ? kFsckCancelled : 0);
  }
};

// Where an interrupted scrub goes on: a file with the last path that was read completely, relative to the directory.
class ScrubState {
 public:
  ScrubState(std::string file, std::string directory) : file_(std::move(file)), directory_(std::move(directory)) {}

  // Returns the path to continue after; empty: from the beginning. A state of another directory is an error.
  Result<fs::path> Read() const {
    if (file_.empty() || !fs::exists(file_)) return fs::path();
    std::ifstream stream(file_);
    std::string text(JsonLimits().bytes + 1, '\0');
    text.resize(static_cast<size_t>(stream.read(text.data(), static_cast<std::streamsize>(text.size())).gcount()));
    const auto json = ParseJson(text);
    const auto value_of = [&](const char* name) {
      return json && json->is_object() ? json->value(name, nlohmann::json()) : nlohmann::json();
    };
    const auto after = value_of("after");
    if (value_of("directory") != directory_ || !after.is_string()) {
      return Error{
          ErrorCode::kInvalid,
          fmt::format("{}: not the state of a scrub of {}; delete it, or name another file", file_, directory_)};
    }
    return fs::path(after.get<std::string>());
  }
  Result<void> Write(const fs::path& after) const {
    if (file_.empty()) return {};
    const std::string temporary = file_ + ".new";
    std::ofstream stream(temporary, std::ios::trunc);
    stream << JsonText({{"directory", directory_}, {"after", after.string()}}) << std::flush;
    if (!stream || rename(temporary.c_str(), file_.c_str()) != 0) return SystemError(file_, "cannot be written");
    return {};
  }
  // A state that stays would make the next scrub begin at the end.
  Result<void> Remove() const {
    if (file_.empty() || unlink(file_.c_str()) == 0 || errno == ENOENT) return {};
    return SystemError(file_, "cannot be removed");
  }

 private:
  const std::string file_, directory_;
};

// Reads files and collects what it finds.
class Scrubber {
 public:
  Scrubber(const char* title, uint64_t total, ByteCount rate)
      : bar_(title), total_(total), cancel_(CatchInterrupts()), reader_(rate, [this](ByteCount size) {
          report_.bytes += size.value;
          bar_.Update({.step = "reading data", .done = report_.bytes, .total = std::max(total_, report_.bytes)});
          return !cancel_.load();
        }) {}

  // Returns false once the scrub is interrupted.
  bool Read(const std::string& path) {
    DamagedFile damaged;
    const auto read = reader_.ReadFile(path, &damaged);
    if (damaged.blocks > 0) report_.damaged.push_back(std::move(damaged));
    if (read.has_value()) {
      ++report_.files;
    } else if (read.error().code == ErrorCode::kShutdown) {
      report_.interrupted = true;
    } else if (read.error().code != ErrorCode::kNotFound) {  // deleted meanwhile
      report_.failures.push_back(ToString(read.error()));
    }
    return !report_.interrupted;
  }

  // Reads everything below `root` in the order of names, from behind `after` on. Returns false once interrupted.
  void StartAfter(const fs::path& after) { last_ = after; }
  Result<bool> ReadTree(const fs::path& root, const fs::path& below, const fs::path& after, const ScrubState& state) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(root / below, error), end; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      report_.failures.push_back(fmt::format("{}: {}", (root / below).string(), error.message()));
    }
    std::sort(names.begin(), names.end());
    const std::string first = after.empty() ? std::string() : after.begin()->string();
    for (const std::string& name : names) {
      if (name < first) continue;
      const fs::path path = below / name;
      struct stat status = {};
      if (lstat((root / path).c_str(), &status) != 0 || status.st_dev != DeviceOf(root)) continue;
      if (S_ISDIR(status.st_mode)) {
        const fs::path rest = name == first ? after.lexically_relative(name) : fs::path();
        ASSIGN_OR_RETURN(const bool more, ReadTree(root, path, rest == "." ? fs::path() : rest, state));
        if (!more) return false;
        continue;
      }
      if (!S_ISREG(status.st_mode) || (name == first && after == fs::path(name))) continue;
      if (status.st_nlink > 1 && !linked_.insert(status.st_ino).second) continue;
      if (!Read((root / path).string())) {
        RETURN_IF_ERROR(state.Write(last_));
        return false;
      }
      last_ = path;
      if (report_.bytes - saved_ < kStateInterval) continue;
      saved_ = report_.bytes;
      RETURN_IF_ERROR(state.Write(path));
    }
    return true;
  }

  Report& report() { return report_; }

 private:
  dev_t DeviceOf(const fs::path& root) {
    struct stat status = {};
    if (device_ == 0 && lstat(root.c_str(), &status) == 0) device_ = status.st_dev;
    return device_;
  }

  ProgressBar bar_;
  const uint64_t total_;
  const std::atomic<bool>& cancel_;
  DataReader reader_;
  Report report_;
  std::set<ino_t> linked_;  // files with several names that were read
  dev_t device_ = 0;
  fs::path last_;  // the last file that was read completely
  uint64_t saved_ = 0;
};

int Show(const Arguments& arguments, const Report& report) {
  if (arguments.json) {
    nlohmann::ordered_json json = {{"files", report.files},
                                   {"bytes", report.bytes},
                                   {"interrupted", report.interrupted},
                                   {"damaged", nlohmann::ordered_json::array()},
                                   {"failures", report.failures}};
    for (const DamagedFile& file : report.damaged) {
      json["damaged"].push_back({{"path", file.path}, {"blocks", file.blocks}, {"offsets", file.offsets}});
    }
    Print(stdout, JsonText(json) + "\n");
    return report.ExitCode();
  }
  for (const DamagedFile& file : report.damaged) {
    Print(stdout, Paint(Tone::kWarning, fmt::format("{}: {} damaged blocks, the first at byte {}", Printable(file.path),
                                                    file.blocks, file.offsets.front())) +
                      "\n");
  }
  for (const std::string& failure : report.failures) Print(stdout, Printable(failure) + "\n");
  Print(stdout, fmt::format("{} files, {} read: {}{}\n", report.files, FormatSize(ByteCount{report.bytes}),
                            report.damaged.empty() ? Paint(Tone::kGood, "no damage")
                                                   : fmt::format("{} files are damaged: restore them from a backup",
                                                                 report.damaged.size()),
                            report.interrupted ? "; interrupted" : ""));
  return report.ExitCode();
}

Result<Report> Scrub(const Arguments& arguments) {
  std::string directory = ResolvePath(arguments.directory);
  if (HoldsStore(directory)) {
    const auto mount = FindMountOfStore(directory, ReadStoreHolder(directory));
    if (!mount.has_value()) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: not mounted here; 'weightfs fsck --data' checks a store that is "
                               "not mounted",
                               directory)};
    }
    directory = mount->directory;
  }
  RETURN_IF_ERROR(OpenOnMount(directory));
  const ScrubState state(arguments.state, directory);
  ASSIGN_OR_RETURN(const fs::path after, state.Read());
  struct statvfs space = {};
  if (statvfs(directory.c_str(), &space) != 0) return SystemError(directory, "cannot be accessed");
  Scrubber scrubber("scrub", uint64_t{space.f_blocks - space.f_bfree} * space.f_frsize, *ParseSize(arguments.rate));
  scrubber.StartAfter(after);
  ASSIGN_OR_RETURN(const bool whole, scrubber.ReadTree(directory, {}, after, state));
  if (whole) RETURN_IF_ERROR(state.Remove());
  return std::move(scrubber.report());
}

Result<Report> Verify(const Arguments& arguments) {
  uint64_t total = 0;
  for (const std::string& path : arguments.paths) {
    RETURN_IF_ERROR(OpenOnMount(path));
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0) total += static_cast<uint64_t>(status.st_size);
  }
  Scrubber scrubber("verify", total, ByteCount{0});
  for (const std::string& path : arguments.paths) {
    if (!scrubber.Read(ResolvePath(path))) break;
  }
  return std::move(scrubber.report());
}

int Finish(const Arguments& arguments, const Result<Report>& report) {
  return report.has_value() ? Show(arguments, *report) : Fail(report.error(), kFsckOperationalError);
}

constexpr const char* kExitCodes =
    "Exit codes, added together: 0 no damage, 4 damage was found, 8 something could not be checked, 32 "
    "interrupted.\n\n";

}  // namespace

Command ScrubCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("scrub", "Read all data of a mount and verify its checksums, beside other work");
  command.Add("DIR", &arguments->directory, "Directory of a mount, or a mounted store");
  command
      .AddSize("--rate SIZE", &arguments->rate, "Bytes per second: a number with K, M, G or T; 0: no limit", "200M")
      .fallback = arguments->rate;
  command.Add("--state FILE", &arguments->state, "File with the position of an interrupted scrub, to continue there",
              "/var/tmp/tensors.scrub");
  command.Add("--json", &arguments->json, "Print the report as JSON");
  command.footer = std::string(kExitCodes) +
                   "Examples:\n"
                   "  weightfs scrub /mnt/tensors\n"
                   "  weightfs scrub /mnt/tensors --rate 1G --state /var/tmp/tensors.scrub";
  command.run = [arguments] { return Finish(*arguments, Scrub(*arguments)); };
  return command;
}

Command VerifyCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("verify", "Read files of a mount and verify their checksums");
  command.Add("FILE", &arguments->paths, "Files to read");
  command.Add("--json", &arguments->json, "Print the report as JSON");
  command.footer = std::string(kExitCodes) +
                   "Examples:\n"
                   "  weightfs verify /mnt/tensors/model.safetensors";
  command.run = [arguments] { return Finish(*arguments, Verify(*arguments)); };
  return command;
}

}  // namespace weightfs::cli

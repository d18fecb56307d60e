// weightfs bench: how fast a mount is, beside the raw disk and the host's filesystem.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/suite/outcome_json.h"
#include "bench/suite/suite.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

using bench::Check;
using bench::Outcome;
using bench::RowOutcome;
using bench::Unit;
using bench::Way;

constexpr unsigned kFewestRounds = 5;
constexpr double kNoisy = 0.20;
constexpr unsigned kManyFiles = 1'000'000, kFewFiles = 4000;

struct Arguments {
  bench::SuiteOptions suite;
  std::string size, large_size, json, report;
  bool list = false;
};

// "3.71", "26.1k": three digits.
std::string Rate(Unit unit, double rate) {
  if (unit == Unit::kBytes) return fmt::format("{:.2f}", rate / 1e9);
  if (rate >= 1e6) return fmt::format("{:.2f}M", rate / 1e6);
  return rate >= 1000 ? fmt::format("{:.1f}k", rate / 1000) : fmt::format("{:.0f}", rate);
}

std::string RateCell(const RowOutcome& row, Way way, bool range) {
  const bench::Spread rate = row.Rate(way);
  if (rate.median <= 0) return "-";
  const Unit unit = row.spec->unit;
  if (!range) return Rate(unit, rate.median);
  return fmt::format("{} ({}–{})", Rate(unit, rate.median), Rate(unit, rate.min), Rate(unit, rate.max));
}

std::string CheckText(const Check& check) {
  const std::string value = fmt::format("{:.2f}", check.value);
  if (check.target <= 0) return value;
  const bool ok = check.state() == Check::State::kOk;
  const char* bound = check.at_most ? "≤" : "≥";
  const std::string target = fmt::format("{} {} {:.2f}", ok ? "ok" : "short", bound, check.target);
  return fmt::format("{} {}", value, Paint(ok ? Tone::kGood : Tone::kWarning, target));
}

std::string CheckCell(const RowOutcome& row, std::string_view against) {
  for (const Check& check : row.checks) {
    if (check.against == against) return CheckText(check);
  }
  return "-";
}

void PrintRows(const Outcome& outcome, Unit unit) {
  Table table({{fmt::format("{}", bench::NameOf(unit))},
               {"weightfs"},
               {"reference"},
               {"host"},
               {"fio"},
               {"to reference"},
               {"to host"},
               {unit == Unit::kFiles ? "" : "CPU s/GB", true}});
  for (const RowOutcome& row : outcome.rows) {
    if (row.spec->unit != unit || row.samples.empty()) continue;
    const double cost = row.CpuPerGb(Way::kWeightfs);
    table.Add({std::string(row.spec->id), RateCell(row, Way::kWeightfs, true), RateCell(row, Way::kReference, true),
               RateCell(row, Way::kHost, true), RateCell(row, Way::kFio, false), CheckCell(row, "reference"),
               CheckCell(row, "host"), cost > 0 && unit != Unit::kFiles ? fmt::format("{:.2f}", cost) : ""});
  }
  if (!table.empty()) fmt::print("{}\n", table.ToString());
}

// What has no column of its own.
void PrintBeside(const Outcome& outcome) {
  for (const RowOutcome& row : outcome.rows) {
    for (const Check& check : row.checks) {
      if (check.against == "reference" || check.against == "host") continue;
      fmt::print("{}: to {} {}\n", row.spec->id, check.against, CheckText(check));
    }
    for (const auto& note : row.notes) fmt::print("{}: {}\n", row.spec->id, note);
    for (const auto& [way, why] : row.not_measured) {
      fmt::print("{} {}\n",
                 Paint(Tone::kWarning, fmt::format("{}, {}: not measured:", row.spec->id, bench::NameOf(way))), why);
    }
  }
}

void PrintCurve(const bench::Curve& curve) {
  std::vector<Table::Column> columns = {{curve.x_title, true}};
  for (const auto& [name, value] : curve.points.front().values) columns.push_back({name, true});
  Table table(std::move(columns));
  for (const auto& point : curve.points) {
    std::vector<std::string> cells = {fmt::format("{:g}", point.x)};
    for (const auto& [name, value] : point.values) cells.push_back(fmt::format("{:.{}f}", value, value < 100 ? 2 : 0));
    table.Add(std::move(cells));
  }
  fmt::print("{}, {}\n{}", Paint(Tone::kBold, curve.title), curve.unit, table.ToString());
  for (const Check& check : curve.checks) fmt::print("{} {}\n", check.against, CheckText(check));
  fmt::print("{}\n\n", curve.limit);
}

void PrintNoise(const Outcome& outcome) {
  const auto& noise = outcome.noise;
  const bool referred = noise.read_reference.median + noise.write_reference.median > 0;
  fmt::print("noise: {}; load average {:.1f}; {:.1f} % of the processors' time was stolen\n",
             referred ? fmt::format("the references varied by {:.0f} % over {} rounds", noise.widest * 100, outcome.rounds)
                      : "these rows have no reference to tell it by",
             noise.load_average, noise.steal * 100);
  if (noise.widest > kNoisy) {
    fmt::print("{}\n", Paint(Tone::kWarning,
                             "the run was noisy: read these figures with their ranges, or repeat it on a "
                             "quieter machine"));
  }
}

void Print(const Outcome& outcome) {
  for (const auto& [name, value] : outcome.facts) fmt::print("{:<18} {}\n", name, value);
  fmt::print("\nGB/s is 10^9 bytes a second; medians of {} rounds (least–most).\n\n", outcome.rounds);
  for (const Unit unit : {Unit::kBytes, Unit::kReads, Unit::kFiles}) PrintRows(outcome, unit);
  for (const bench::Curve& curve : outcome.curves) PrintCurve(curve);
  PrintBeside(outcome);
  const auto& memory = outcome.memory;
  if (memory.limit > 0) {
    const Check check{"", static_cast<double>(memory.peak) / kMiB, static_cast<double>(memory.limit) / kMiB, true};
    fmt::print("the daemon's memory, MiB: at most {}\n", CheckText(check));
  }
  fmt::print("the daemon's processor time while idle: {:.1f} ms a second\n", outcome.idle_cpu * 1000);
  PrintNoise(outcome);
}

void PrintList() {
  Table table({{"row"}, {"group"}, {"to reference"}, {"to host"}, {"what"}});
  for (const auto& row : bench::Rows()) {
    table.Add({std::string(row.id), std::string(row.group), bench::ReferenceTargetText(row), bench::HostTargetText(row),
               std::string(row.title)});
  }
  fmt::print("{}", table.ToString());
}

// The mount that the directory lies on, if it is one of ours: the longest that leads to it.
std::string StoreAbove(const std::string& directory) {
  const auto mounts = WeightfsMounts();
  if (!mounts.has_value()) return {};
  const MountEntry* best = nullptr;
  for (const MountEntry& mount : *mounts) {
    const bool inside = directory == mount.directory || directory.starts_with(mount.directory + "/");
    if (inside && (best == nullptr || mount.directory.size() >= best->directory.size())) best = &mount;
  }
  return best == nullptr ? std::string() : best->store;
}

Result<void> Complete(Arguments* arguments) {
  bench::SuiteOptions& suite = arguments->suite;
  const auto refuse = [](std::string line) { return Error{ErrorCode::kInvalid, std::move(line)}; };
  if (suite.directory.empty()) return refuse("where shall it measure? Give a directory in a mount, or any other");
  if (!std::filesystem::is_directory(suite.directory))
    return refuse(fmt::format("{}: no such directory", suite.directory));
  if (suite.quick && suite.rounds == 0) suite.rounds = 1;
  if (suite.rounds == 0) suite.rounds = kFewestRounds;
  if (!suite.quick && suite.rounds < kFewestRounds) {
    return refuse(fmt::format("--rounds {}: a median needs {} at least; --quick allows fewer, for a look", suite.rounds,
                              kFewestRounds));
  }
  if (!arguments->size.empty()) {
    ASSIGN_OR_RETURN(const ByteCount size, ParseSize(arguments->size));
    suite.size = size.value;
  }
  if (!arguments->large_size.empty()) {
    ASSIGN_OR_RETURN(const ByteCount size, ParseSize(arguments->large_size));
    suite.large_size = size.value;
  }
  if (suite.many_files == 0 && suite.scaling) suite.many_files = suite.quick ? kFewFiles : kManyFiles;
  for (const auto& pattern : suite.only) {
    const auto rows = bench::Rows();
    const auto curves = bench::CurveNames();
    const bool curve = suite.scaling && std::find(curves.begin(), curves.end(), pattern) != curves.end();
    if (!curve &&
        std::none_of(rows.begin(), rows.end(), [&](const auto& row) { return bench::IsSelected(row, {pattern}); })) {
      return refuse(fmt::format("--only {}: no such row or group; --list shows them", pattern));
    }
  }
  suite.directory = ResolvePath(suite.directory);
  suite.store = StoreAbove(suite.directory);
  if (!suite.store.empty() && !suite.mount_options.empty()) {
    return refuse(
        fmt::format("-o is for a mount that the benchmark makes; {} lies in one that is there", suite.directory));
  }
  if (suite.drop_caches && access("/proc/sys/vm/drop_caches", W_OK) != 0) {
    return refuse("--drop-caches: only root may drop the machine's caches; without it those of our own files are");
  }
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) {
    return Error{ErrorCode::kIo, fmt::format("/proc/self/exe: {}", std::strerror(errno))};
  }
  suite.program = program;
  return {};
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<void> WriteText(const std::string& path, const std::string& text) {
  if (path == "-") {
    fmt::print("{}\n", text);
    return {};
  }
  std::ofstream file(path, std::ios::trunc);
  file << text << '\n';
  file.close();
  if (file.fail()) return Error{ErrorCode::kIo, fmt::format("{}: cannot be written: {}", path, std::strerror(errno))};
  return {};
}

int List(const Arguments& arguments) {
  if (arguments.json != "-") PrintList();
  if (arguments.json.empty()) return kSuccess;
  const auto written = WriteText(arguments.json, Dump(bench::ListAsJson()));
  return written.has_value() ? kSuccess : Fail(written.error());
}

int Run(Arguments& arguments) {
  if (arguments.list) return List(arguments);
  if (const auto complete = Complete(&arguments); !complete.has_value()) return Fail(complete.error(), kUsage);
  arguments.suite.cancel = &CatchInterrupts();
  Result<Outcome> outcome = ErrorCode::kInvalid;
  {
    ProgressBar bar("Measuring");
    arguments.suite.progress = [&bar](std::string_view step, uint64_t done, uint64_t total) {
      bar.UpdateCount(step, done, total);
    };
    outcome = bench::RunSuite(arguments.suite);
  }
  if (!outcome.has_value()) return Fail(outcome.error());
  if (arguments.json != "-") Print(*outcome);
  if (!arguments.json.empty()) {
    const auto written = WriteText(arguments.json, Dump(bench::ToJson(*outcome)));
    if (!written.has_value()) return Fail(written.error());
  }
  if (!arguments.report.empty()) {
    const auto written = WriteText(arguments.report, bench::ToHtml(*outcome));
    if (!written.has_value()) return Fail(written.error());
  }
  return kSuccess;
}

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("bench", "Measure a mount beside the raw disk and the host's filesystem");
  auto arguments = std::make_shared<Arguments>();
  auto& suite = arguments->suite;
  command
      ->add_option(
          "DIR", suite.directory,
          "A directory in a mount: that mount is measured. Any other: a store is made in it, measured and removed")
      ->type_name("");
  command->add_option("--size", arguments->size, "Size of the big file; chosen by the space and the memory otherwise")
      ->type_name("SIZE");
  command->add_option("--rounds", suite.rounds, "Rounds that count, after one to warm up (5)")->type_name("N");
  command->add_flag("--quick", suite.quick, "Little data and one round: to see that it works, not how fast");
  command->add_option("--only", suite.only, "Only these rows or groups: names or shell patterns, with commas between")
      ->type_name("ROW,...")
      ->delimiter(',');
  command->add_flag("--list", arguments->list, "List the rows and what they should reach, and measure nothing");
  command->add_option("--json", arguments->json, "Write every sample as JSON to a file; to standard output without one")
      ->type_name("FILE")
      ->expected(0, 1)
      ->default_str("-");
  command->add_option("--report", arguments->report, "Write a page with plots, one file with all in it")
      ->type_name("FILE.html");
  command->add_flag("--scaling", suite.scaling,
                    "Measure how cost grows as well: streams, a large file, an ageing store, many files; long");
  command->add_option("--large-size", arguments->large_size, "Of the scaling's large file; left out without it")
      ->type_name("SIZE");
  command->add_option("--files", suite.many_files, "Of the scaling's many files (1000000)")->type_name("N");
  command->add_option("-o", suite.mount_options, "Mount options of the store that is made")->type_name("OPTIONS");
  command->add_option("--host", suite.host, "Where the host's files go, when not next to the store")->type_name("DIR");
  command
      ->add_option("--python", suite.python,
                   "The Python of the torch, safetensors and numpy rows; that of $VIRTUAL_ENV, "
                   "of .venv, or python3 otherwise")
      ->type_name("PATH");
  command->add_option("--seed", suite.seed, "Of the order and the random places; printed by every run")->type_name("N");
  command->add_flag(
      "--drop-caches", suite.drop_caches,
      "Drop the whole machine's caches before every cold read, as root; without it those of our own files");
  command->footer(
      "The reference is libaio with O_DIRECT, 32 requests of 1 MiB in flight, into huge pages, on the host's "
      "filesystem. A\n"
      "ratio that falls short is shown, and is no failure.\n\n"
      "Examples:\n"
      "  weightfs bench /mnt/tensors --json bench.json --report bench.html\n"
      "  weightfs bench /var/tmp --only 'read*,write-1m'\n"
      "  weightfs bench /dev/shm --size 1G");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

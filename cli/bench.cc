// SPDX-License-Identifier: Apache-2.0
// weightfs bench: how fast a mount is, beside the raw disk and the host's filesystem.
#include <fmt/format.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/suite/rows.h"
#include "bench/suite/suite.h"
#include "bench/suite/worker.h"
#include "cli/bench_arguments.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/usage.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNoisy = 0.20;
constexpr const char *kBytes = "GB/s", *kFiles = "files/s";

// "3.71", "26.1k": three digits.
std::string Rate(const std::string& unit, double rate) {
  if (unit == kBytes) return fmt::format("{:.2f}", rate / 1e9);
  if (rate >= 1e6) return fmt::format("{:.2f}M", rate / 1e6);
  return rate >= 1000 ? fmt::format("{:.1f}k", rate / 1000) : fmt::format("{:.0f}", rate);
}

std::string RateCell(const Json& row, const char* way, bool range) {
  if (!row["ways"].contains(way)) return "-";
  const Json& rate = row["ways"][way];
  const std::string unit = row["unit"], median = Rate(unit, rate["median"]);
  if (!range || rate["samples"].size() < 2) return median;
  return fmt::format("{} ({}–{})", median, Rate(unit, rate["min"]), Rate(unit, rate["max"]));
}

std::string CheckText(const Json& check) {
  const std::string value = fmt::format("{:.2f}", check["value"].get<double>());
  const bool at_most = check.contains("at_most");
  if (!at_most && !check.contains("at_least")) return value;
  const bool ok = check["state"] == "ok";
  const double bound = check[at_most ? "at_most" : "at_least"];
  const std::string target = fmt::format("{} {} {:.2f}",
                                         ok        ? "ok"
                                         : at_most ? "over"
                                                   : "short",
                                         at_most ? "≤" : "≥", bound);
  return fmt::format("{} {}", value, Paint(ok ? Tone::kGood : Tone::kWarning, target));
}

std::string CheckCell(const Json& row, const char* against) {
  for (const Json& check : row["checks"]) {
    if (check["against"] == against) return CheckText(check);
  }
  return "-";
}

void PrintRows(const Json& outcome, const std::string& unit) {
  Table table({{unit},
               {"weightfs"},
               {"reference"},
               {"host"},
               {"fio"},
               {"to reference"},
               {"to host"},
               {unit == kFiles ? "" : "CPU s/GB", true}});
  for (const Json& row : outcome["rows"]) {
    if (row["unit"] != unit || row["ways"].empty()) continue;
    const double cost = row["ways"].value("weightfs", Json::object()).value("cpu_seconds_per_gb", 0.0);
    table.Add({row["id"], RateCell(row, "weightfs", true), RateCell(row, "reference", true),
               RateCell(row, "host", true), RateCell(row, "fio", false), CheckCell(row, "reference"),
               CheckCell(row, "host"), cost > 0 && unit != kFiles ? fmt::format("{:.2f}", cost) : ""});
  }
  if (!table.empty()) Print(stdout, table.ToString() + "\n");
}

// What has no column of its own.
void PrintBeside(const Json& outcome) {
  for (const Json& row : outcome["rows"]) {
    const std::string id = row["id"];
    for (const Json& check : row["checks"]) {
      const std::string against = check["against"];
      if (against != "reference" && against != "host")
        Print(stdout, fmt::format("{}: to {} {}\n", id, against, CheckText(check)));
    }
    for (const std::string note : row["notes"]) Print(stdout, fmt::format("{}: {}\n", id, note));
    for (const auto& [way, why] : row["not_measured"].items()) {
      Print(stdout, fmt::format("{} {}\n", Paint(Tone::kWarning, fmt::format("{}, {}: not measured:", id, way)),
                                why.get<std::string>()));
    }
  }
}

void PrintCurve(const Json& curve) {
  std::vector<Table::Column> columns = {{curve["x_title"], true}};
  for (const auto& [name, value] : curve["points"][0]["values"].items()) columns.push_back({name, true});
  Table table(std::move(columns));
  for (const Json& point : curve["points"]) {
    std::vector<std::string> cells = {fmt::format("{:g}", point["x"].get<double>())};
    for (const double value : point["values"]) cells.push_back(fmt::format("{:.{}f}", value, value < 100 ? 2 : 0));
    table.Add(std::move(cells));
  }
  Print(stdout, fmt::format("{}, {}\n{}", Paint(Tone::kBold, curve["title"].get<std::string>()),
                            curve["unit"].get<std::string>(), table.ToString()));
  for (const Json& check : curve["checks"]) {
    Print(stdout, fmt::format("{} {}\n", check["against"].get<std::string>(), CheckText(check)));
  }
  Print(stdout, fmt::format("{}\n\n", curve["limit"].get<std::string>()));
}

void PrintNoise(const Json& outcome) {
  const Json& noise = outcome["noise"];
  const double widest = noise["widest"], steal = noise["steal"], read = noise["read_reference"]["median"],
               write = noise["write_reference"]["median"];
  const auto rounds = outcome["rounds"].get<unsigned>();
  const std::string variation =
      read + write <= 0 ? "these rows have no reference"
      : rounds == 1     ? "unknown after one round"
                        : fmt::format("the references varied by {:.0f} % over {} rounds", widest * 100, rounds);
  Print(stdout, fmt::format("noise: {}; load average {:.1f}; {:.1f} % of the processors' time was stolen\n", variation,
                            noise["load_average"].get<double>(), steal * 100));
  if (widest > kNoisy) {
    Print(stdout, Paint(Tone::kWarning,
                        "the run was noisy: note the ranges of these figures, or repeat it on an "
                        "idle machine") +
                      "\n");
  }
}

void PrintOutcome(const Json& outcome) {
  for (const auto& [name, value] : outcome["facts"].items())
    Print(stdout, fmt::format("{:<18} {}\n", name, value.get<std::string>()));
  const auto rounds = outcome["rounds"].get<unsigned>();
  Print(stdout, fmt::format("\nGB/s is 10^9 bytes per second; {}.\n\n",
                            rounds > 1 ? fmt::format("medians of {} rounds (minimum–maximum)", rounds)
                                       : "one round, which only shows that the benchmark works"));
  for (const char* unit : {kBytes, "reads/s", kFiles, "writes/s", "syncs/s"}) PrintRows(outcome, unit);
  for (const Json& curve : outcome["curves"]) PrintCurve(curve);
  PrintBeside(outcome);
  const Json& daemon = outcome["daemon"];
  const double limit = daemon["memory_limit_bytes"], peak = daemon["memory_peak_bytes"];
  if (limit > 0) {
    const Json check = {{"value", peak / kMiB}, {"at_most", limit / kMiB}, {"state", peak <= limit ? "ok" : "short"}};
    Print(stdout, fmt::format("the daemon's memory, MiB: at most {}\n", CheckText(check)));
  }
  Print(stdout, fmt::format("the daemon's processor time while idle: {:.1f} ms per second\n",
                            daemon["idle_cpu"].get<double>() * 1000));
  PrintNoise(outcome);
}

void PrintList() {
  Table table({{"row"}, {"group"}, {"to reference"}, {"to host"}, {"what"}});
  for (const auto& row : bench::Rows()) {
    table.Add({row.id, row.group, bench::ReferenceTargetText(row), bench::HostTargetText(row), row.title});
  }
  Print(stdout, table.ToString());
}

// The file for a result, opened before the run; none where the path is empty.
using Output = std::optional<OutputFile>;

Result<Output> OpenOutput(const std::string& path) {
  if (path.empty()) return Output();
  ASSIGN_OR_RETURN(auto file, OutputFile::Open(path));
  return Output(std::move(file));
}

bool IsStandardOutput(const Output& output) { return output.has_value() && output->is_standard_output(); }

int List(const BenchArguments& arguments) {
  auto json = OpenOutput(arguments.json);
  if (!json.has_value()) return Fail(json.error());
  if (!IsStandardOutput(*json)) PrintList();
  if (!json->has_value()) return kSuccess;
  const auto written = (*json)->Write(JsonText(bench::ListAsJson()));
  return written.has_value() ? kSuccess : Fail(written.error());
}

Result<void> WriteOutcome(const Json& outcome, Output* json, Output* report) {
  if (!IsStandardOutput(*json) && !IsStandardOutput(*report)) PrintOutcome(outcome);
  if (json->has_value()) RETURN_IF_ERROR((*json)->Write(JsonText(outcome)));
  if (report->has_value()) RETURN_IF_ERROR((*report)->Write(bench::ToHtml(outcome)));
  return {};
}

int Run(BenchArguments& arguments) {
  const auto complete = CompleteBenchArguments(&arguments);
  if (!complete.has_value()) return FailUsage("bench", Line(complete.error()));
  if (arguments.list) return List(arguments);
  auto json = OpenOutput(arguments.json), report = OpenOutput(arguments.report);
  if (!json.has_value() || !report.has_value()) return Fail((json.has_value() ? report : json).error());
  if (json->has_value() && report->has_value() && (*json)->IsSameFile(**report)) {
    return Fail({ErrorCode::kInvalid, fmt::format("--json and --report name one file, {}; give two", arguments.json)});
  }
  arguments.suite.cancel = &CatchInterrupts();
  Result<Json> outcome = ErrorCode::kInvalid;
  {
    ProgressBar bar("bench");
    arguments.suite.progress = [&bar](const Progress& progress) { bar.Update(progress); };
    outcome = bench::RunSuite(arguments.suite);
  }
  if (!outcome.has_value()) return Fail(outcome.error());
  const auto written = WriteOutcome(*outcome, &*json, &*report);
  return written.has_value() ? kSuccess : Fail(written.error());
}

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  constexpr unsigned kMany = 1'000'000'000;
  auto* command = app.add_subcommand("bench", "Compare a mount with the raw disk and the host's filesystem");
  // A process of a run, not listed by --help.
  app.add_subcommand("bench-worker")->group("")->callback([exit_code] { *exit_code = bench::RunWorker(); });
  auto arguments = std::make_shared<BenchArguments>();
  auto& suite = arguments->suite;
  command
      ->add_option("DIR", suite.directory,
                   "A directory in a mount: measures that mount. Any other directory: creates a store there, "
                   "measures it and removes it")
      ->type_name("");
  command
      ->add_option("--size", arguments->size,
                   "Size of the large file: a multiple of 2M, at least 32M. Default: depends on free space and memory")
      ->type_name("SIZE")
      ->check(CheckSize);
  command
      ->add_option("--rounds", arguments->rounds,
                   "Counted rounds, after one warm-up round: at least 5, or 1 with --quick. Default: the minimum")
      ->type_name("N")
      ->check(CheckNumber(0, kMany));
  command->add_flag("--quick", suite.quick, "Little data and one round: for a quick check, not for results");
  command->add_option("--only", suite.only, "Only these rows or groups: names or shell patterns, separated by commas")
      ->type_name("ROW,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--list", arguments->list, "List the rows and their targets, and measure nothing");
  command->add_option("--json", arguments->json, "Write every sample as JSON to FILE; without FILE to standard output")
      ->type_name("FILE")
      ->expected(0, 1)
      ->default_str("-");
  command->add_option("--report", arguments->report, "Write a self-contained page with plots to FILE.html")
      ->type_name("FILE.html");
  command->add_flag("--scaling", suite.scaling,
                    "Also measure scaling: streams, a large file, an aging store, many files. Takes a long time");
  command
      ->add_option("--large-size", arguments->large_size,
                   "Size of the large file of --scaling, at least --size; without it, that curve is omitted")
      ->type_name("SIZE")
      ->check(CheckSize);
  command
      ->add_option("--files", arguments->files,
                   "Number of files of --scaling, at least 1000. Default: 1000000, or 4000 with --quick")
      ->type_name("N")
      ->check(CheckNumber(0, kMany));
  command->add_option("-o", suite.mount_options, "Mount options of the store that bench creates")->type_name("OPTIONS");
  command->add_option("--host", suite.host, "Directory for the host's files. Default: next to the store")
      ->type_name("DIR");
  command
      ->add_option("--python", suite.python,
                   "Python of the torch, safetensors and numpy rows. Default: that of $VIRTUAL_ENV, or python3")
      ->type_name("PATH");
  command
      ->add_option(
          "--seed", suite.seed,
          "Seed of the order and of the random offsets, at least 1. Default: a random one, which the run prints")
      ->type_name("N")
      ->check(CheckNumber(1, std::numeric_limits<uint64_t>::max()));
  command->add_flag("--drop-caches", suite.drop_caches,
                    "Drop the caches of the whole machine before every cold read, as root. Default: only those of the "
                    "benchmark's files");
  command->footer(
      "The reference is libaio with O_DIRECT, 32 requests of 1 MiB in flight, into huge pages, on the host's\n"
      "filesystem. A ratio that misses its target is reported; the command still succeeds.\n\n"
      "Examples:\n"
      "  weightfs bench /mnt/tensors --json bench.json --report bench.html\n"
      "  weightfs bench /var/tmp --only 'read*,write-1m'\n"
      "  weightfs bench /dev/shm --size 1G");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

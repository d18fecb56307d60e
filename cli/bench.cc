// SPDX-License-Identifier: Apache-2.0
// weightfs bench: how fast a mount is, beside the raw disk and the host's filesystem.
#include <fmt/format.h>

#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/suite/outcome_json.h"
#include "bench/suite/suite.h"
#include "cli/bench_arguments.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/usage.h"

namespace weightfs::cli {
namespace {

using bench::Check;
using bench::Outcome;
using bench::RowOutcome;
using bench::Unit;
using bench::Way;

constexpr double kNoisy = 0.20;

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
  const char* verdict = ok ? "ok" : check.at_most ? "over" : "short";
  const std::string target = fmt::format("{} {} {:.2f}", verdict, bound, check.target);
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
             referred
                 ? fmt::format("the references varied by {:.0f} % over {} rounds", noise.widest * 100, outcome.rounds)
                 : "these rows have no reference",
             noise.load_average, noise.steal * 100);
  if (noise.widest > kNoisy) {
    fmt::print("{}\n", Paint(Tone::kWarning,
                             "the run was noisy: read these figures with their ranges, or repeat it on a "
                             "quieter machine"));
  }
}

void Print(const Outcome& outcome) {
  for (const auto& [name, value] : outcome.facts) fmt::print("{:<18} {}\n", name, value);
  fmt::print("\nGB/s is 10^9 bytes per second; medians of {} rounds (minimum–maximum).\n\n", outcome.rounds);
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

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

int List(const BenchArguments& arguments) {
  std::optional<OutputFile> json;
  if (!arguments.json.empty()) {
    auto opened = OutputFile::Open(arguments.json);
    if (!opened.has_value()) return Fail(opened.error());
    json.emplace(std::move(*opened));
  }
  if (arguments.json != "-") PrintList();
  if (!json.has_value()) return kSuccess;
  const auto written = json->Write(Dump(bench::ListAsJson()));
  return written.has_value() ? kSuccess : Fail(written.error());
}

// The files for the results, opened before the run.
struct Outputs {
  std::optional<OutputFile> json, report;
};

Result<Outputs> OpenOutputs(const BenchArguments& arguments) {
  Outputs outputs;
  for (const auto& [path, file] : {std::pair{&arguments.json, &outputs.json}, {&arguments.report, &outputs.report}}) {
    if (path->empty()) continue;
    ASSIGN_OR_RETURN(auto opened, OutputFile::Open(*path));
    file->emplace(std::move(opened));
  }
  if (outputs.json.has_value() && outputs.report.has_value() && outputs.json->IsSameFile(*outputs.report)) {
    return Error{ErrorCode::kInvalid, fmt::format("--json and --report name one file, {}; give two", arguments.json)};
  }
  return outputs;
}

Result<void> WriteOutcome(const Outcome& outcome, Outputs* outputs) {
  const bool quiet = (outputs->json.has_value() && outputs->json->is_standard_output()) ||
                     (outputs->report.has_value() && outputs->report->is_standard_output());
  if (!quiet) Print(outcome);
  if (outputs->json.has_value()) RETURN_IF_ERROR(outputs->json->Write(Dump(bench::ToJson(outcome))));
  if (outputs->report.has_value()) RETURN_IF_ERROR(outputs->report->Write(bench::ToHtml(outcome)));
  return {};
}

int Run(BenchArguments& arguments) {
  const auto complete = CompleteBenchArguments(&arguments);
  if (!complete.has_value()) return FailUsage("bench", Line(complete.error()));
  if (arguments.list) return List(arguments);
  auto outputs = OpenOutputs(arguments);
  if (!outputs.has_value()) return Fail(outputs.error());
  arguments.suite.cancel = &CatchInterrupts();
  Result<Outcome> outcome = ErrorCode::kInvalid;
  {
    ProgressBar bar("bench");
    arguments.suite.progress = [&bar](const Progress& progress) { bar.Update(progress); };
    outcome = bench::RunSuite(arguments.suite);
  }
  if (!outcome.has_value()) return Fail(outcome.error());
  const auto written = WriteOutcome(*outcome, &*outputs);
  return written.has_value() ? kSuccess : Fail(written.error());
}

}  // namespace

void AddBench(CLI::App& app, int* exit_code) {
  constexpr unsigned kMany = 1'000'000'000;
  auto* command = app.add_subcommand("bench", "Measure a mount beside the raw disk and the host's filesystem");
  auto arguments = std::make_shared<BenchArguments>();
  auto& suite = arguments->suite;
  command
      ->add_option("DIR", suite.directory,
                   "A directory in a mount: that mount is measured. In any other directory a store is made, measured "
                   "and removed")
      ->type_name("");
  command
      ->add_option("--size", arguments->size,
                   "Size of the large file: a multiple of 2M, at least 32M. Default: by the free space and memory")
      ->type_name("SIZE")
      ->check(CheckSize);
  command
      ->add_option("--rounds", arguments->rounds,
                   "Rounds that count, after one to warm up: at least 5, or 1 with --quick. Default: the fewest")
      ->type_name("N")
      ->check(CheckNumber(0, kMany));
  command->add_flag("--quick", suite.quick, "Little data and one round: for a look, not for figures");
  command->add_option("--only", suite.only, "Only these rows or groups: names or shell patterns, separated by commas")
      ->type_name("ROW,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_flag("--list", arguments->list, "List the rows and their targets, and measure nothing");
  command->add_option("--json", arguments->json, "Write every sample as JSON to FILE; without FILE to standard output")
      ->type_name("FILE")
      ->expected(0, 1)
      ->default_str("-");
  command->add_option("--report", arguments->report, "Write a page with plots to FILE.html; it needs no other file")
      ->type_name("FILE.html");
  command->add_flag("--scaling", suite.scaling,
                    "Also measure how cost grows: streams, a large file, an aging store, many files. Takes long");
  command
      ->add_option("--large-size", arguments->large_size,
                   "Size of the large file of --scaling, at least --size; without it that curve is left out")
      ->type_name("SIZE")
      ->check(CheckSize);
  command
      ->add_option("--files", arguments->files,
                   "Number of files of --scaling, at least 1000. Default: 1000000, or 4000 with --quick")
      ->type_name("N")
      ->check(CheckNumber(0, kMany));
  command->add_option("-o", suite.mount_options, "Mount options of the store that is made")->type_name("OPTIONS");
  command->add_option("--host", suite.host, "Directory for the host's files. Default: next to the store")
      ->type_name("DIR");
  command
      ->add_option("--python", suite.python,
                   "Python of the torch, safetensors and numpy rows. Default: that of $VIRTUAL_ENV, of .venv, or "
                   "python3")
      ->type_name("PATH");
  command
      ->add_option("--seed", suite.seed,
                   "Seed of the order and of the random offsets, at least 1. Default: a new one, which the run prints")
      ->type_name("N")
      ->check(CheckNumber(1, std::numeric_limits<uint64_t>::max()));
  command->add_flag("--drop-caches", suite.drop_caches,
                    "Drop the caches of the whole machine before every cold read, as root. Default: only those of the "
                    "benchmark's files");
  command->footer(
      "The reference is libaio with O_DIRECT, 32 requests of 1 MiB in flight, into huge pages, on the host's\n"
      "filesystem. A ratio that misses its target is shown, and is no failure.\n\n"
      "Examples:\n"
      "  weightfs bench /mnt/tensors --json bench.json --report bench.html\n"
      "  weightfs bench /var/tmp --only 'read*,write-1m'\n"
      "  weightfs bench /dev/shm --size 1G");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

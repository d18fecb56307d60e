// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_arguments.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>

#include "bench/suite/rows.h"
#include "cli/mount_table.h"
#include "common/size_text.h"
#include "fs/mount_options.h"

namespace weightfs::cli {
namespace {

constexpr unsigned kFewestRounds = 5, kFewestQuickRounds = 1;
constexpr unsigned kFewestFiles = 1000, kManyFiles = 1'000'000, kQuickFiles = 4000;

Error Refuse(std::string line) { return {ErrorCode::kInvalid, std::move(line)}; }

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

Result<void> CheckDirectories(const BenchArguments& arguments) {
  const bench::SuiteOptions& suite = arguments.suite;
  if (suite.directory.empty()) {
    if (IsDirectory(arguments.json)) {
      return Refuse(fmt::format("DIR is missing: --json took '{0}' as its FILE; write '{0} --json'", arguments.json));
    }
    return Refuse("DIR is missing: give a mount or any directory; e.g. 'weightfs bench /var/tmp'");
  }
  for (const auto& [name, directory] : {std::pair{"", &suite.directory}, {"--host ", &suite.host}}) {
    if (directory->empty() || IsDirectory(*directory)) continue;
    return Refuse(fmt::format("{}{}: no such directory; create it first", name, *directory));
  }
  return {};
}

// Parses a size and checks that it is at least `least` and a multiple of `step`.
Result<uint64_t> CheckSize(const char* name, const std::string& text, uint64_t least, uint64_t step) {
  ASSIGN_OR_RETURN(const ByteCount size, ParseSize(text));
  if (size.value < least) {
    return Refuse(fmt::format("{} {}: too small; give at least {}M", name, text, least / kMiB));
  }
  if (size.value % step != 0) {
    const uint64_t below = RoundDown(size.value, step) / kMiB;
    return Refuse(fmt::format("{} {}: not a multiple of {}M; give e.g. {}M or {}M", name, text, step / kMiB, below,
                              below + step / kMiB));
  }
  return size.value;
}

Result<void> CompleteSizes(BenchArguments* arguments) {
  bench::SuiteOptions& suite = arguments->suite;
  if (!arguments->size.empty()) {
    ASSIGN_OR_RETURN(suite.size, CheckSize("--size", arguments->size, bench::kLeastSize, bench::kSizeStep));
  }
  if (!arguments->large_size.empty()) {
    // A size that the suite chooses is checked by the suite.
    const uint64_t least = std::max(suite.size, bench::kLeastSize);
    ASSIGN_OR_RETURN(suite.large_size, CheckSize("--large-size", arguments->large_size, least, kMiB));
  }
  return {};
}

Result<void> CompleteCounts(BenchArguments* arguments) {
  bench::SuiteOptions& suite = arguments->suite;
  const unsigned fewest = suite.quick ? kFewestQuickRounds : kFewestRounds;
  suite.rounds = arguments->rounds.value_or(fewest);
  if (suite.rounds < fewest) {
    return Refuse(fmt::format("--rounds {}: too few for a median; give at least {}, or at least {} with --quick",
                              suite.rounds, kFewestRounds, kFewestQuickRounds));
  }
  if (suite.scaling) suite.many_files = arguments->files.value_or(suite.quick ? kQuickFiles : kManyFiles);
  if (suite.scaling && suite.many_files < kFewestFiles) {
    return Refuse(fmt::format("--files {}: too few; give at least {}", suite.many_files, kFewestFiles));
  }
  return {};
}

// The store must be known.
Result<void> CheckScalingOptions(const BenchArguments& arguments) {
  for (const auto& [name, given] :
       {std::pair{"--large-size", !arguments.large_size.empty()}, {"--files", arguments.files.has_value()}}) {
    if (!given) continue;
    if (!arguments.suite.scaling) return Refuse(fmt::format("{} also needs --scaling", name));
    if (!arguments.suite.store.empty()) {
      return Refuse(fmt::format("{} needs its own store, but {} is in a mount; give another directory", name,
                                arguments.suite.directory));
    }
  }
  return {};
}

// The store must be known. Every pattern must select a row, or a curve that will be measured.
Result<void> CheckSelection(const bench::SuiteOptions& suite) {
  for (const std::string& pattern : suite.only) {
    bench::SuiteOptions alone = suite;
    alone.only = {pattern};
    const auto& rows = bench::Rows();
    if (std::ranges::any_of(rows, [&](const auto& row) { return bench::IsSelected(row, alone.only); })) continue;
    const bool selects_curves = !bench::SelectedCurves(alone).empty();
    if (selects_curves && suite.scaling) continue;
    // Enables everything that a curve may need.
    alone.store.clear();
    alone.large_size = 1;
    const bool names_curves = !bench::SelectedCurves(alone).empty();
    const std::string problem =
        !names_curves    ? "no such row or group; 'weightfs bench --list' shows them"
        : !suite.scaling ? "also needs --scaling"
        : suite.store.empty()
            ? "also needs --large-size"
            : fmt::format("needs its own store, but {} is in a mount; give another directory", suite.directory);
    return Refuse(fmt::format("--only {}: {}", pattern, problem));
  }
  return {};
}

Result<void> CheckMountOptions(const bench::SuiteOptions& suite) {
  if (suite.mount_options.empty()) return {};
  if (!suite.store.empty()) {
    return Refuse(
        fmt::format("-o applies only to a store that bench creates; {} is in an existing mount", suite.directory));
  }
  MountOptions mount;
  StoreOptions store;
  return ApplyMountOptions(suite.mount_options, mount, store);
}

}  // namespace

Result<void> CompleteBenchArguments(BenchArguments* arguments) {
  bench::SuiteOptions& suite = arguments->suite;
  if (arguments->list) {
    if (arguments->report.empty()) return {};
    return Refuse("--report needs a run, and --list measures nothing; omit one of them");
  }
  RETURN_IF_ERROR(CheckDirectories(*arguments));
  RETURN_IF_ERROR(CompleteSizes(arguments));
  RETURN_IF_ERROR(CompleteCounts(arguments));
  suite.directory = ResolvePath(suite.directory);
  const auto mount = FindMountAbove(suite.directory);
  suite.store = mount.has_value() ? mount->source : std::string();
  RETURN_IF_ERROR(CheckScalingOptions(*arguments));
  RETURN_IF_ERROR(CheckSelection(suite));
  if (!suite.store.empty()) suite.many_files = 0;
  RETURN_IF_ERROR(CheckMountOptions(suite));
  if (suite.drop_caches && access("/proc/sys/vm/drop_caches", W_OK) != 0) {
    return Refuse(
        "--drop-caches: only root may drop the machine's caches; without it, only the benchmark's files are dropped");
  }
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) {
    return Error{ErrorCode::kIo, fmt::format("/proc/self/exe: {}", std::strerror(errno))};
  }
  suite.program = program;
  return {};
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs stats: what a mount does, once a second.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/scrub_report.h"
#include "cli/watch/watch.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "fs/request_metrics.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

// In seconds. A mount counts processes and files until ten seconds after the last look.
constexpr double kLongestInterval = 86400, kLongestIntervalBy = 5;

struct Sample {
  std::chrono::steady_clock::time_point time;
  weightfs_stats stats{};
  weightfs_metrics requests{};
  std::optional<ScrubReport> scrub;  // nullopt: the mount is of an older version
  std::optional<weightfs_hot> hot;   // likewise

  bool scrubs() const { return scrub && scrub->period.count() > 0 && scrub->state.running(); }
  int64_t last_scrub() const { return scrub ? scrub->state.last_completed_ns : 0; }
};

// The requests of one kind in an interval. Rates are per second, times in seconds.
struct KindRates {
  double requests = 0, errors = 0, bytes = 0;
  double mean = 0, median = 0, p99 = 0;  // latency in the mount's process; 0: no request
};

// The difference of two samples.
struct Rates {
  double seconds = 0;
  double read = 0, written = 0;  // bytes per second, by programs
  double leased_read = 0, leased_written = 0, device_read = 0, device_written = 0;
  double commits = 0, flushes = 0, requests = 0;
  // The share of the bytes read through the mount that needed no device; nullopt also while a scrub reads the devices.
  std::optional<double> from_memory;
  KindRates kinds[kRequestKinds];
};

// The latency that a share of the requests did not exceed, interpolated within its bucket.
double Quantile(const weightfs_kind_metrics& before, const weightfs_kind_metrics& after, double share) {
  uint64_t all = 0;
  for (size_t i = 0; i < WEIGHTFS_METRICS_BUCKETS; ++i) all += after.buckets[i] - before.buckets[i];
  if (all == 0) return 0;
  const double wanted = share * static_cast<double>(all);
  double below = 0;
  for (size_t i = 0; i < WEIGHTFS_METRICS_BUCKETS; ++i) {
    const uint32_t count = after.buckets[i] - before.buckets[i];
    if (below + count < wanted || count == 0) {
      below += count;
      continue;
    }
    const double part = (wanted - below) / count;
    const double bound = static_cast<double>(RequestMetrics::BoundOf(i).count()) / 1e9;
    return bound * std::exp2((part - 1) / WEIGHTFS_METRICS_STEPS);
  }
  return 0;
}

Rates RatesOf(const Sample& before, const Sample& after) {
  Rates rates;
  rates.seconds = std::chrono::duration<double>(after.time - before.time).count();
  const auto rate = [&](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / rates.seconds; };
  const weightfs_stats &a = before.stats, &b = after.stats;
  rates.read = rate(a.read_bytes, b.read_bytes);
  rates.written = rate(a.written_bytes, b.written_bytes);
  rates.leased_read = rate(a.leased_read_bytes, b.leased_read_bytes);
  rates.leased_written = rate(a.leased_written_bytes, b.leased_written_bytes);
  rates.device_read = rate(a.device_read_bytes, b.device_read_bytes);
  rates.device_written = rate(a.device_written_bytes, b.device_written_bytes);
  rates.commits = rate(a.commits, b.commits);
  rates.flushes = rate(a.flushes, b.flushes);
  for (size_t i = 0; i < kRequestKinds; ++i) {
    const weightfs_kind_metrics &from = before.requests.kinds[i], &to = after.requests.kinds[i];
    KindRates& kind = rates.kinds[i];
    kind.requests = rate(from.count, to.count);
    kind.errors = rate(from.errors, to.errors);
    kind.bytes = rate(from.bytes, to.bytes);
    rates.requests += kind.requests;
    if (to.count == from.count) continue;
    kind.mean =
        static_cast<double>(to.nanoseconds - from.nanoseconds) / static_cast<double>(to.count - from.count) / 1e9;
    kind.median = Quantile(from, to, 0.5);
    kind.p99 = Quantile(from, to, 0.99);
  }
  const double through_mount = rates.kinds[static_cast<size_t>(RequestKind::kRead)].bytes;
  const bool scrubbed = before.scrubs() || after.scrubs() || before.last_scrub() != after.last_scrub();
  if (through_mount > 0 && !scrubbed) {
    rates.from_memory = std::max(0.0, 1 - std::max(0.0, rates.device_read - rates.leased_read) / through_mount);
  }
  return rates;
}

std::string Bytes(uint64_t bytes) { return FormatSize(ByteCount{bytes}); }

// Leaves out kinds without requests if the text has more than `rows` lines; 0: unlimited.
std::string ScreenText(const WatchArguments& arguments, const std::string& store, const Rates& rates, const Sample& now,
                       size_t rows) {
  const weightfs_stats& stats = now.stats;
  std::string text = Heading(Printable(fmt::format("{}  {}", arguments.path, store)), rates.seconds);
  Table data({{"data"}, {"programs", true}, {"of that by leases", true}, {"devices", true}});
  data.Add({"read", RateText(rates.read), RateText(rates.leased_read), RateText(rates.device_read)});
  data.Add({"written", RateText(rates.written), RateText(rates.leased_written), RateText(rates.device_written)});
  text += data.ToString() + "\n";
  Table requests({{"requests"},
                  {"per second", true},
                  {"data", true},
                  {"daemon p50", true},
                  {"daemon p99", true},
                  {"mean", true},
                  {"errors/s", true}});
  constexpr size_t kOtherLines = 19;
  const bool all_kinds = rows == 0 || rows >= kOtherLines + kRequestKinds;
  for (size_t i = 0; i < kRequestKinds; ++i) {
    const KindRates& kind = rates.kinds[i];
    if (!all_kinds && kind.requests == 0) continue;
    requests.Add({std::string(RequestKindName(static_cast<RequestKind>(i))), CountText(kind.requests),
                  RateText(kind.bytes), TimeText(kind.median), TimeText(kind.p99), TimeText(kind.mean),
                  CountText(kind.errors)});
  }
  text += requests.ToString() + "\n";
  Table rest({{""}, {"", true}, {""}});
  if (rates.from_memory) rest.Add({"reads from memory", fmt::format("{:.0f} %", *rates.from_memory * 100), ""});
  rest.Add({"device requests", fmt::format("{}", stats.device_requests), "in flight"});
  rest.Add({"buffers", Bytes(stats.buffer_in_use), fmt::format("of {}", Bytes(stats.buffer_capacity))});
  if (now.hot) {
    rest.Add({"hot files", Bytes(now.hot->used),
              fmt::format("of {}, {} mapped since the mount", Bytes(now.hot->limit), Bytes(now.hot->mapped))});
  }
  rest.Add({"dirty", Bytes(stats.dirty_bytes), ""});
  rest.Add({"leases", fmt::format("{}", stats.leases),
            fmt::format("{} pinned, {} granted", Bytes(stats.pinned_bytes), Bytes(stats.granted_bytes))});
  rest.Add({"commits", CountText(rates.commits), fmt::format("per second, {} flushes", CountText(rates.flushes))});
  if (now.scrubs()) {
    const ScrubState& scrub = now.scrub->state;
    rest.Add({"scrub", Bytes(scrub.checked_bytes), fmt::format("of about {}", Bytes(scrub.total_bytes))});
  }
  rest.Add({"free", Bytes(stats.free_bytes), fmt::format("of {}", Bytes(stats.total_bytes))});
  text += rest.ToString(/*titles=*/false);
  if (stats.checksum_errors > 0) {
    text +=
        Paint(Tone::kWarning, fmt::format("{} checksum errors since the mount; 'weightfs verify {}' finds the files\n",
                                          stats.checksum_errors, arguments.path));
  }
  return text;
}

// A line for a log or another program, as iostat's: every column has the width of its title, every number one unit.
// `number` counts the lines; the titles come before every twentieth.
std::string LogLine(const Rates& rates, const Sample& now, uint64_t number) {
  constexpr double kMega = 1e6, kGiga = 1e9;
  constexpr size_t kLeastWidth = 8, kTitlesEvery = 20;
  const auto p99 = [&](RequestKind kind) { return rates.kinds[static_cast<size_t>(kind)].p99 * 1e3; };
  struct Field {
    std::string_view title;
    double value;
    int decimals = 2;
  };
  const Field fields[] = {{"read_MB/s", rates.read / kMega},
                          {"write_MB/s", rates.written / kMega},
                          {"devrd_MB/s", rates.device_read / kMega},
                          {"devwr_MB/s", rates.device_written / kMega},
                          {"req/s", rates.requests, 0},
                          {"rd_p99_ms", p99(RequestKind::kRead), 3},
                          {"wr_p99_ms", p99(RequestKind::kWrite), 3},
                          {"sync_p99_ms", p99(RequestKind::kSync), 3},
                          {"dirty_MB", static_cast<double>(now.stats.dirty_bytes) / kMega},
                          {"free_GB", static_cast<double>(now.stats.free_bytes) / kGiga},
                          {"cksum_err", static_cast<double>(now.stats.checksum_errors), 0}};
  std::string titles = fmt::format("{:<20}", "time"), line = NowText();
  for (const Field& field : fields) {
    const size_t width = std::max(field.title.size(), kLeastWidth);
    titles += fmt::format(" {:>{}}", field.title, width);
    line += fmt::format(" {:>{}.{}f}", field.value, width, field.decimals);
  }
  return (number % kTitlesEvery == 0 ? titles + "\n" : "") + line + "\n";
}

Json KindJson(const KindRates& kind) {
  return {{"per_s", kind.requests}, {"errors_per_s", kind.errors}, {"bytes_per_s", kind.bytes},
          {"mean_s", kind.mean},    {"p50_s", kind.median},        {"p99_s", kind.p99}};
}

std::string JsonLine(const Rates& rates, const Sample& now) {
  const weightfs_stats& stats = now.stats;
  Json json = {{"time", NowSeconds()},
               {"interval_s", rates.seconds},
               {"read_bytes_per_s", rates.read},
               {"written_bytes_per_s", rates.written},
               {"leased_read_bytes_per_s", rates.leased_read},
               {"leased_written_bytes_per_s", rates.leased_written},
               {"device_read_bytes_per_s", rates.device_read},
               {"device_written_bytes_per_s", rates.device_written},
               {"reads_from_memory", rates.from_memory ? Json(*rates.from_memory) : Json()},
               {"commits_per_s", rates.commits},
               {"flushes_per_s", rates.flushes},
               {"requests_per_s", rates.requests},
               {"checksum_errors", stats.checksum_errors},
               {"device_requests", stats.device_requests},
               {"buffer_bytes", stats.buffer_capacity},
               {"buffer_used_bytes", stats.buffer_in_use},
               {"dirty_bytes", stats.dirty_bytes},
               {"leases", stats.leases},
               {"pinned_bytes", stats.pinned_bytes},
               {"granted_bytes", stats.granted_bytes},
               {"hot_bytes", now.hot ? Json(now.hot->used) : Json()},
               {"hot_mapped_bytes", now.hot ? Json(now.hot->mapped) : Json()},
               {"free_bytes", stats.free_bytes},
               {"requests", Json::object()}};
  for (size_t i = 0; i < kRequestKinds; ++i) {
    json["requests"][std::string(RequestKindName(static_cast<RequestKind>(i)))] = KindJson(rates.kinds[i]);
  }
  return json.dump() + "\n";
}

Result<Sample> Take(const WatchArguments& arguments) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenOnMount(arguments.path));
  Sample sample;
  sample.scrub = AskForScrubs(file.get());
  RETURN_IF_ERROR(AskMount(arguments, file.get(), WEIGHTFS_IOC_STATS, &sample.stats));
  RETURN_IF_ERROR(AskMount(arguments, file.get(), WEIGHTFS_IOC_METRICS, &sample.requests));
  if (ioctl(file.get(), WEIGHTFS_IOC_HOT, &sample.hot.emplace()) != 0) sample.hot.reset();
  sample.time = std::chrono::steady_clock::now();
  return sample;
}

// The counters of a mount begin with 0 again when the store has been mounted anew.
bool CountsBeganAgain(const Sample& before, const Sample& now) {
  bool less = now.stats.requests < before.stats.requests || now.stats.read_bytes < before.stats.read_bytes ||
              now.stats.written_bytes < before.stats.written_bytes || now.stats.commits < before.stats.commits;
  for (size_t i = 0; i < kRequestKinds; ++i) less |= now.requests.kinds[i].count < before.requests.kinds[i].count;
  return less;
}

std::string CheckKinds(const std::string& text) {
  const bool known = text == "process" || text == "file" || text == "process,file" || text == "file,process";
  return known ? "" : fmt::format("'{}' is not one of process, file and process,file", text);
}

Result<int> Run(const WatchArguments& arguments) {
  if (!arguments.by.empty() && arguments.interval > kLongestIntervalBy) {
    return FailUsage("stats", fmt::format("--interval is at most {:g} with --by: the mount counts no longer",
                                          kLongestIntervalBy));
  }
  if (!arguments.by.empty()) return WatchActivity(arguments);
  ASSIGN_OR_RETURN(Sample before, Take(arguments));
  const auto mount = FindMountAbove(arguments.path);
  uint64_t lines = 0;
  return Watch(arguments, [&](const WatchView& view) -> Result<std::string> {
    ASSIGN_OR_RETURN(Sample now, Take(arguments));
    if (CountsBeganAgain(before, now)) {
      before = Sample{.time = before.time, .stats = {}, .requests = {}, .scrub = {}};
    }
    const Rates rates = RatesOf(before, now);
    std::string text =
        arguments.json ? JsonLine(rates, now)
        : view.redrawn ? ScreenText(arguments, mount.has_value() ? mount->source : std::string(), rates, now, view.rows)
                       : LogLine(rates, now, lines++);
    before = now;
    return text;
  });
}

}  // namespace

Command StatsCommand() {
  auto arguments = std::make_shared<WatchArguments>();
  Command command("stats", "Show what a mount does: throughput, latencies, memory; or its processes and files");
  command.Add("DIR", &arguments->path, "A directory or file in a mount");
  command.Add("--by KIND", &arguments->by, "Show the processes, the files, or both: process, file or process,file",
              "process")
      .check = CheckKinds;
  command
      .AddDecimal("--interval SECONDS", &arguments->interval, "Seconds between two looks, fractions allowed", "2",
                  kLongestInterval, 0.1)
      .fallback = fmt::format("{}", arguments->interval);
  command.AddNumber("--count N", &arguments->count, "Number of looks; without it until q or Ctrl-C", "10", 0);
  command.Add("--json", &arguments->json, "Print one line of JSON for each interval: bytes, seconds, never rounded");
  command.Add("--lines", &arguments->lines,
              "Print one line for each interval, with its time; the default where the output is no terminal");
  command.footer =
      "Latencies (p50, p99, mean) are those of the daemon, the mount's process: from the arrival of a request there\n"
      "to its answer. Programs also see its wait in the kernel. Reads that the kernel answers from its page cache\n"
      "reach no process and are not counted. The keys of --json end with their unit:\n"
      "bytes, _s is seconds, per_s is per second; docs/MONITORING.md explains them.\n\n"
      "--by is for root (user 0 with CAP_DAC_OVERRIDE) and the user who runs the mount. Data of leases counts when a\n"
      "lease for reading begins and when a written one is committed; save_many and load_many count for their\n"
      "directory. Files are named by the processes that have them open or mapped; a file that was closed before the\n"
      "look is shown by its inode. (kernel) closes files, and writes what programs changed through mappings. 'busy'\n"
      "is the mean number of requests in progress. Requests of stats itself are not counted.\n\n"
      "Examples:\n"
      "  weightfs stats /mnt/tensors\n"
      "  weightfs stats /mnt/tensors --by process,file\n"
      "  weightfs stats /mnt/tensors --interval 60 >> stats.log\n"
      "  weightfs stats /mnt/tensors --interval 10 --json >> stats.jsonl";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
#include "fs/metrics_text.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "common/printable.h"

namespace weightfs {
namespace {

// Histograms show one bucket for each doubling, from 4 microseconds to 8 seconds: a client of a mount rarely needs
// more, and every bucket of every kind is a time series.
constexpr size_t kFirstShown = 2 * WEIGHTFS_METRICS_STEPS, kLastShown = 23 * WEIGHTFS_METRICS_STEPS;

class Text {
 public:
  explicit Text(MetricsFormat format) : open_(format == MetricsFormat::kOpenMetrics) {}

  void Counter(std::string_view name, std::string_view help, uint64_t value) {
    BeginCounter(name, help);
    Add("{}_total {}\n", name, value);
  }
  // Declares a counter whose samples follow.
  void BeginCounter(std::string_view name, std::string_view help) {
    // OpenMetrics declares the family without its suffix.
    Declare(open_ ? std::string(name) : fmt::format("{}_total", name), "counter", help);
  }
  template <typename Number>
  void Gauge(std::string_view name, std::string_view help, Number value) {
    Declare(name, "gauge", help);
    Add("{} {}\n", name, value);
  }
  void Declare(std::string_view name, std::string_view type, std::string_view help) {
    Add("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <typename... T>
  void Add(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<T>(values)...);
  }
  std::string Finish() {
    if (open_) text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  const bool open_;
  std::string text_;
};

// A client rejects all metrics if one label is not UTF-8, so such a value is shown with its bytes as \xNN.
std::string LabelValue(std::string_view value) {
  const std::string shown = IsUtf8(value) ? std::string(value) : Printable(value);
  std::string out;
  for (const char c : shown) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

void AddRequests(const std::array<RequestTotals, kRequestKinds>& requests, Text* text) {
  const auto kind_of = [](size_t index) { return RequestKindName(static_cast<RequestKind>(index)); };
  text->BeginCounter("weightfs_request_errors", "Requests that were answered with an error, ENOENT included, by kind.");
  for (size_t i = 0; i < kRequestKinds; ++i) {
    text->Add("weightfs_request_errors_total{{kind=\"{}\"}} {}\n", kind_of(i), requests[i].errors);
  }
  text->BeginCounter("weightfs_request_bytes", "Bytes that requests to the mount read or wrote, by kind.");
  for (const RequestKind kind : {RequestKind::kRead, RequestKind::kWrite}) {
    const auto index = static_cast<size_t>(kind);
    text->Add("weightfs_request_bytes_total{{kind=\"{}\"}} {}\n", kind_of(index), requests[index].bytes);
  }
  constexpr std::string_view kDuration = "weightfs_request_duration_seconds";
  text->Declare(kDuration, "histogram",
                "Time in the mount's process, from the arrival of a request there to its answer, by kind. The wait "
                "in the kernel comes before it.");
  for (size_t i = 0; i < kRequestKinds; ++i) {
    const RequestTotals& kind = requests[i];
    uint64_t below = 0;
    for (size_t bucket = 0; bucket <= kLastShown; ++bucket) {
      below += kind.buckets[bucket];
      if (bucket < kFirstShown || bucket % WEIGHTFS_METRICS_STEPS != 0) continue;
      const double bound = static_cast<double>(RequestMetrics::BoundOf(bucket).count()) / 1e9;
      text->Add("{}_bucket{{kind=\"{}\",le=\"{}\"}} {}\n", kDuration, kind_of(i), bound, below);
    }
    text->Add("{}_bucket{{kind=\"{}\",le=\"+Inf\"}} {}\n", kDuration, kind_of(i), kind.count);
    text->Add("{}_sum{{kind=\"{}\"}} {}\n", kDuration, kind_of(i), static_cast<double>(kind.nanoseconds) / 1e9);
    text->Add("{}_count{{kind=\"{}\"}} {}\n", kDuration, kind_of(i), kind.count);
  }
}

double Seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

void AddScrub(const ScrubReport& scrub, Text* text) {
  const ScrubState& state = scrub.state;
  text->Gauge("weightfs_scrub_period_seconds", "Time between two scrubs (option scrub=); 0: this mount starts none.",
              static_cast<double>(scrub.period.count()) / 1e3);
  text->Gauge("weightfs_scrub_last_completion_timestamp_seconds", "End of the last complete scrub; 0: there is none.",
              Seconds(state.last_completed_ns));
  text->Gauge("weightfs_scrub_running", "1: a scrub is in progress, or was interrupted.", state.running() ? 1 : 0);
  text->Gauge("weightfs_scrub_checked_bytes", "Bytes that the scrub in progress has checked.",
              state.running() ? state.checked_bytes : 0);
  text->Gauge("weightfs_scrub_total_bytes", "Bytes that the scrub in progress will check, estimated.",
              state.running() ? state.total_bytes : 0);
  const auto add = [&](std::string_view name, std::string_view help, auto value_of) {
    text->Declare(name, "gauge", help);
    text->Add("{}{{scrub=\"last\"}} {}\n", name, value_of(state.last_found));
    text->Add("{}{{scrub=\"running\"}} {}\n", name, value_of(state.found));
  };
  add("weightfs_scrub_damaged_blocks", "Damaged blocks of files that the scrub has found.",
      [](const ScrubFindings& found) { return found.blocks; });
  add("weightfs_scrub_damaged_files", "Files with damaged blocks.",
      [](const ScrubFindings& found) { return found.files; });
  add("weightfs_scrub_catalog_damaged", "1: the index of the catalog is damaged.",
      [](const ScrubFindings& found) { return found.catalog ? 1 : 0; });
  add("weightfs_scrub_log_damaged", "1: the log on the devices was damaged.",
      [](const ScrubFindings& found) { return found.replica ? 1 : 0; });
}

}  // namespace

std::string MetricsText(const MetricsSource& source, MetricsFormat format) {
  const weightfs_stats& stats = source.stats;
  Text text(format);
  text.Declare("weightfs_mount_info", "gauge", "1 for the mount; its labels say what it is.");
  text.Add("weightfs_mount_info{{version=\"{}\",store=\"{}\"}} 1\n", WEIGHTFS_VERSION, LabelValue(source.store));
  text.Counter("weightfs_read_bytes", "Bytes read by programs, leases included.", stats.read_bytes);
  text.Counter("weightfs_written_bytes", "Bytes written by programs, leases included.", stats.written_bytes);
  text.Counter("weightfs_device_read_bytes", "Bytes read from the devices, leases and scrubs included.",
               stats.device_read_bytes);
  text.Counter("weightfs_device_written_bytes", "Bytes of data written to the devices, leases included.",
               stats.device_written_bytes);
  text.Counter("weightfs_leased_read_bytes", "Bytes of the blocks of leases for reading.", stats.leased_read_bytes);
  text.Counter("weightfs_leased_written_bytes", "Bytes of the blocks committed by leases.", stats.leased_written_bytes);
  text.Counter("weightfs_commits", "Commits of the catalog.", stats.commits);
  text.Counter("weightfs_flushes", "Flushes of a device.", stats.flushes);
  text.Counter("weightfs_checksum_errors", "Reads of a device whose checksum was wrong, retries included.",
               stats.checksum_errors);
  text.Gauge("weightfs_capacity_bytes", "Bytes of the devices for data.", stats.total_bytes);
  text.Gauge("weightfs_free_bytes", "Bytes that are free.", stats.free_bytes);
  text.Gauge("weightfs_available_bytes", "Bytes that programs may still allocate.", stats.available_bytes);
  if (source.catalog_free) {
    text.Gauge("weightfs_catalog_free_bytes",
               "Bytes by which the catalog may grow on its filesystem; without them changes fail with ENOSPC.",
               *source.catalog_free);
  }
  text.Gauge("weightfs_dirty_bytes", "Memory with data that no device has yet.", stats.dirty_bytes);
  text.Gauge("weightfs_buffer_bytes", "Memory for data of files.", stats.buffer_capacity);
  text.Gauge("weightfs_buffer_used_bytes", "The part of it in use.", stats.buffer_in_use);
  text.Gauge("weightfs_hot_limit_bytes", "Memory for hot files.", source.hot.limit);
  text.Gauge("weightfs_hot_bytes", "The part of it in use.", source.hot.used);
  text.Counter("weightfs_hot_mapped_bytes", "Bytes of hot files that programs have mapped or read.",
               source.hot.mapped);
  text.Counter("weightfs_hot_loaded_bytes", "Bytes read from the devices for that.", source.hot.loaded);
  text.Counter("weightfs_hot_evictions", "Hot files that gave their memory to others.", source.hot.evictions);
  text.Gauge("weightfs_write_buffer_bytes", "Memory that receives large writes.", stats.write_buffers);
  text.Gauge("weightfs_write_buffer_used_bytes", "The part of it in use.", stats.write_buffers_in_use);
  text.Gauge("weightfs_device_requests", "Requests to the devices in flight.", stats.device_requests);
  text.Gauge("weightfs_resident_inodes", "Inodes in memory.", stats.resident_inodes);
  text.Gauge("weightfs_leases", "Leases held by programs.", stats.leases);
  text.Gauge("weightfs_pinned_bytes", "Bytes that leases for reading keep unchanged.", stats.pinned_bytes);
  text.Gauge("weightfs_granted_bytes", "Bytes that leases for writing may write.", stats.granted_bytes);
  text.Gauge("weightfs_log_bytes", "Bytes of the log on the devices, with its checkpoint.", stats.log_bytes);
  text.Gauge("weightfs_log_intact", "0: the log failed, or a damaged part of it is written anew.", stats.log_intact);
  text.Gauge("weightfs_log_age_seconds", "Time since every change was durable; 0: all are.",
             Seconds(source.log_age.count()));
  text.Gauge("weightfs_read_only", "1: the mount accepts no changes.", stats.read_only);
  AddScrub(source.scrub, &text);
  AddRequests(source.requests, &text);
  if (source.kernel_requests) {
    text.Gauge("weightfs_kernel_requests", "Requests that wait in the kernel or are in progress, as the kernel counts.",
               *source.kernel_requests);
  }
  text.BeginCounter("process_cpu_seconds", "Processor time of the mount's process.");
  text.Add("process_cpu_seconds_total {}\n", source.processor_seconds);
  text.Declare("process_start_time_seconds", "gauge", "Start of the mount's process, in seconds since the epoch.");
  text.Add("process_start_time_seconds {:.2f}\n", source.start_seconds);
  text.Gauge("process_resident_memory_bytes", "Resident memory of the mount's process.", source.resident_bytes);
  return text.Finish();
}

}  // namespace weightfs

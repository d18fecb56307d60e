// SPDX-License-Identifier: Apache-2.0
#include "cli/scrub_report.h"

#include <sys/ioctl.h>

#include <algorithm>

#include "cli/output.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "common/utc_time.h"
#include "lease/ioctl.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSecond = 1'000'000'000;

ScrubFindings FindingsOf(const weightfs_scrub_findings& found) {
  ScrubFindings findings;
  findings.blocks = found.blocks;
  findings.files = found.files;
  findings.catalog = found.catalog != 0;
  findings.replica = found.log != 0;
  return findings;
}

Json TimeJson(int64_t time_ns) { return time_ns == 0 ? Json() : Json(FormatUtc(time_ns)); }

std::string Days(std::chrono::milliseconds period) {
  return fmt::format("{:g}", std::chrono::duration<double, std::ratio<86400>>(period).count());
}

Json FindingsJson(const ScrubFindings& found) {
  Json json = {{"damaged_blocks", found.blocks},
               {"damaged_files", found.files},
               {"catalog_damaged", found.catalog},
               {"log_damaged", found.replica},
               {"files", Json::array()}};
  for (const DamagedFile& file : found.listed) {
    json["files"].push_back({{"path", file.path.empty() ? Json() : Json(file.path)},
                             {"inode", file.ino.value},
                             {"offset", file.offset},
                             {"blocks", file.blocks}});
  }
  return json;
}

std::string FindingLines(const ScrubFindings& found, std::string_view when) {
  if (found.clean()) return {};
  std::string text;
  if (found.catalog) {
    text += fmt::format("         {}: the index of the catalog is damaged: unmount and mount again\n", when);
  }
  if (found.replica) text += fmt::format("         {}: the log on the devices was damaged\n", when);
  if (found.blocks > 0) {
    text += fmt::format("         {}: {} damaged blocks in {} files: restore these files from a backup\n", when,
                        found.blocks, found.files);
  }
  for (const DamagedFile& file : found.listed) {
    const std::string name = file.path.empty() ? fmt::format("inode {}", file.ino.value) : Printable(file.path);
    text += fmt::format("           {}: {} blocks, the first at byte {}\n", name, file.blocks, file.offset);
  }
  if (found.files > found.listed.size()) {
    text += fmt::format("           and {} files more\n", found.files - found.listed.size());
  }
  return Paint(Tone::kWarning, text);
}

std::string Progress(const ScrubReport& report) {
  const ScrubState& state = report.state;
  std::string text = fmt::format("running since {}: {} of about {}", FormatUtc(state.started_ns),
                                 FormatSize(ByteCount{state.checked_bytes}), FormatSize(ByteCount{state.total_bytes}));
  if (report.remaining_ns > 0) {
    text += fmt::format(", {} per second, {} left", FormatSize(report.rate), DurationText(report.remaining_ns));
  }
  return text;
}

}  // namespace

std::string DurationText(int64_t time_ns) {
  const int64_t seconds = time_ns / kSecond;
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{} min", seconds / 60);
  if (seconds < 2 * 86400) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} days", seconds / 86400);
}

std::optional<ScrubReport> AskForScrubs(int descriptor) {
  weightfs_scrub answer{};
  if (ioctl(descriptor, WEIGHTFS_IOC_SCRUB, &answer) != 0) return std::nullopt;
  ScrubReport report;
  report.period = std::chrono::milliseconds(answer.period_ms);
  report.next_ns = answer.next_ns;
  report.rate = ByteCount{answer.rate};
  report.remaining_ns = answer.remaining_ns;
  if (answer.running != 0) report.state.phase = ScrubPhase::kData;
  report.state.started_ns = answer.started_ns;
  report.state.checked_bytes = answer.checked_bytes;
  report.state.total_bytes = answer.total_bytes;
  report.state.last_started_ns = answer.last_started_ns;
  report.state.last_completed_ns = answer.last_completed_ns;
  report.state.found = FindingsOf(answer.found);
  report.state.last_found = FindingsOf(answer.last_found);
  for (uint32_t index = 0; index < std::min<uint32_t>(answer.count, WEIGHTFS_SCRUB_DAMAGES_MAX); ++index) {
    const weightfs_scrub_damage& damage = answer.damages[index];
    const size_t size = std::min<size_t>(damage.path_size, sizeof(damage.path));
    auto& found = damage.running != 0 ? report.state.found : report.state.last_found;
    found.listed.push_back({.ino = InodeId{damage.inode},
                            .offset = damage.offset,
                            .blocks = damage.blocks,
                            .path = std::string(damage.path, size)});
  }
  return report;
}

Json ScrubJson(const ScrubReport& report) {
  const ScrubState& state = report.state;
  const bool on = report.period.count() > 0, running = state.running();
  Json json = {{"period_seconds", on ? Json(static_cast<double>(report.period.count()) / 1000) : Json()},
               {"last_started", TimeJson(state.last_started_ns)},
               {"last_completed", TimeJson(state.last_completed_ns)},
               {"next", TimeJson(report.next_ns)},
               {"last", FindingsJson(state.last_found)},
               {"running", Json()}};
  if (running) {
    Json now = {{"started", TimeJson(state.started_ns)},
                {"checked_bytes", state.checked_bytes},
                {"total_bytes", state.total_bytes},
                {"bytes_per_second", on ? Json(report.rate.value) : Json()},
                {"remaining_seconds", on ? Json(report.remaining_ns / kSecond) : Json()}};
    now.update(FindingsJson(state.found));
    json["running"] = std::move(now);
  }
  return json;
}

std::string ScrubLines(const ScrubReport& report) {
  const ScrubState& state = report.state;
  const bool on = report.period.count() > 0;
  if (!on && !state.running() && state.last_completed_ns == 0) return {};
  std::string text = "scrub    ";
  text += on ? fmt::format("every {} days", Days(report.period)) : std::string("off (mount option scrub=)");
  text += state.last_completed_ns == 0 ? "; none was completed yet"
                                       : fmt::format("; the last one ended {}", FormatUtc(state.last_completed_ns));
  if (report.next_ns != 0) text += fmt::format(", the next one begins {}", FormatUtc(report.next_ns));
  text += "\n";
  if (state.running()) {
    const std::string progress = on ? Progress(report)
                                    : fmt::format("interrupted after {}; a mount with scrub= continues it",
                                                  FormatSize(ByteCount{state.checked_bytes}));
    text += fmt::format("         {}\n", progress);
    text += FindingLines(state.found, "the running one");
  }
  return text + FindingLines(state.last_found, "the last one");
}

}  // namespace weightfs::cli

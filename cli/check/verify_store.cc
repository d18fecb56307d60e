// SPDX-License-Identifier: Apache-2.0
// Checks a store that is not mounted, and repairs it on request.

#include <nlohmann/json.hpp>

#include "cli/check/verify.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "store/check/fsck.h"
#include "store/volume/open_catalog.h"
#include "store/volume/recover_store.h"
#include "store/volume/store_session.h"

namespace weightfs::cli {
namespace {

std::string SeverityName(FindingSeverity severity) { return severity == FindingSeverity::kMajor ? "major" : "minor"; }

struct Checked {
  FsckReport report;
  std::string restored_note;  // a line about what was restored, or is lost; empty: nothing
  bool restored = false;  // something was
  bool lost = false;      // something is, or stays, lost
  bool was_clean = true;  // the last mount closed the store cleanly
  bool repairs = false;   // the index has, or may have, what the log lacks
  bool logged = false;    // the store has a log
};

int ExitCode(const Checked& checked) {
  const FsckReport& report = checked.report;
  return (report.repaired > 0 || checked.restored ? kFsckCorrected : 0) |
         (report.sound() && !checked.lost ? 0 : kFsckUncorrected);
}

void PrintJson(const std::string& store, const Checked& checked) {
  const FsckReport& report = checked.report;
  nlohmann::ordered_json json = {{"store", store},
                                 {"clean", report.clean() && !checked.lost},
                                 {"clean_unmount", checked.was_clean},
                                 {"restored", checked.restored_note},
                                 {"problems", report.problems},
                                 {"repaired", report.repaired},
                                 {"inodes", report.inodes},
                                 {"directories", report.directories},
                                 {"files", report.files},
                                 {"entries", report.entries},
                                 {"orphans", report.orphans},
                                 {"extents", report.extents},
                                 {"mapped_bytes", ToBytes(report.mapped_blocks).value},
                                 {"verified_bytes", report.verified_bytes.value},
                                 {"findings", nlohmann::ordered_json::array()}};
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"kind", FindingKindName(finding.kind)},
                                {"severity", SeverityName(finding.severity)},
                                {"text", finding.text},
                                {"repaired", finding.repaired}});
  }
  ShowJson(json);
}

void PrintText(const VerifyArguments& arguments, const std::string& store, const Checked& checked) {
  const FsckReport& report = checked.report;
  if (!checked.was_clean) Print(stdout, store + ": was not unmounted cleanly; checking its last commit\n");
  if (!checked.restored_note.empty()) Print(stdout, checked.restored_note + "\n");
  Table table({{"what"}, {"severity"}, {""}, {"where"}});
  for (const Finding& finding : report.findings) {
    table.Add({std::string(FindingKindName(finding.kind)), SeverityName(finding.severity),
               finding.repaired ? "repaired" : "", Printable(finding.text)});
  }
  if (!table.empty()) Print(stdout, table.ToString());
  if (report.problems > report.findings.size()) {
    Print(stdout, "... and {} more\n", report.problems - report.findings.size());
  }
  Print(stdout, "{}: files {}, directories {}, extents {}, data {}{}\n", store, report.files, report.directories,
        report.extents, FormatSize(ToBytes(report.mapped_blocks)),
        arguments.catalog ? "" : fmt::format(", verified {}", FormatSize(report.verified_bytes)));
  if (report.clean() && !checked.lost) {
    Print(stdout, Paint(Tone::kGood, "clean") + "\n");
  } else if (report.sound() && !checked.lost) {
    Print(stdout, Paint(Tone::kGood, fmt::format("problems: {}, all repaired", report.problems)) + "\n");
  } else {
    Print(stdout, Paint(Tone::kWarning,
                        fmt::format("problems: {}, repaired: {}{}", report.problems, report.repaired,
                                    arguments.repair ? "; the other problems cannot be repaired: restore those files"
                                                     : "; run it with --repair")) +
                      "\n");
  }
}

// Opens the store. With --repair, what it has lost is restored first.
Result<StoreParts> OpenAndRestore(const StoreLocation& store, bool repair, ProgressBar& bar, Checked* checked) {
  const auto show = [&](const Progress& progress) { bar.Update(progress); };
  RecoverReport report;
  auto parts = repair ? RecoverStore(store, {.devices = {}, .progress = show}, &report)
                      : OpenStoreParts(store, {.read_only = true, .progress = show});
  if (parts && !repair) {
    report.note = parts->note;
    report.lost = parts->lost;
  }
  checked->restored = repair && report.restored();
  checked->lost = report.lost;
  checked->restored_note = report.note;
  if (report.wrote_description || !report.superblocks.empty()) {
    checked->restored_note += (report.note.empty() ? "" : "; ") + std::string("store.json or superblocks were rebuilt");
  }
  return parts;
}

// After an error, `checked` has what was restored before.
Result<void> CheckParts(const VerifyArguments& arguments, const StoreLocation& store, Checked* checked) {
  ProgressBar bar("verify");
  ASSIGN_OR_RETURN(StoreParts parts, OpenAndRestore(store, arguments.repair, bar, checked));
  checked->was_clean = parts.was_clean;
  checked->logged = std::ranges::any_of(parts.superblocks, &Superblock::logged);
  const auto begin_repair = [&] {
    checked->repairs = true;
    return BeginRepair(&parts);
  };
  FsckOptions options;
  options.repair = arguments.repair;
  options.before_repair = begin_repair;
  options.verify_data = !arguments.catalog;
  options.device_sizes = DeviceSizes(parts.superblocks);
  options.cancel = &CatchInterrupts();
  options.progress = [&bar](const Progress& progress) { bar.Update(progress); };
  auto report = CheckStore(*parts.catalog, Borrow(parts.devices), options);
  // A store with remaining problems stays marked, so that it is not taken for cleanly closed. An interrupted check has
  // repaired nothing.
  const bool interrupted = !report.has_value() && report.error().code == ErrorCode::kShutdown;
  const bool clean = report.has_value() ? report->sound() : interrupted && parts.was_clean;
  if (arguments.repair && report && checked->lost && !checked->repairs) RETURN_IF_ERROR(begin_repair());
  if (arguments.repair) RETURN_IF_ERROR(parts.catalog->Sync());
  if (arguments.repair && clean) RETURN_IF_ERROR(MarkClean(parts.devices, parts.superblocks));
  if (!report.has_value()) return report.error();
  checked->report = std::move(*report);
  return {};
}

Result<void> Check(const VerifyArguments& arguments, const std::string& target, Checked* checked) {
  RETURN_IF_ERROR(CheckIsNoMount(target));
  ASSIGN_OR_RETURN(const StoreLocation store, FindStore(target, {.damaged_too = arguments.repair}));
  RETURN_IF_ERROR(WaitUntilReleased(FindServed(store)));
  const auto done = CheckParts(arguments, store, checked);
  if (!arguments.repair || (!done && !checked->repairs)) return done;
  // A directory keeps its index. With a log, a repair that follows and is killed does not take this one back.
  const bool settled = done && checked->repairs && checked->logged && checked->report.sound();
  if (!store.described && !settled) return done;
  const auto written = WriteLog(store);
  if (!done && !written) Print(stderr, "weightfs: {}\n", ToString(written.error()));
  return done ? written : done;
}

}  // namespace

int VerifyStore(const VerifyArguments& arguments, const std::string& store) {
  Checked checked;
  if (const auto done = Check(arguments, store, &checked); !done.has_value()) {
    if (!checked.restored_note.empty()) Print(stderr, "weightfs: " + checked.restored_note + "\n");
    const int restored = (checked.restored ? kFsckCorrected : 0) | (checked.lost ? kFsckUncorrected : 0);
    const bool interrupted = done.error().code == ErrorCode::kShutdown;
    return restored | Fail(done.error(), interrupted ? kFsckCancelled : kFsckOperationalError);
  }
  arguments.json ? PrintJson(store, checked) : PrintText(arguments, store, checked);
  return ExitCode(checked);
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// Checks a store that is not mounted, and repairs it on request.
#include <fmt/format.h>

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
#include "store/volume/salvage_store.h"

namespace weightfs::cli {
namespace {

std::string SeverityName(FindingSeverity severity) { return severity == FindingSeverity::kMajor ? "major" : "minor"; }

struct Checked {
  FsckReport report;
  std::string replica;    // a line about the replica; empty if the catalog lacks nothing
  bool restored = false;  // the replica gave back what was lost
  bool lost = false;      // something is, or stays, lost
  bool was_clean = true;  // the last mount closed the store cleanly
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
                                 {"replica", checked.replica},
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
  if (!checked.replica.empty()) Print(stdout, checked.replica + "\n");
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

// Rebuilds the catalog from what can be read of it, because no replica can be used for the reason `why`.
Result<void> Salvage(const std::string& store, const Error& damage, const Error& why, Checked* checked) {
  const auto salvaged = SalvageStore(store);
  if (!salvaged.has_value()) {
    return MakeError(damage.code, "{}; {}; {}", ToString(damage), ToString(why), ToString(salvaged.error()));
  }
  checked->restored = true;
  checked->lost = !salvaged->complete();
  checked->replica = fmt::format("{}; {}", ToString(why), DescribeSalvaged(*salvaged));
  return {};
}

// Rebuilds what the replica can give back after `damage`.
Result<void> Recover(const std::string& store, const Error& damage, ProgressBar& bar, Checked* checked) {
  RecoverOptions options{.devices = {}, .progress = [&](const Progress& progress) { bar.Update(progress); }};
  const auto recovered = RecoverStore(store, options);
  const bool no_replica = !recovered.has_value() && (recovered.error().code == ErrorCode::kNotFound ||
                                                     recovered.error().code == ErrorCode::kCorrupt);
  if (no_replica && damage.code == ErrorCode::kCorrupt) return Salvage(store, damage, recovered.error(), checked);
  if (!recovered.has_value()) {
    return MakeError(damage.code, "{}; {}", ToString(damage), ToString(recovered.error()));
  }
  checked->restored = true;
  checked->lost = recovered->restored && !recovered->restored->complete();
  checked->replica = recovered->restored ? DescribeRestored(*recovered->restored)
                                         : "store.json or superblocks were rebuilt from the replica";
  return {};
}

// Opens the store. With --repair, a catalog that is damaged or older than its replica is restored first.
Result<StoreParts> OpenAndRestore(const std::string& store, const OpenOptions& open, ProgressBar& bar,
                                  Checked* checked) {
  auto parts = OpenStoreParts(store, open);
  if (!parts.has_value()) {
    const ErrorCode code = parts.error().code;
    const bool damaged = code == ErrorCode::kCorrupt || (code == ErrorCode::kNotFound && HoldsStore(store));
    if (!damaged || !open.repair) return parts;
    RETURN_IF_ERROR(Recover(store, parts.error(), bar, checked));
    return OpenStoreParts(store, open);
  }
  if (parts->replica.CatalogIsBehind()) {
    const std::string behind = DescribeBehind(store, parts->replica);
    if (!open.repair) {
      checked->replica = behind;
      checked->lost = true;
      return parts;
    }
    const auto caught_up = CatchUp(Borrow(parts->devices), parts->replica, *parts->catalog);
    if (caught_up.has_value()) {
      checked->restored = true;
      checked->lost = !caught_up->complete();
      checked->replica = DescribeRestored(*caught_up);
      return parts;
    }
    parts = Error{ErrorCode::kCorrupt, behind};  // closes the store
  } else if (open.repair && !IsReadable(*parts->catalog)) {
    parts = MakeError(ErrorCode::kCorrupt, "{}: the catalog is damaged", store);
  }
  if (parts.has_value()) return parts;
  RETURN_IF_ERROR(Recover(store, parts.error(), bar, checked));
  return OpenStoreParts(store, open);
}

// After an error, `checked` has what was restored before.
Result<void> Check(const VerifyArguments& arguments, const std::string& store, Checked* checked) {
  OpenOptions open;
  open.read_only = !arguments.repair;
  open.repair = arguments.repair;
  RETURN_IF_ERROR(CheckIsNoMount(store));
  RETURN_IF_ERROR(WaitUntilReleased(store));
  ProgressBar bar("verify");
  ASSIGN_OR_RETURN(StoreParts parts, OpenAndRestore(store, open, bar, checked));
  checked->was_clean = parts.was_clean;
  if (!parts.note.empty()) {
    checked->replica = parts.note;
    checked->restored = arguments.repair;
    checked->lost = checked->lost || parts.lost;
  }
  if (arguments.repair) RETURN_IF_ERROR(LeaveLog(store, &parts));
  FsckOptions options;
  options.repair = arguments.repair;
  options.verify_data = !arguments.catalog;
  options.device_sizes = DeviceSizes(parts.superblocks);
  options.cancel = &CatchInterrupts();
  options.progress = [&bar](const Progress& progress) { bar.Update(progress); };
  auto report = CheckStore(*parts.catalog, Borrow(parts.devices), options);
  // A store with remaining problems stays marked, so that it is not taken for cleanly closed. An interrupted check has
  // repaired nothing.
  const bool interrupted = !report.has_value() && report.error().code == ErrorCode::kShutdown;
  const bool clean = report.has_value() ? report->sound() : interrupted && parts.was_clean;
  if (arguments.repair && clean) RETURN_IF_ERROR(MarkClean(parts.devices, parts.superblocks));
  if (!report.has_value()) return report.error();
  checked->report = std::move(*report);
  return {};
}

}  // namespace

int VerifyStore(const VerifyArguments& arguments, const std::string& store) {
  Checked checked;
  if (const auto done = Check(arguments, store, &checked); !done.has_value()) {
    if (!checked.replica.empty()) Print(stderr, "weightfs: " + checked.replica + "\n");
    const int restored = (checked.restored ? kFsckCorrected : 0) | (checked.lost ? kFsckUncorrected : 0);
    const bool interrupted = done.error().code == ErrorCode::kShutdown;
    return restored | Fail(done.error(), interrupted ? kFsckCancelled : kFsckOperationalError);
  }
  arguments.json ? PrintJson(store, checked) : PrintText(arguments, store, checked);
  return ExitCode(checked);
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs recover: rebuilds what a store has lost from the log on its devices.

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/progress.h"
#include "common/shell_quote.h"
#include "store/volume/open_catalog.h"
#include "store/volume/recover_store.h"
#include "store/volume/store_session.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store;
  std::vector<std::string> devices;
  bool json = false;
};

void PrintJson(const Arguments& arguments, const RecoverReport& report) {
  const nlohmann::ordered_json json = {{"store", arguments.store},
                                       {"rebuilt_catalog", report.rebuilt},
                                       {"restored", report.note},
                                       {"lost", report.lost},
                                       {"wrote_description", report.wrote_description},
                                       {"rebuilt_superblocks", report.superblocks}};
  ShowJson(json);
}

void PrintText(const Arguments& arguments, const RecoverReport& report) {
  if (report.wrote_description) Print(stdout, "store.json: rebuilt\n");
  for (const std::string& device : report.superblocks) Print(stdout, "{}: superblock rebuilt\n", device);
  if (!report.note.empty()) Print(stdout, "{}: {}\n", arguments.store, report.note);
  Print(stdout, "Check it now with: weightfs verify {} --repair\n", ShellQuote(arguments.store));
}

Result<void> Recover(const StoreLocation& store, const RecoverOptions& options, RecoverReport* report) {
  ASSIGN_OR_RETURN(StoreParts parts, RecoverStore(store, options, report));
  if (report->lost) RETURN_IF_ERROR(BeginRepair(&parts));
  RETURN_IF_ERROR(parts.catalog->Sync());
  if (parts.was_clean && !report->lost) RETURN_IF_ERROR(MarkClean(parts.devices, parts.superblocks));
  return {};
}

Result<int> Run(const Arguments& arguments) {
  RETURN_IF_ERROR(CheckIsNoMount(arguments.store));
  ASSIGN_OR_RETURN(const StoreLocation store, FindStore(arguments.store, {.damaged_too = true}));
  if (store.described && !arguments.devices.empty()) {
    return FailUsage("recover", "STORE names the devices already; omit --device");
  }
  RETURN_IF_ERROR(WaitUntilReleased(FindServed(store)));
  ProgressBar bar("recover");
  RecoverOptions options{.devices = arguments.devices,
                         .progress = [&bar](const Progress& progress) { bar.Update(progress); }};
  RecoverReport report;
  const auto done = Recover(store, options, &report);
  // A damaged log is written anew by the next mount.
  const auto written = store.described && report.lost ? WriteLog(store) : Result<void>();
  if (!done && !written) Print(stderr, "weightfs: {}\n", ToString(written.error()));
  RETURN_IF_ERROR(done);
  RETURN_IF_ERROR(written);
  if (!report.restored()) {
    return MakeError(ErrorCode::kExists, "{}: nothing is lost ('weightfs verify {}' checks the store)",
                     arguments.store, ShellQuote(arguments.store));
  }
  arguments.json ? PrintJson(arguments, report) : PrintText(arguments, report);
  return report.lost ? kFailure : kSuccess;
}

}  // namespace

Command RecoverCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("recover", "Rebuild what a store has lost from the log on its devices");
  command.Add("STORE", &arguments->store,
              "Directory of the store, which is created if it is missing and --device is given; or the devices of the "
              "store, with commas between them");
  command.Add("--device PATH", &arguments->devices,
              "Block device or pool file of the store; needed if store.json is lost; repeat the option for several",
              "/dev/disk/by-id/nvme-A");
  command.Add("--json", &arguments->json, "Print the report as JSON");
  command.footer =
      "The devices of a store have everything. recover rebuilds store.json and the superblocks if they are lost, and\n"
      "the index of the catalog (STORE/meta), which a mount rebuilds by itself, too.\n\n"
      "Examples:\n"
      "  weightfs recover /srv/tensors\n"
      "  weightfs recover /srv/tensors --device /dev/disk/by-id/nvme-A --device /dev/disk/by-id/nvme-B\n"
      "  weightfs recover /dev/disk/by-id/nvme-A";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs recover: rebuilds a lost or damaged catalog from its replica on the devices.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/keepers.h"
#include "cli/mount_table.h"
#include "cli/progress.h"
#include "common/shell_quote.h"
#include "store/volume/recover_store.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store;
  std::vector<std::string> devices;
  bool json = false;
};

uint64_t DamagedFrames(const RecoverReport& report) { return report.restored ? report.restored->damaged_frames : 0; }

void PrintJson(const Arguments& arguments, const RecoverReport& report) {
  const nlohmann::ordered_json json = {{"store", arguments.store},
                                       {"rebuilt_catalog", report.restored.has_value()},
                                       {"restored", report.restored ? DescribeRestored(*report.restored) : ""},
                                       {"damaged_frames", DamagedFrames(report)},
                                       {"old_catalog", report.kept},
                                       {"wrote_description", report.wrote_description},
                                       {"rebuilt_superblocks", report.superblocks}};
  ShowJson(json);
}

void PrintText(const Arguments& arguments, const RecoverReport& report) {
  if (report.wrote_description) Print(stdout, "store.json: rebuilt\n");
  for (const std::string& device : report.superblocks) Print(stdout, "{}: superblock rebuilt\n", device);
  if (!report.restored) return Print(stdout, "The catalog lacks nothing and was not changed.\n");
  Print(stdout, "{}: {}; later changes are missing\n", arguments.store, DescribeRestored(*report.restored));
  if (!report.kept.empty()) Print(stdout, "{}: the old catalog\n", report.kept);
  Print(stdout, "Check it now with: weightfs verify {} --repair\n", ShellQuote(arguments.store));
}

Result<int> Run(const Arguments& arguments) {
  RETURN_IF_ERROR(CheckIsNoMount(arguments.store));
  RETURN_IF_ERROR(WaitUntilReleased(arguments.store));
  ProgressBar bar("recover");
  RecoverOptions options{.devices = arguments.devices,
                         .progress = [&bar](const Progress& progress) { bar.Update(progress); }};
  ASSIGN_OR_RETURN(const RecoverReport report, RecoverStore(arguments.store, options));
  arguments.json ? PrintJson(arguments, report) : PrintText(arguments, report);
  return !report.restored || report.restored->complete() ? kSuccess : kFailure;
}

}  // namespace

Command RecoverCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("recover", "Rebuild a lost or damaged catalog from its replica on the devices");
  command.Add("STORE", &arguments->store, "Directory of the store; with --device it is created if it is missing");
  command.Add("--device PATH", &arguments->devices,
              "Block device or pool file of the store; needed if store.json is lost; repeat the option for several",
              "/dev/disk/by-id/nvme-A");
  command.Add("--json", &arguments->json, "Print the report as JSON");
  command.footer =
      "A mount keeps a replica of the catalog (STORE/meta) on the devices. recover writes a new catalog from it, and\n"
      "store.json and the superblocks if they are lost. It refuses a catalog that can be read and lacks nothing. The\n"
      "old catalog is kept beside the new one.\n\n"
      "Examples:\n"
      "  weightfs recover /srv/tensors\n"
      "  weightfs recover /srv/tensors --device /dev/disk/by-id/nvme-A --device /dev/disk/by-id/nvme-B";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

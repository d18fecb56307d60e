// SPDX-License-Identifier: Apache-2.0
// weightfs doctor: shows which features this machine offers, which of them weightfs uses, and what would help.

#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/check/machine_checks.h"
#include "cli/commands.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "common/printable.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store;
  bool json = false, all = false;
};

Tone ToneOf(Check::State state) {
  switch (state) {
    case Check::State::kUsed: return Tone::kGood;
    case Check::State::kNotUsed: return Tone::kDim;
    default: return Tone::kWarning;
  }
}

bool Recommends(const Check& check) {
  return !check.next.empty() && (check.state == Check::State::kWouldHelp || check.state == Check::State::kMissing);
}

// One line: the state of the store, or of the machine if no store is named.
std::string Verdict(const std::string& store, const std::vector<Check>& checks) {
  std::vector<std::string> missing;
  std::string found;
  bool good = true;
  for (const Check& check : checks) {
    if (check.state == Check::State::kMissing) missing.push_back(check.name);
    if (check.name != kStoreCheck) continue;  // there is at most one
    found = ": " + check.found;
    good = check.state == Check::State::kUsed;
  }
  const std::string subject = store.empty() ? "this machine" : Printable(store);
  if (!missing.empty()) {
    return Paint(Tone::kWarning,
                 fmt::format("{}: no mount is possible ({}){}", subject, fmt::join(missing, ", "), found));
  }
  const auto steps = std::ranges::count_if(checks, Recommends);
  return Paint(good ? Tone::kGood : Tone::kWarning,
               fmt::format("{}: {}{}{}", subject, good ? "ok" : "needs attention", found,
                           steps == 0 ? "" : fmt::format("; next steps below: {}", steps)));
}

void PrintTable(const Arguments& arguments, const std::vector<Check>& checks) {
  Print(stdout, Verdict(arguments.store, checks) + "\n\n");
  Table table({{"what"}, {"state"}, {"found"}});
  for (const Check& check : checks) {
    if (check.name == kStoreCheck) continue;
    table.Add({check.name, Paint(ToneOf(check.state), StateName(check.state)), check.found});
  }
  Print(stdout, table.ToString());
  bool titled = false;
  for (const Check& check : checks) {
    if (!Recommends(check)) continue;
    if (!std::exchange(titled, true)) Print(stdout, "\n{}\n", Paint(Tone::kBold, "Next steps"));
    Print(stdout, "  {}: {}\n", check.name, check.next);
  }
}

void PrintJson(const std::vector<Check>& checks) {
  auto json = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    json.push_back(
        {{"name", check.name}, {"found", check.found}, {"state", StateName(check.state)}, {"next", check.next}});
  }
  ShowJson(json);
}

Result<int> Run(const Arguments& arguments) {
  std::vector<Check> checks;
  const auto add = [&checks](std::vector<Check> more) {
    std::move(more.begin(), more.end(), std::back_inserter(checks));
  };
  add(CheckMachine());
  add(CheckFuseFeatures(arguments.all || arguments.json));
  add(CheckGpus());
  if (!arguments.store.empty()) {
    RETURN_IF_ERROR(CheckIsNoMount(arguments.store, /*will_lock=*/false));
    ASSIGN_OR_RETURN(const StoreLocation named, FindStore(arguments.store));
    const StoreLocation store = FindServed(named);
    ASSIGN_OR_RETURN(const auto description, Describe(store));
    checks.insert(checks.begin(), CheckStore(store));
    for (const auto& device : description.devices) {
      add(CheckDevice(fmt::format("device {}", device.index.value), DevicePath(store.directory, device)));
    }
  }
  arguments.json ? PrintJson(checks) : PrintTable(arguments, checks);
  const bool able =
      std::ranges::none_of(checks, [](const Check& check) { return check.state == Check::State::kMissing; });
  return able ? kSuccess : kFailure;
}

}  // namespace

Command DoctorCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("doctor", "Check this machine: available features, features in use, recommended changes");
  command.Add("[STORE]", &arguments->store, "Also check this store, a directory or devices, and its devices");
  command.Add("--all", &arguments->all, "One line for each feature of FUSE");
  command.Add("--json", &arguments->json, "Print JSON");
  command.footer =
      "The first line says whether all is well. Exits with 1 if the store cannot be opened, or if a feature is\n"
      "missing that every mount needs.\n\n"
      "Examples:\n"
      "  weightfs doctor\n"
      "  weightfs doctor /srv/tensors\n"
      "  weightfs doctor /dev/disk/by-id/nvme-A";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

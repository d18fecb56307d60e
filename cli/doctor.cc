// SPDX-License-Identifier: Apache-2.0
// weightfs doctor: shows which features this machine offers, which of them weightfs uses, and what would help.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/gpu_check.h"
#include "cli/machine_checks.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store;
  bool json = false;
};

Tone ToneOf(Check::State state) {
  switch (state) {
    case Check::State::kUsed: return Tone::kGood;
    case Check::State::kNotUsed: return Tone::kDim;
    default: return Tone::kWarning;
  }
}

void PrintTable(const std::vector<Check>& checks) {
  Table table({{"what"}, {"state"}, {"found"}});
  for (const Check& check : checks) {
    table.Add({check.name, Paint(ToneOf(check.state), StateName(check.state)), check.found});
  }
  Print(stdout, table.ToString());
  bool titled = false;
  for (const Check& check : checks) {
    if (check.next.empty() || check.state == Check::State::kUsed || check.state == Check::State::kNotUsed) continue;
    if (!titled) Print(stdout, fmt::format("\n{}\n", Paint(Tone::kBold, "Next steps")));
    titled = true;
    Print(stdout, fmt::format("  {}: {}\n", check.name, check.next));
  }
  if (!titled) Print(stdout, "\nNothing to do: every feature that weightfs can use is available.\n");
}

void PrintJson(const std::vector<Check>& checks) {
  auto json = nlohmann::ordered_json::array();
  for (const Check& check : checks) {
    json.push_back(
        {{"name", check.name}, {"found", check.found}, {"state", StateName(check.state)}, {"next", check.next}});
  }
  Print(stdout, JsonText(json) + "\n");
}

int Run(const Arguments& arguments) {
  std::vector<Check> checks = CheckMachine();
  const auto add = [&checks](std::vector<Check> more) {
    std::move(more.begin(), more.end(), std::back_inserter(checks));
  };
  add(CheckFuseFeatures());
  add(CheckGpus());
  if (!arguments.store.empty()) {
    if (const auto checked = CheckIsNoMount(arguments.store, /*will_lock=*/false); !checked.has_value()) {
      return Fail(checked.error());
    }
    const auto description = ReadStoreDescription(arguments.store);
    if (!description.has_value()) return Fail(description.error());
    for (const auto& device : description->devices) {
      add(CheckDevice(fmt::format("device {}", device.index.value), DevicePath(arguments.store, device)));
    }
  }
  arguments.json ? PrintJson(checks) : PrintTable(checks);
  const bool able = std::none_of(checks.begin(), checks.end(),
                                 [](const Check& check) { return check.state == Check::State::kMissing; });
  return able ? kSuccess : kFailure;
}

}  // namespace

void AddDoctor(CLI::App& app, int* exit_code) {
  auto* command =
      app.add_subcommand("doctor", "Check this machine: available features, features in use, recommended changes");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("STORE", arguments->store, "Also check the devices of this store")->type_name("");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->footer(
      "Exits with 1 if a feature is missing that every mount needs.\n\n"
      "Examples:\n"
      "  weightfs doctor\n"
      "  weightfs doctor /srv/tensors");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs format: creates a store.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/store_wait.h"
#include "cli/usage.h"
#include "common/shell_quote.h"
#include "common/size_text.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store, size;
  std::vector<std::string> devices;
  bool force = false, sparse = false, json = false;
};

void Report(const Arguments& arguments, const StoreDescription& description) {
  if (arguments.json) {
    Print(stdout, ToJson(description));
    return;
  }
  ByteCount total;
  for (const auto& device : description.devices) total += device.size;
  Print(stdout, fmt::format("Created a store of {} in {}\n", Paint(Tone::kBold, FormatSize(total)), arguments.store));
  Table table({{"device", true}, {"size", true}, {"path"}});
  for (const auto& device : description.devices) {
    table.Add({fmt::format("{}", device.index.value), FormatSize(device.size), DevicePath(arguments.store, device)});
  }
  Print(stdout, fmt::format("{}Mount it with: weightfs mount {} DIR\n", table.ToString(), ShellQuote(arguments.store)));
}

int Run(const Arguments& arguments) {
  FormatOptions options;
  if (!arguments.size.empty()) {
    const auto size = ParseSize(arguments.size);
    if (!size.has_value()) return FailUsage("format", Line(size.error()));
    options.size = *size;
  } else if (arguments.devices.empty()) {
    return FailUsage("format", "--size or --device is missing; write e.g. --size 8G");
  }
  options.devices = arguments.devices;
  options.force = arguments.force;
  options.preallocate = !arguments.sparse;
  options.root_uid = geteuid();
  options.root_gid = getegid();
  options.cancel = &CatchInterrupts();
  if (arguments.force) {
    if (const auto released = WaitUntilReleased(arguments.store); !released.has_value()) return Fail(released.error());
  }
  Result<StoreDescription> made = ErrorCode::kInvalid;
  {
    ProgressBar bar("format");
    options.progress = [&bar](ByteCount done, ByteCount total) {
      bar.Update({.step = "writing zeros", .done = done.value, .total = total.value});
    };
    made = FormatStore(arguments.store, options);
  }
  if (!made.has_value()) return Fail(made.error());
  Report(arguments, *made);
  return kSuccess;
}

}  // namespace

void AddFormat(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("format", "Create a store: a directory with its catalog, and a pool for the data");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("STORE", arguments->store, "Directory of the store: a new or an empty directory")
      ->type_name("")
      ->required();
  command->add_option("--size", arguments->size, "Size of the pool file STORE/pool: a number with K, M, G or T")
      ->type_name("SIZE")
      ->check(CheckSize);
  command
      ->add_option("--device", arguments->devices,
                   "Block device or file that holds the data instead of a pool file; repeat the option for several: "
                   "large tensors are striped over them")
      ->type_name("PATH")
      ->allow_extra_args(false);
  command->add_flag("--force", arguments->force, "Overwrite an existing store, and any other content of the devices");
  command->add_flag("--sparse", arguments->sparse,
                    "Do not allocate the pool file, and do not fill it with zeros: fast, but the first "
                    "writes are slower and may fail because the disk is full");
  command->add_flag("--json", arguments->json, "Print the new store's description as JSON");
  command->footer(
      "Examples:\n"
      "  weightfs format /srv/tensors --size 200G\n"
      "  weightfs format /srv/tensors --device /dev/nvme1n1 --device /dev/nvme2n1");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

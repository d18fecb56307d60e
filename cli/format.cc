// weightfs format: makes a store.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/store_wait.h"
#include "common/shell_quote.h"
#include "common/size_text.h"
#include "store/store_directory.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string store, size;
  std::vector<std::string> devices;
  bool force = false, sparse = false, json = false;
};

void Report(const Arguments& arguments, const StoreDescription& description) {
  if (arguments.json) {
    fmt::print("{}", ToJson(description));
    return;
  }
  ByteCount total;
  for (const auto& device : description.devices) total += device.size;
  fmt::print("Made a store of {} in {}\n", Paint(Tone::kBold, FormatSize(total)), arguments.store);
  Table table({{"device", true}, {"size", true}, {"path"}});
  for (const auto& device : description.devices) {
    table.Add({fmt::format("{}", device.index.value), FormatSize(device.size),
               DevicePath(arguments.store, device)});
  }
  fmt::print("{}Mount it with: weightfs mount {} DIR\n", table.ToString(), ShellQuote(arguments.store));
}

int Run(const Arguments& arguments) {
  FormatOptions options;
  if (!arguments.size.empty()) {
    const auto size = ParseSize(arguments.size);
    if (!size.has_value()) return Fail(size.error(), kUsage);
    options.size = *size;
  } else if (arguments.devices.empty()) {
    return Fail({ErrorCode::kInvalid, "how large is the store? Give --size, e.g. --size 8G, or --device PATH"}, kUsage);
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
    ProgressBar bar("Writing zeros");
    options.progress = [&bar](ByteCount done, ByteCount total) { bar.Update(done, total); };
    made = FormatStore(arguments.store, options);
  }
  if (!made.has_value()) return Fail(made.error());
  Report(arguments, *made);
  return kSuccess;
}

}  // namespace

void AddFormat(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("format", "Make a store: a directory with its catalog, and a pool for the data");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("STORE", arguments->store, "Directory of the store; made where it is missing, else empty")
      ->type_name("")
      ->required();
  command->add_option("--size", arguments->size, "Size of the pool file STORE/pool: a number with K, M, G or T")
      ->type_name("SIZE");
  command->add_option("--device", arguments->devices,
                      "Block device or file to hold the data instead of a pool file; repeat it for several, over which "
                      "large tensors are striped")
      ->type_name("PATH")
      ->allow_extra_args(false);
  command->add_flag("--force", arguments->force, "Overwrite a store, or whatever else the devices hold");
  command->add_flag("--sparse", arguments->sparse,
                    "Do not reserve the file's space nor write it once with zeros: quick, but the first writes to it "
                    "are slower and may find the disk full");
  command->add_flag("--json", arguments->json, "Print the new store's description as JSON");
  command->footer(
      "Examples:\n"
      "  weightfs format /srv/tensors --size 200G\n"
      "  weightfs format /srv/tensors --device /dev/nvme1n1 --device /dev/nvme2n1");
  command->callback([arguments, exit_code] { *exit_code = Run(*arguments); });
}

}  // namespace weightfs::cli

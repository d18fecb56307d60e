// SPDX-License-Identifier: Apache-2.0
// weightfs format: creates a store.
#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/keepers.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "common/shell_quote.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kExplainedFill = 1 << 30;  // bytes; less takes no time

struct Arguments {
  std::string store, size, fill, index;
  std::vector<std::string> devices;
  bool force = false, discard_damaged = false, partition = false, sparse = false, json = false;
};

// A value of --fill; nullopt for any other text.
std::optional<PoolFill> ParseFill(std::string_view text) {
  if (text == "auto") return PoolFill::kAuto;
  if (text == "zeros") return PoolFill::kZeros;
  if (text == "data") return PoolFill::kData;
  return std::nullopt;
}

std::string CheckFill(const std::string& text) {
  if (ParseFill(text).has_value()) return {};
  return fmt::format("'{}' is not one of auto, zeros and data", text);
}

std::string_view NameOf(PoolFill content) {
  return content == PoolFill::kZeros ? "zeros" : content == PoolFill::kData ? "data" : "nothing";
}

// The description, and what the devices were filled with.
Json ReportAsJson(const NewStore& made) {
  Json report = Json::parse(ToJson(made.description));
  for (size_t index = 0; index < made.fill.devices.size(); ++index) {
    const FillReport::Device& device = made.fill.devices[index];
    report["devices"][index]["fill"] = NameOf(device.content);
    if (device.first_write_slowdown) report["devices"][index]["first_write_slowdown"] = *device.first_write_slowdown;
  }
  report["fill_seconds"] = made.fill.seconds;
  return report;
}

// One line: the content, the time, and the result of the probe; of several devices the greatest slowdown.
std::string FillText(const FillReport& fill) {
  std::set<std::string_view> contents;
  std::optional<double> slowdown;
  for (const FillReport::Device& device : fill.devices) {
    if (device.content != PoolFill::kNone) contents.insert(NameOf(device.content));
    slowdown = std::max(slowdown, device.first_write_slowdown);  // nullopt is the least
  }
  if (contents.empty()) return "Not filled: the first writes may be slower than later ones";
  const std::string text = fmt::format("Filled with {} in {:.1f} s, so that the first tensors are written as fast as "
                                       "later ones",
                                       fmt::join(contents, " and "), fill.seconds);
  if (!slowdown) return text;
  return fmt::format("{}; in a probe, a first write over zeros took {:.2f} times as long as a later one", text,
                     *slowdown);
}

void Report(const Arguments& arguments, const NewStore& made) {
  if (arguments.json) {
    ShowJson(ReportAsJson(made));
    return;
  }
  ByteCount total;
  for (const auto& device : made.description.devices) total += device.size;
  const std::string& store = arguments.store.empty() ? made.location.name : arguments.store;
  Print(stdout, "Created a store of {} {} {}\n", Paint(Tone::kBold, FormatSize(total)),
        arguments.store.empty() ? "on" : "in", store);
  Table table({{"device", true}, {"size", true}, {"path"}});
  for (const auto& device : made.description.devices) {
    table.Add({fmt::format("{}", device.index.value), FormatSize(device.size), DevicePath(store, device)});
  }
  Print(stdout, "{}{}\nMount it with: weightfs mount {} DIR\n", table.ToString(), FillText(made.fill),
        ShellQuote(store));
}

Result<int> Run(const Arguments& arguments) {
  FormatOptions options;
  if (arguments.store.empty() && arguments.devices.empty()) {
    return FailUsage("format", "STORE is missing; write e.g. 'weightfs format /srv/tensors --size 200G', or --device "
                               "alone for a store that needs no directory");
  }
  if (!arguments.size.empty()) {
    const auto size = ParseSize(arguments.size);
    if (!size.has_value()) return FailUsage("format", Line(size.error()));
    options.size = *size;
  } else if (arguments.devices.empty()) {
    return FailUsage("format", "--size or --device is missing; write e.g. --size 8G");
  }
  if (!arguments.index.empty() && !arguments.store.empty()) {
    return FailUsage("format", "--index is for a store without a directory; omit it or STORE");
  }
  options.index = arguments.index;
  options.devices = arguments.devices;
  options.partition = arguments.partition;
  if (arguments.partition && arguments.devices.empty()) {
    return FailUsage("format", "--partition makes a partition of a disk; name the disk with --device");
  }
  options.force = arguments.force || arguments.discard_damaged;
  options.discard_damaged = arguments.discard_damaged;
  if (arguments.sparse && !arguments.fill.empty()) {
    return FailUsage("format", "--sparse leaves the pool unfilled, and --fill fills it; omit one of them");
  }
  if (arguments.sparse) options.fill = PoolFill::kNone;
  if (!arguments.fill.empty()) options.fill = *ParseFill(arguments.fill);
  options.root_uid = geteuid();
  options.root_gid = getegid();
  options.cancel = &CatchInterrupts();
  if (options.force && !arguments.store.empty()) RETURN_IF_ERROR(WaitUntilReleased(arguments.store));
  std::optional<ProgressBar> bar("format");
  options.progress = [&bar, explains = !arguments.json](const Progress& progress) mutable {
    if (std::exchange(explains, false) && progress.total >= kExplainedFill) {
      Print(stdout,
            "Filling the pool once ({}), because disks write faster to space that has content; to skip it: Ctrl-C, and "
            "--sparse\n",
            FormatSize(ByteCount{progress.total}));
      std::fflush(stdout);
    }
    bar->Update(progress);
  };
  ASSIGN_OR_RETURN(const NewStore made, FormatStore(arguments.store, options));
  bar.reset();
  Report(arguments, made);
  return kSuccess;
}

}  // namespace

Command FormatCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("format", "Create a store on devices, or in a directory with a pool file");
  command
      .Add("[STORE]", &arguments->store,
           "Directory of the store, new or empty; without it, the store is its devices, and needs no directory")
      .kind = ValueKind::kDirectory;
  command.AddSize("--size SIZE", &arguments->size,
                  "Size of the pool file STORE/pool, or of each --device that format makes: a number with K, M, G or T",
                  "8G");
  command.Add("--device PATH", &arguments->devices,
              "Block device or file that has the data and everything else; repeat the option for several: large "
              "tensors are striped over them",
              "/dev/disk/by-id/nvme-A");
  command.Add("--index DIR", &arguments->index,
              "Directory of the index of a store without STORE; default: /var/cache/weightfs/ID, or "
              "~/.cache/weightfs/ID for users other than root",
              "/srv/index");
  command.Add("--partition", &arguments->partition,
              "Make a partition over each --device, which must be a whole disk without partitions, and create the "
              "store in it: disk tools show the partition's type and its name, weightfs-ID-NUMBER");
  command.Add("--force", &arguments->force, "Overwrite an existing store, and any other content of the devices");
  command.Add("--discard-damaged", &arguments->discard_damaged,
              "Overwrite also what is left of a damaged store, which 'weightfs recover' could rebuild");
  command
      .Add("--fill WHAT", &arguments->fill,
           "Initial content of the pool: zeros; data, which is random bytes; or auto, which leaves block devices as "
           "they are, and fills files with data if a probe of at most two seconds finds that the disk does not store "
           "zeros (some virtual and thin disks), because such a disk writes more slowly to a location without data, "
           "otherwise with zeros. Default: auto",
           "data")
      .check = CheckFill;
  command.Add("--sparse", &arguments->sparse,
              "Do not allocate the pool file, and do not fill it: fast, but the first writes are slower and may fail "
              "because the disk is full");
  command.Add("--json", &arguments->json,
              "Print the new store's description as JSON, with what its devices were filled with");
  command.footer =
      "Examples:\n"
      "  weightfs format --device /dev/disk/by-id/nvme-A\n"
      "  weightfs format /srv/tensors --size 200G\n"
      "  weightfs format /srv/tensors --partition --device /dev/disk/by-id/nvme-A\n"
      "  weightfs format /srv/tensors --device /dev/disk/by-id/nvme-A --device /dev/disk/by-id/nvme-B\n"
      "  weightfs format /srv/tensors --device /dev/vdb --fill data";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

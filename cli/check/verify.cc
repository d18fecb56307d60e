// SPDX-License-Identifier: Apache-2.0
// weightfs verify: compares everything that a store, a mount, files or a version in a bucket has with its checksums,
// and repairs what can be repaired. The exit codes are those of fsck(8).
#include "cli/check/verify.h"

#include <sys/statvfs.h>

#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help/usage.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "common/size_text.h"
#include "remote/pull.h"
#include "remote/push.h"

namespace weightfs::cli {
namespace {

bool IsUrl(const std::string& target) { return target.starts_with("s3://"); }

// What is on a mount is read through it, and a mounted store through its mount. nullopt: the target is, or should be, a
// store that nobody serves.
Result<std::optional<std::string>> PathOnMount(const VerifyArguments& arguments, const std::string& target) {
  if (arguments.catalog || arguments.repair) return std::optional<std::string>();
  const bool store = HoldsStore(target) || NamesDevices(target);
  if (store) {
    ASSIGN_OR_RETURN(const StoreLocation named, FindStore(target));
    const StoreLocation location = FindServed(named);
    // A bind mount of a part does not stand for the store, nor does a mount whose process is gone.
    const auto mount = FindMountOfStore(location, ReadStoreHolder(location.directory));
    struct statvfs space = {};
    if (mount && mount->root == "/" && statvfs(mount->directory.c_str(), &space) == 0) return mount->directory;
    if (Describe(location).has_value()) return std::optional<std::string>();
  }
  const auto opened = OpenOnMount(target);
  if (opened.has_value()) return std::optional(target);
  if (store || FindDamage(target)) return std::optional<std::string>();
  if (opened.error().code != ErrorCode::kInvalid) return opened.error();
  return MakeError(ErrorCode::kInvalid,
                   "{}: neither a store nor in a mount of weightfs; 'findmnt -t fuse.weightfs' lists the mounts",
                   target);
}

Result<int> CheckVersion(const VerifyArguments& arguments, const std::string& target) {
  ASSIGN_OR_RETURN(OpenedSeries opened, OpenVersion(target, arguments.s3));
  const remote::Series& series = *opened.series;
  if (!opened.version) {
    ASSIGN_OR_RETURN(opened.version, remote::FindVersion(series, std::nullopt));
  }
  const remote::Manifest& manifest = *opened.version;
  const std::string url = series.url(manifest.version);
  std::optional<TransferProgress> progress(std::in_place, "verify", url, /*lines=*/false);
  const auto verified =
      remote::VerifyVersion(series, manifest, [&](uint64_t done, uint64_t total) { progress->Update(done, total); });
  progress.reset();
  if (!verified.has_value()) {
    if (auto removed = FindRemoval(verified.error(), series, manifest.version)) return std::move(*removed);
    // An object of a complete version that is missing is damage, too.
    const ErrorCode code = verified.error().code;
    if (code != ErrorCode::kCorrupt && code != ErrorCode::kNotFound) return verified.error();
  }
  const std::string damage = verified.has_value() ? "" : Line(verified.error());
  const uint64_t files = manifest.files.size(), bytes = manifest.bytes();
  if (arguments.json) {
    ShowJson({{"url", url}, {"files", files}, {"bytes", bytes}, {"damage", damage}});
  } else {
    Print(stdout, "{}: {} files, {}: {}\n", url, files, FormatSize(ByteCount{bytes}),
          damage.empty() ? Paint(Tone::kGood, "no damage") : Paint(Tone::kWarning, damage));
  }
  return damage.empty() ? kSuccess : kFsckUncorrected;
}

int VerifyVersion(const VerifyArguments& arguments, const std::string& target) {
  const auto code = CheckVersion(arguments, target);
  if (code.has_value()) return *code;
  const bool interrupted = code.error().code == ErrorCode::kCancelled;
  return Fail(code.error(), interrupted ? kFsckCancelled : kFsckOperationalError);
}

int Run(const VerifyArguments& arguments) {
  if (arguments.repair && std::ranges::any_of(arguments.targets, IsUrl)) {
    return FailUsage("verify", "--repair cannot repair a version in a bucket: 'weightfs push --verify' sends it again");
  }
  int code = kSuccess;
  std::vector<std::string> on_mounts, others;
  for (const std::string& target : arguments.targets) {
    const auto path =
        IsUrl(target) ? Result<std::optional<std::string>>(std::nullopt) : PathOnMount(arguments, target);
    if (!path.has_value()) {
      code |= Fail(path.error(), kFsckOperationalError);
    } else if (path->has_value()) {
      on_mounts.push_back(**path);
    } else {
      others.push_back(target);
    }
  }
  std::error_code error;
  const bool one_directory = on_mounts.size() == 1 && std::filesystem::is_directory(on_mounts[0], error);
  if (!arguments.state.empty() && (arguments.targets.size() > 1 || (code == kSuccess && !one_directory))) {
    return FailUsage("verify", "--state takes one mount or directory, and no other target");
  }
  if (!arguments.rate.empty() && on_mounts.empty() && code == kSuccess) {
    return FailUsage("verify", "--rate is for reads through a mount, and no target is on one");
  }
  for (const std::string& target : others) {
    code |= IsUrl(target) ? VerifyVersion(arguments, target) : VerifyStore(arguments, target);
    if ((code & kFsckCancelled) != 0) return code;
  }
  return on_mounts.empty() ? code : code | VerifyOnMounts(arguments, on_mounts);
}

}  // namespace

Command VerifyCommand() {
  auto arguments = std::make_shared<VerifyArguments>();
  Command command("verify", "Compare a store, a mount, files or a version with its checksums; repair a store");
  command.Add("TARGET", &arguments->targets,
              "Stores, mounted or not, by their directories or devices; files and directories of mounts; versions in "
              "buckets, s3://BUCKET/PREFIX/NAME/N")
      .kind = ValueKind::kFile;
  command.Add("--repair", &arguments->repair,
              "Repair what can be repaired of a store that is not mounted; without it nothing is changed");
  command.Add("--catalog", &arguments->catalog,
              "Of a store that is not mounted, read only the catalog: seconds instead of reading all data");
  command.AddSize("--rate SIZE", &arguments->rate,
                  "Of reads through a mount, bytes per second: a number with K, M, G or T; 0: no limit; default: 200M "
                  "for mounts and directories, no limit for files",
                  "1G");
  command.Add("--state FILE", &arguments->state,
              "File with the position of an interrupted check of a mount or directory, to continue there",
              "/var/tmp/tensors.verify");
  command.Add("--json", &arguments->json, "Print reports as JSON: one for each store and version, one for all else");
  AddS3Options(&command, &arguments->s3);
  command.footer =
      "A store that is not mounted is checked completely: its catalog, and all its data. Of a mounted store the\n"
      "tables of the catalog (by root and its user) and all files are read; it goes on working meanwhile, and its\n"
      "option scrub= does the same regularly. A version in a bucket is read up to its first damaged object.\n\n"
      "Exit codes are those of fsck(8), added together: 0 no problems, 1 problems repaired, 4 problems or damaged\n"
      "files remain, 8 something could not be checked (for example, because --repair needs a store that is not\n"
      "mounted, or a version does not exist any more), 16 wrong usage, 32 interrupted.\n\n"
      "Examples:\n"
      "  weightfs verify /srv/tensors\n"
      "  weightfs verify /srv/tensors --repair\n"
      "  weightfs verify /dev/disk/by-id/nvme-A\n"
      "  weightfs verify /mnt/tensors --rate 1G --state /var/tmp/tensors.verify\n"
      "  weightfs verify /mnt/tensors/model.safetensors\n"
      "  weightfs verify s3://models/llama/1000";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

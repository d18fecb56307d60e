// SPDX-License-Identifier: Apache-2.0
// weightfs pull: copy a version from a bucket into a directory.
#include "remote/pull.h"

#include <nlohmann/json.hpp>

#include "cli/bucket/s3_options.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "common/printable.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string url, directory;
  std::optional<uint64_t> version;
  std::vector<std::string> files, slices;
  bool publish = false, json = false, progress = false;
  S3Arguments s3;
};

Result<std::vector<remote::SliceRequest>> ParseSlices(const std::vector<std::string>& texts) {
  std::vector<remote::SliceRequest> slices;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
      return MakeError(ErrorCode::kInvalid, "--slice '{}': write PATH:PATTERN, e.g. 'model.safetensors:layers.0.*'",
                       Printable(text));
    }
    slices.push_back({text.substr(0, colon), text.substr(colon + 1)});
  }
  return slices;
}

// The version of the URL, of --version, or the greatest one.
Result<remote::Manifest> FindVersion(const Arguments& arguments, OpenedSeries* opened) {
  if (!opened->version) return remote::FindVersion(*opened->series, arguments.version);
  if (!arguments.version || *arguments.version == opened->version->version) return std::move(*opened->version);
  return MakeError(ErrorCode::kInvalid, "{} is version {}, and --version is {}: name one of them",
                   Printable(arguments.url), opened->version->version, *arguments.version);
}

Result<int> Run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(auto slices, ParseSlices(arguments.slices));
  ASSIGN_OR_RETURN(OpenedSeries opened, OpenVersion(arguments.url, arguments.s3));
  const remote::Series& series = *opened.series;
  const auto manifest = FindVersion(arguments, &opened);
  if (!manifest) {
    const bool was_named = arguments.version || NamesVersion(arguments.url);
    const bool is_missing = was_named && manifest.error().code == ErrorCode::kNotFound;
    return Fail(manifest.error(), is_missing ? kNoVersion : kFailure);
  }
  std::optional<TransferProgress> progress(std::in_place, "pull", arguments.directory, arguments.progress);
  remote::PullOptions options{.files = arguments.files, .slices = std::move(slices), .publish = arguments.publish};
  options.progress = [&](uint64_t done, uint64_t total) { progress->Update(done, total); };
  options.warn = [](const std::string& line) { Print(stderr, "weightfs: warning: " + line + "\n"); };
  const auto report = remote::Pull(series, *manifest, arguments.directory, options);
  progress.reset();
  if (!report) {
    const auto removed = FindRemoval(report.error(), series, manifest->version);
    return removed ? Fail(*removed, kNoVersion) : Fail(report.error());
  }
  if (arguments.json) {
    nlohmann::ordered_json json = {{"url", series.url(manifest->version)},
                                   {"version", report->version},
                                   {"directory", arguments.directory},
                                   {"files", report->files},
                                   {"bytes", report->bytes},
                                   {"downloaded", report->downloaded},
                                   {"fetched_again", report->fetched_again}};
    if (report->published) json["publication"] = PublicationJson(arguments.directory, *report->published);
    return ShowJson(json);
  }
  Print(stdout, "{}: version {}: {} file{}, {}; every block verified{}\n", Printable(arguments.directory),
        report->version, report->files, report->files == 1 ? "" : "s", FormatSize(ByteCount{report->bytes}),
        report->published ? "; published" : "");
  return kSuccess;
}

}  // namespace

Command PullCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("pull", "Copy a version from an S3 bucket into a new directory, and verify it");
  command.Add("URL", &arguments->url, "s3://BUCKET/PREFIX/NAME, or one version of it: s3://BUCKET/PREFIX/NAME/N");
  command.Add("DIR", &arguments->directory, "The directory to create; it must not exist, or be empty");
  command.AddNumber("--version N", &arguments->version, "The version; default: the greatest one", "1000");
  command.Add("--files GLOB", &arguments->files, "Only the files whose paths match this pattern; may be repeated",
              "'*.json'");
  command.Add("--slice PATH:PATTERN", &arguments->slices,
              "Of safetensors files, only the tensors whose names match this pattern; may be repeated",
              "'*.safetensors:model.layers.0.*'");
  command.Add("--publish", &arguments->publish, "Publish the directory afterwards (see weightfs publish)");
  command.Add("--json", &arguments->json, "Print what was pulled as JSON");
  command.Add("--progress", &arguments->progress,
              "Print progress as JSON lines to standard error, for programs: done and total, in bytes");
  AddS3Options(&command, &arguments->s3);
  command.footer =
      "The directory appears complete, verified and durable, or not at all. Every block of 4 KiB is compared with its\n"
      "checksum; a part that differs is fetched again up to three times. DIR may be on any filesystem. A pull that is\n"
      "killed leaves a directory .NAME.weightfs-pull-*, which the next pull to DIR removes.\n\n"
      "In patterns '*' also matches '/' and '.'. With --files or --slice only the files that they name are pulled, "
      "and\n"
      "a sliced file has only its matching tensors, in a valid safetensors file with the same path.\n\n"
      "Exits with 8 if the version that was named does not exist, or was removed meanwhile (weightfs prune).\n\n"
      "Examples:\n"
      "  weightfs pull s3://models/llama /mnt/tensors/llama\n"
      "  weightfs pull s3://models/llama/1000 /mnt/tensors/step-1000 --publish\n"
      "  weightfs pull s3://models/llama llama --endpoint-url http://gateway:7480 --profile ceph\n"
      "  weightfs pull s3://models/llama rank0 --files '*.json' --slice '*.safetensors:model.layers.[0-7].*'";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs prune: remove old versions from a bucket.

#include <nlohmann/json.hpp>

#include "cli/bucket/s3_options.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "common/size_text.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string url;
  uint64_t keep = 0;
  double unfinished_after_days = 7;
  bool all_versions = false, dry_run = false, json = false;
  S3Arguments s3;
};

constexpr double kMaximumDays = 36'500;
constexpr double kSecondsPerDay = 86'400;

void PrintJson(const Arguments& arguments, const std::string& url, const remote::PruneReport& report) {
  auto removed = nlohmann::ordered_json::array(), errors = nlohmann::ordered_json::array();
  for (const Error& error : report.errors) errors.push_back(Line(error));
  for (const remote::PrunedVersion& version : report.removed) {
    removed.push_back({{"version", version.version},
                       {"unfinished", version.unfinished},
                       {"objects", version.objects},
                       {"bytes", version.bytes},
                       {"uploads", version.uploads}});
  }
  ShowJson({{"url", url},
            {"dry_run", arguments.dry_run},
            {"removed", std::move(removed)},
            {"kept", report.kept},
            {"damaged", report.damaged},
            {"unfinished", report.unfinished},
            {"foreign", report.foreign},
            {"errors", std::move(errors)}});
}

void PrintText(const Arguments& arguments, const std::string& url, const remote::PruneReport& report) {
  for (const remote::PrunedVersion& version : report.removed) {
    Print(stdout, "{} {}/{}: {} objects, {}{}\n", arguments.dry_run ? "would remove" : "removed", url, version.version,
          version.objects, FormatSize(ByteCount{version.bytes}), version.unfinished ? ", an unfinished push" : "");
  }
  for (const uint64_t version : report.foreign) {
    Print(stderr, "weightfs: warning: {}/{} was not made by weightfs and was left alone\n", url, version);
  }
  for (const uint64_t version : report.damaged) {
    Print(stderr,
          "weightfs: warning: {0}/{1} has a damaged manifest, and was left alone; 'weightfs pull {0}/{1} DIR' says "
          "more\n",
          url, version);
  }
  Print(stdout, "{}: {} version{} kept, {} {}removed{}\n", url, report.kept.size(), report.kept.size() == 1 ? "" : "s",
        report.removed.size(), arguments.dry_run ? "would be " : "",
        report.unfinished.empty() ? "" : fmt::format(", {} unfinished kept", report.unfinished.size()));
}

Result<int> Run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const OpenedSeries opened, OpenSeriesToChange(arguments.url, arguments.s3));
  const std::string url = opened.series->url();
  const std::chrono::seconds unfinished(static_cast<int64_t>(arguments.unfinished_after_days * kSecondsPerDay));
  ASSIGN_OR_RETURN(const auto report, remote::Prune(*opened.series, {.keep = arguments.keep,
                                                                     .unfinished_after = unfinished,
                                                                     .all_versions = arguments.all_versions,
                                                                     .dry_run = arguments.dry_run}));
  arguments.json ? PrintJson(arguments, url, report) : PrintText(arguments, url, report);
  return ReportPrune(url, report);
}

}  // namespace

Command PruneCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("prune", "Remove old versions, and abandoned pushes, from an S3 bucket");
  command.Add("URL", &arguments->url, "s3://BUCKET/PREFIX/NAME");
  command.AddNumber("--keep N", &arguments->keep, "Number of complete versions to keep, the greatest ones", "3")
      .required = true;
  command
      .AddDecimal("--unfinished-after DAYS", &arguments->unfinished_after_days,
                  "Also remove unfinished pushes in which nothing has changed for so many days", "1", kMaximumDays)
      .fallback = fmt::format("{}", arguments->unfinished_after_days);
  command.Add("--all-versions", &arguments->all_versions,
              "In a bucket with versioning, also delete the old versions of the objects that this call and earlier "
              "ones removed: otherwise no space is freed");
  command.Add("--dry-run", &arguments->dry_run, "Print what would be removed, and remove nothing");
  command.Add("--json", &arguments->json, "Print the result as JSON");
  AddS3Options(&command, &arguments->s3);
  command.footer =
      "A version stops existing before its files are removed, and a push of it ends. If prune is interrupted, the\n"
      "next one continues. A version that cannot be removed delays no other one; prune exits with 1 then. Objects\n"
      "outside s3://BUCKET/PREFIX/NAME/<version>/ are never touched.\n\n"
      "Examples:\n"
      "  weightfs prune s3://models/llama --keep 3 --dry-run\n"
      "  weightfs prune s3://models/llama --keep 3 --unfinished-after 1\n"
      "  weightfs prune s3://models/llama --keep 3 --all-versions";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// weightfs versions: list the versions in a bucket.

#include <nlohmann/json.hpp>

#include "cli/bucket/s3_options.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "common/printable.h"
#include "common/size_text.h"
#include "common/utc_time.h"

namespace weightfs::cli {
namespace {

struct Arguments {
  std::string url;
  bool all = false, json = false;
  S3Arguments s3;
};

struct Row {
  uint64_t version = 0;
  bool complete = false;
  bool damaged = false;  // it has a manifest that cannot be read
  int64_t created_ns = 0;
  uint64_t files = 0, bytes = 0;
  std::string source, push;
};

// Returns none for a version that weightfs did not make.
Result<std::optional<Row>> Describe(const remote::Series& series, uint64_t version) {
  const auto unreadable = [](ErrorCode code) { return code == ErrorCode::kCorrupt || code == ErrorCode::kVersion; };
  Row row{.version = version};
  const auto manifest = series.Load(version);
  if (manifest) {
    row.complete = true;
    row.created_ns = manifest->created_ns;
    row.files = manifest->files.size();
    row.bytes = manifest->bytes();
    row.source = manifest->source;
    row.push = manifest->push;
    return row;
  }
  row.damaged = unreadable(manifest.error().code);
  if (!row.damaged && manifest.error().code != ErrorCode::kNotFound) return manifest.error();
  const auto claim = series.LoadClaim(version);
  if (claim) {
    row.created_ns = claim->created_ns;
    row.source = claim->source;
    row.push = claim->push;
    return row;
  }
  if (claim.error().code != ErrorCode::kNotFound && !unreadable(claim.error().code)) return claim.error();
  if (row.damaged || claim.error().code != ErrorCode::kNotFound) return row;
  return std::optional<Row>();
}

Result<std::vector<Row>> List(const Arguments& arguments, const remote::Series& series) {
  ASSIGN_OR_RETURN(const auto versions, series.Numbers());
  ProgressBar bar("versions");
  std::vector<Row> rows;
  for (size_t at = 0; at < versions.size(); ++at) {
    bar.Update({.done = at, .total = versions.size(), .unit = Progress::Unit::kItems, .items = "versions"});
    ASSIGN_OR_RETURN(auto row, Describe(series, versions[at]));
    if (row && (row->complete || row->damaged || arguments.all)) rows.push_back(std::move(*row));
  }
  return rows;
}

void PrintJson(const std::string& url, const std::vector<Row>& rows) {
  auto versions = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    nlohmann::ordered_json json = {{"version", row.version}, {"complete", row.complete}};
    if (row.damaged) json["damaged"] = true;
    json["created"] = FormatUtc(row.created_ns);
    if (row.complete) {
      json["files"] = row.files;
      json["bytes"] = row.bytes;
    }
    json["source"] = row.source;
    json["push"] = row.push;
    versions.push_back(std::move(json));
  }
  ShowJson({{"url", url}, {"versions", std::move(versions)}});
}

void PrintTable(const std::vector<Row>& rows) {
  Table table({{"VERSION", true}, {"PUSHED"}, {"FILES", true}, {"SIZE", true}, {"SOURCE"}});
  for (const Row& row : rows) {
    table.Add({std::to_string(row.version), FormatUtc(row.created_ns),
               row.complete  ? FormatCount(row.files)
               : row.damaged ? "damaged"
                             : "unfinished",
               row.complete ? FormatSize(ByteCount{row.bytes}) : "", Printable(row.source)});
  }
  Print(stdout, table.ToString());
}

Result<int> Run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const OpenedSeries opened, OpenVersion(arguments.url, arguments.s3));
  const remote::Series& series = *opened.series;
  const std::string url = opened.version ? series.url(opened.version->version) : series.url();
  std::vector<Row> rows;
  if (opened.version) {
    ASSIGN_OR_RETURN(const auto row, Describe(series, opened.version->version));
    if (row) rows.push_back(*row);
  } else {
    ASSIGN_OR_RETURN(rows, List(arguments, series));
  }
  if (rows.empty() && NamesVersion(arguments.url)) {
    return Fail({ErrorCode::kNotFound, url + ": there is no such version, nor a series with this name"}, kNoVersion);
  }
  if (arguments.json) {
    PrintJson(url, rows);
  } else if (rows.empty()) {
    Print(stdout, url + ": no version was pushed here\n");
  } else {
    PrintTable(rows);
  }
  return kSuccess;
}

}  // namespace

Command VersionsCommand() {
  auto arguments = std::make_shared<Arguments>();
  Command command("versions", "List the versions in an S3 bucket, the greatest first");
  command.Add("URL", &arguments->url, "s3://BUCKET/PREFIX/NAME");
  command.Add("--all", &arguments->all, "Also list versions whose push has not ended");
  command.Add("--json", &arguments->json, "Print the versions as JSON");
  AddS3Options(&command, &arguments->s3);
  command.footer =
      "A version exists once it was pushed completely. 'weightfs pull' without a version takes the greatest one.\n"
      "A URL that ends with the number of a version lists that one. Exits with 8 if there is none.\n\n"
      "Examples:\n"
      "  weightfs versions s3://models/llama\n"
      "  weightfs versions s3://models/llama --all --json --endpoint-url http://gateway:7480";
  command.run = [arguments] { return Run(*arguments); };
  return command;
}

}  // namespace weightfs::cli

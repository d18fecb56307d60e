// SPDX-License-Identifier: Apache-2.0
#include "cli/bucket/s3_options.h"

#include <unistd.h>

#include "cli/output.h"
#include "cli/signals.h"
#include "remote/pull.h"
#include "s3/location.h"

namespace weightfs::cli {
namespace {

constexpr unsigned kMaximumConnections = 256;

Result<s3::Location> ParseSeries(const std::string& url) {
  ASSIGN_OR_RETURN(s3::Location location, s3::ParseLocation(url));
  while (location.key.ends_with('/')) location.key.pop_back();
  if (!location.key.empty()) return location;
  return Error{ErrorCode::kInvalid,
               s3::ToString(location) + ": the URL needs a name, under which the versions are: s3://BUCKET/NAME"};
}

Result<OpenedSeries> Open(const s3::Location& location, const S3Arguments& arguments) {
  s3::SettingsOverrides overrides = arguments.overrides;
  if (arguments.no_sign_request) overrides.sign = false;
  if (arguments.path_style) overrides.addressing = s3::Addressing::kPath;
  ASSIGN_OR_RETURN(s3::Settings settings, s3::LoadSettings(overrides));
  if (arguments.connections) settings.connections = static_cast<unsigned>(*arguments.connections);
  settings.upload_rate = arguments.upload_rate;
  settings.requester_pays = arguments.requester_pays;
  settings.encryption = arguments.encryption;
  settings.encryption_key = arguments.encryption_key;
  // In the place of a progress bar, which is drawn again.
  settings.on_retry = [erase = isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : ""](const std::string& line) {
    Print(stderr, "{}weightfs: warning: {}\n", erase, line);
  };
  OpenedSeries opened;
  ASSIGN_OR_RETURN(opened.client, s3::Client::Create(settings));
  opened.bucket = std::make_unique<s3::Bucket>(*opened.client, location.bucket,
                                               [&flag = CatchInterrupts()] { return flag.load(); });
  opened.series = std::make_unique<remote::Series>(*opened.bucket, location.key);
  if (settings.sign && s3::IsUnprotected(settings.endpoint)) {
    Print(stderr,
          "weightfs: warning: {} is not https: others on the network can read what is sent, also a session token, and "
          "can change it\n",
          s3::PrintableOrigin(settings.endpoint));
  }
  return opened;
}

// The version that the last part of a name reads as, or 0, and the series that would have it. A series has a name, so
// the first part is no version.
struct NamedVersion {
  uint64_t version = 0;
  s3::Location series;
};

NamedVersion SplitVersion(const s3::Location& location) {
  const size_t slash = location.key.rfind('/');
  if (slash == std::string::npos || slash == 0) return {};
  return {remote::ParseVersion(std::string_view(location.key).substr(slash + 1)),
          {location.bucket, location.key.substr(0, slash)}};
}

}  // namespace

void AddS3Options(Command* command, S3Arguments* arguments) {
  command->group = "Service";
  command->Add("--endpoint-url URL", &arguments->overrides.endpoint,
               "URL of the service, e.g. http://gateway:7480; default: $AWS_ENDPOINT_URL_S3, $AWS_ENDPOINT_URL, the "
               "profile, AWS",
               "http://gateway:7480");
  command->Add("--region REGION", &arguments->overrides.region,
               "Region of the bucket; default: $AWS_REGION, the profile, us-east-1", "eu-central-1");
  command->Add("--profile NAME", &arguments->overrides.profile,
               "Profile of ~/.aws/config and ~/.aws/credentials; default: $AWS_PROFILE", "ceph");
  command->Add("--ca-bundle FILE", &arguments->overrides.ca_bundle,
               "Certificates that sign the service's, in PEM; default: $AWS_CA_BUNDLE, the system's",
               "/etc/ssl/gateway.pem");
  command->Add("--no-sign-request", &arguments->no_sign_request, "Send no credentials, for buckets that are public");
  command->Add("--path-style", &arguments->path_style,
               "Address a bucket as https://ENDPOINT/BUCKET; default for every service but AWS");
  command->Add("--requester-pays", &arguments->requester_pays, "Pay for the requests, which some buckets demand");
  command->AddNumber("--connections N", &arguments->connections,
                     "Maximum number of concurrent requests, and one that reads the claim; default: 16", "32", 1,
                     kMaximumConnections);
}

Result<OpenedSeries> OpenSeriesToChange(const std::string& url, const S3Arguments& arguments) {
  ASSIGN_OR_RETURN(const s3::Location location, ParseSeries(url));
  const auto [version, series] = SplitVersion(location);
  if (version > 0) {
    return MakeError(ErrorCode::kInvalid,
                     "{}: is version {} of {}, whose removal would remove what is below it: give the URL of a series, "
                     "whose name is no number",
                     s3::ToString(location), version, s3::ToString(series));
  }
  return Open(location, arguments);
}

Result<OpenedSeries> OpenVersion(const std::string& url, const S3Arguments& arguments) {
  ASSIGN_OR_RETURN(const s3::Location location, ParseSeries(url));
  const auto [version, of] = SplitVersion(location);
  ASSIGN_OR_RETURN(OpenedSeries opened, Open(version != 0 ? of : location, arguments));
  if (version == 0) return opened;
  auto manifest = opened.series->Load(version);
  if (manifest) {
    opened.version = std::move(*manifest);
  } else if (manifest.error().code == ErrorCode::kNotFound) {
    opened.series = std::make_unique<remote::Series>(*opened.bucket, location.key);
  } else {
    return manifest.error();
  }
  return opened;
}

bool NamesVersion(const std::string& url) {
  const auto location = ParseSeries(url);
  return location && SplitVersion(*location).version != 0;
}

std::optional<Error> FindRemoval(const Error& error, const remote::Series& series, uint64_t version) {
  if (error.code != ErrorCode::kNotFound) return std::nullopt;
  const auto found = remote::FindVersion(series, version);
  return found || found.error().code != ErrorCode::kNotFound ? std::nullopt : std::optional(found.error());
}

int ReportPrune(const std::string& url, const remote::PruneReport& report) {
  if (report.leaves_old_versions) {
    Print(stderr,
          "weightfs: warning: {0}: its bucket keeps old versions of the objects that were removed, so their space is "
          "not free; 'weightfs prune {0} --keep N --all-versions' deletes them\n",
          url);
  }
  for (const Error& error : report.errors) Fail(error);
  return report.errors.empty() ? kSuccess : kFailure;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// The options and warnings of all commands that use an S3 service, and the versions that a URL names.
#pragma once

#include "cli/options.h"
#include "remote/prune.h"
#include "s3/bucket.h"
#include "s3/settings.h"

namespace weightfs::cli {

struct S3Arguments {
  s3::SettingsOverrides overrides = {};
  std::optional<uint64_t> connections = {};
  uint64_t upload_rate = 0;  // bytes per second of all uploads; 0: unlimited. The caller sets it
  std::string encryption = {}, encryption_key = {};  // of new objects; see s3::Settings. The caller sets them

  // The values of the flags.
  bool no_sign_request = false;
  bool path_style = false;
  bool requester_pays = false;
};

// Adds --endpoint-url, --region, --profile, --ca-bundle, --no-sign-request, --path-style, --requester-pays and
// --connections. `arguments` must live as long as the command, whose other options are added before.
void AddS3Options(Command* command, S3Arguments* arguments);

// A series with everything it needs. Movable: the parts keep their addresses.
struct OpenedSeries {
  std::unique_ptr<s3::Client> client;
  std::unique_ptr<s3::Bucket> bucket;
  std::unique_ptr<remote::Series> series;
  std::optional<remote::Manifest> version = {};  // that the URL names: s3://BUCKET/PREFIX/NAME/N
};

// Opens s3://BUCKET/PREFIX/NAME, for commands that write or remove versions. Makes no request. Prints a warning if
// others on the network can read what is sent. Errors are one full line: those of s3::ParseLocation, s3::LoadSettings
// and s3::Client::Create, and kInvalid for a URL without a name, or one whose last part reads as a version: its objects
// would be below those of a version of another series, and would be removed with it.
Result<OpenedSeries> OpenSeriesToChange(const std::string& url, const S3Arguments& arguments);

// Opens a series or one of its versions. A URL whose last component is a version number means this version if the
// version has a manifest, and otherwise a series with this name. Makes a request only for such a URL.
Result<OpenedSeries> OpenVersion(const std::string& url, const S3Arguments& arguments);

// True if the last part of the URL reads as the number of a version.
bool NamesVersion(const std::string& url);

// After `error` while a version was read: the error of remote::FindVersion if the version does not exist any more,
// because it was pruned meanwhile, and nothing is damaged. Otherwise none.
std::optional<Error> FindRemoval(const Error& error, const remote::Series& series, uint64_t version);

// Prints the errors of a prune, and a warning if it has freed no space. Returns the exit code.
int ReportPrune(const std::string& url, const remote::PruneReport& report);

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// The settings of a connection to an S3 service, from options, environment variables and the configuration files that
// all AWS programs share.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "common/error.h"

namespace weightfs::s3 {

// Whoever waits looks so often whether the operation was interrupted.
inline constexpr std::chrono::milliseconds kInterruptionPoll{100};

// Where a request has the name of its bucket.
enum class Addressing : unsigned char {
  kAuto,  // kHost for AWS, kPath for every other endpoint and for buckets whose name is no plain host name
  kPath,  // https://ENDPOINT/BUCKET/KEY
  kHost,  // https://BUCKET.ENDPOINT/KEY
};

struct Settings {
  std::string endpoint = {};  // "http[s]://HOST[:PORT][/PREFIX]"; empty: AWS's endpoint of the region
  std::string region = "us-east-1";
  Addressing addressing = Addressing::kAuto;
  std::string ca_bundle = {};  // a file of certificates in PEM; empty: those of the system
  bool use_proxy = true;       // that of the environment
  std::string profile = "default";
  bool profile_given = false;  // the profile was named in an option, so the keys of the environment are ignored
  bool sign = true;            // false: anonymous requests, for public buckets
  unsigned connections = 16;   // maximum number of concurrent requests, but for Request::urgent; the others wait
  unsigned attempts = 10;      // of one request, the first included
  unsigned connect_timeout_s = 10;
  // A transfer that moves less than 1 KiB/s for so long is stalled and is retried, and so is a request that gets no
  // answer for so long after its last byte was sent.
  unsigned stall_timeout_s = 30;
  // No attempt follows when those before have failed for so long, with the pauses between them and the next one. Of
  // each one at most the time of a stall counts, so a slow transfer that breaks is repeated.
  unsigned give_up_after_s = 120;
  // Called, on a thread that sends, with one full line when an attempt has no connection after `quiet_s`, or when the
  // next attempt will begin after the request has failed for so long, counted in the same way; at most once in that
  // time.
  std::function<void(const std::string& line)> on_retry = {};
  unsigned quiet_s = 5;
  uint64_t upload_rate = 0;  // maximum bytes per second of all uploads together; 0: unlimited
  // Bodies have a CRC-32C; false: an MD5 alone, for services that refuse headers that they do not know.
  bool send_crc32c = true;
  bool requester_pays = false;  // of buckets whose owner does not pay for requests
  // Of new objects: "AES256", "aws:kms" or another value of the header; empty: what the bucket says.
  std::string encryption = {};
  std::string encryption_key = {};  // id of the key for "aws:kms"; empty: the bucket's

  // The shared files; the caller need not change them.
  std::string config_file = {};       // ~/.aws/config
  std::string credentials_file = {};  // ~/.aws/credentials
};

// The settings that a user gave on the command line. They take precedence over everything else.
struct SettingsOverrides {
  std::optional<std::string> endpoint = {};
  std::optional<std::string> region = {};
  std::optional<std::string> profile = {};
  std::optional<std::string> ca_bundle = {};
  std::optional<Addressing> addressing = {};
  std::optional<bool> sign = {};
};

// Returns the value of an environment variable. Tests provide their own. A variable with an empty value is unset, as in
// AWS's programs.
using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment ProcessEnvironment();

// Reads, in this order:
//   endpoint    override, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's `services` section, its `endpoint_url`
//               (AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true skips all but the override)
//   region      override, AWS_REGION, AWS_DEFAULT_REGION, the profile's `region`, us-east-1
//   ca_bundle   override, AWS_CA_BUNDLE, the profile's `ca_bundle`, SSL_CERT_FILE
//   addressing  override, the profile's `s3` section's `addressing_style` (auto, path, virtual)
//   profile     override, AWS_PROFILE, AWS_DEFAULT_PROFILE, default
//   send_crc32c false if AWS_REQUEST_CHECKSUM_CALCULATION or the profile's `request_checksum_calculation` is
//               when_required, else true
//   files       AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, ~/.aws/config, ~/.aws/credentials
// The fields that are not mentioned here have their defaults; the caller changes them afterwards. Fails with kInvalid
// and one full line if an endpoint is no http or https URL, if a file has a line that cannot be parsed (with its
// number), or if a profile that was named does not exist in either file.
Result<Settings> LoadSettings(const SettingsOverrides& overrides = {},
                              const Environment& environment = ProcessEnvironment());

}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/settings.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <initializer_list>

#include "common/make_error.h"
#include "common/printable.h"
#include "common/result.h"
#include "s3/config_file.h"
#include "s3/location.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

std::optional<std::string> FirstOf(std::initializer_list<std::optional<std::string>> values) {
  for (const auto& value : values) {
    if (value) return value;
  }
  return std::nullopt;
}

std::string HomeDirectory(const Environment& environment) {
  if (const auto home = environment("HOME")) return *home;
  const auto* user = getpwuid(getuid());
  return user != nullptr ? user->pw_dir : "";
}

// A '~' at the start of a path in a variable is the home directory, as in AWS's programs.
std::string ExpandHome(std::string path, const std::string& home) {
  if (path.starts_with("~/")) path.replace(0, 1, home);
  return path;
}

Result<Addressing> ParseAddressing(const std::string& text, const std::string& file) {
  if (text == "auto") return Addressing::kAuto;
  if (text == "path") return Addressing::kPath;
  if (text == "virtual") return Addressing::kHost;
  return MakeError(ErrorCode::kInvalid, "{}: addressing_style is '{}'; set it to auto, path or virtual", file,
                   Printable(text));
}

std::optional<std::string> ConfiguredEndpoint(const ConfigFile& config, const ConfigSection* profile,
                                              const Environment& environment) {
  if (environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") == "true") return std::nullopt;
  if (auto value = FirstOf({environment("AWS_ENDPOINT_URL_S3"), environment("AWS_ENDPOINT_URL")})) return value;
  if (const auto services = ValueOf(profile, "services")) {
    if (auto value = ValueOf(config.Find("services " + *services), "s3.endpoint_url")) return value;
  }
  // Before there were `services` sections, the nested value of the profile was common.
  return FirstOf({ValueOf(profile, "s3.endpoint_url"), ValueOf(profile, "endpoint_url")});
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Result<Settings> LoadSettings(const SettingsOverrides& overrides, const Environment& environment) {
  Settings settings;
  const auto home = HomeDirectory(environment);
  settings.config_file = ExpandHome(environment("AWS_CONFIG_FILE").value_or("~/.aws/config"), home);
  settings.credentials_file =
      ExpandHome(environment("AWS_SHARED_CREDENTIALS_FILE").value_or("~/.aws/credentials"), home);
  ASSIGN_OR_RETURN(const auto config, ConfigFile::Read(settings.config_file));

  const auto named = FirstOf({overrides.profile, environment("AWS_PROFILE"), environment("AWS_DEFAULT_PROFILE")});
  settings.profile = named.value_or(settings.profile);
  settings.profile_given = overrides.profile.has_value();
  const auto* profile = config.FindProfile(settings.profile);
  if (named && profile == nullptr) {
    ASSIGN_OR_RETURN(const auto credentials, ConfigFile::Read(settings.credentials_file));
    if (credentials.Find(settings.profile) == nullptr) {
      return MakeError(ErrorCode::kInvalid, "there is no profile '{}' in {} or {}; name one that exists",
                       Printable(settings.profile), settings.config_file, settings.credentials_file);
    }
  }

  settings.endpoint = FirstOf({overrides.endpoint, ConfiguredEndpoint(config, profile, environment)}).value_or("");
  if (!settings.endpoint.empty()) RETURN_IF_ERROR(CheckEndpoint(settings.endpoint));
  settings.region = FirstOf({overrides.region, environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"),
                             ValueOf(profile, "region")})
                        .value_or(settings.region);
  settings.ca_bundle = FirstOf({overrides.ca_bundle, environment("AWS_CA_BUNDLE"), ValueOf(profile, "ca_bundle"),
                                environment("SSL_CERT_FILE")})
                           .value_or("");
  if (overrides.addressing) {
    settings.addressing = *overrides.addressing;
  } else if (const auto style = ValueOf(profile, "s3.addressing_style")) {
    ASSIGN_OR_RETURN(settings.addressing, ParseAddressing(*style, settings.config_file));
  }
  settings.sign = overrides.sign.value_or(settings.sign);
  const auto checksums = FirstOf(
      {environment("AWS_REQUEST_CHECKSUM_CALCULATION"), ValueOf(profile, "request_checksum_calculation")});
  settings.send_crc32c = LowerCase(checksums.value_or("")) != "when_required";
  return settings;
}

}  // namespace weightfs::s3

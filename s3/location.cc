// SPDX-License-Identifier: Apache-2.0
#include "s3/location.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>

#include "common/make_error.h"
#include "common/printable.h"
#include "common/result.h"

namespace weightfs::s3 {
namespace {

constexpr std::string_view kScheme = "s3://";
constexpr size_t kMaxBucketLength = 255;  // 63 in AWS; Ceph allows more
constexpr size_t kMaxKeyLength = 1024;

bool IsLetterOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// The names of AWS and, beyond them, capitals and '_' of other services.
bool IsBucketCharacter(char c) { return IsLetterOrDigit(c) || c == '-' || c == '.' || c == '_'; }

Error InvalidUrl(std::string_view url, std::string_view why) {
  return MakeError(ErrorCode::kInvalid, "{}: {}; give it as s3://BUCKET/NAME", Printable(url), why);
}

constexpr std::string_view kHttp = "http://", kHttps = "https://";

bool IsHostCharacter(char c) { return IsLetterOrDigit(c) || std::string_view("-._:[]").find(c) != std::string::npos; }

// The parts of a URL that has passed CheckEndpoint.
struct Endpoint {
  std::string_view scheme;  // with "://"
  std::string_view host;    // with the port
  std::string_view prefix;  // "" or "/PATH"
};

Endpoint Split(std::string_view url) {
  const auto scheme = url.substr(0, url.find("://") + 3);
  const auto rest = url.substr(scheme.size());
  const auto slash = std::min(rest.find('/'), rest.size());
  auto prefix = rest.substr(slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  return {scheme, rest.substr(0, slash), prefix};
}

std::string_view WithoutDefaultPort(std::string_view scheme, std::string_view host) {
  const std::string_view port = scheme == kHttps ? ":443" : ":80";
  if (host.ends_with(port)) host.remove_suffix(port.size());
  return host;
}

// The part of AWS that has the region: its own domain in China.
std::string AwsEndpoint(std::string_view region) {
  return fmt::format("https://s3.{}.amazonaws.com{}", region, region.starts_with("cn-") ? ".cn" : "");
}

bool IsAws(std::string_view host) { return host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn"); }

// True for names that are one label of a host name. With a dot, the certificate of AWS would not match.
bool IsHostLabel(std::string_view bucket) {
  return bucket.size() >= 3 && bucket.size() <= 63 && std::ranges::all_of(bucket, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

bool UsesHostStyle(Addressing addressing, std::string_view host, std::string_view bucket) {
  if (bucket.empty() || addressing == Addressing::kPath) return false;
  return addressing == Addressing::kHost || (IsAws(host) && IsHostLabel(bucket));
}

}  // namespace

Result<Location> ParseLocation(std::string_view url) {
  if (!url.starts_with(kScheme)) return InvalidUrl(url, "not an S3 location");
  const auto rest = url.substr(kScheme.size());
  const auto slash = std::min(rest.find('/'), rest.size());
  const auto bucket = rest.substr(0, slash), key = rest.substr(std::min(slash + 1, rest.size()));
  if (bucket.empty()) return InvalidUrl(url, "the name of the bucket is missing");
  if (bucket == "." || bucket == ".." || bucket.size() > kMaxBucketLength ||
      !std::ranges::all_of(bucket, IsBucketCharacter)) {
    return InvalidUrl(url, fmt::format("'{}' is not the name of a bucket", Printable(bucket)));
  }
  if (key.size() > kMaxKeyLength) {
    return MakeError(ErrorCode::kInvalid, "s3://{}/{}…: the key has {} bytes, and S3 allows {}; shorten it", bucket,
                     Printable(key.substr(0, 60)), key.size(), kMaxKeyLength);
  }
  return Location{std::string(bucket), std::string(key)};
}

std::string ToString(const Location& location) {
  return fmt::format("s3://{}/{}", Printable(location.bucket), Printable(location.key));
}

std::string PercentEncode(std::string_view text, Slashes slashes) {
  static constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (IsLetterOrDigit(c) || c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && slashes == Slashes::kKeep)) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

std::string PercentDecode(std::string_view text) {
  std::string encoded(text);
  std::ranges::replace(encoded, '+', ' ');
  int size = 0;
  const std::unique_ptr<char, void (*)(void*)> decoded(
      curl_easy_unescape(nullptr, encoded.c_str(), static_cast<int>(encoded.size()), &size), curl_free);
  return decoded == nullptr ? encoded : std::string(decoded.get(), static_cast<size_t>(size));
}

Result<void> CheckEndpoint(std::string_view endpoint) {
  const auto fail = [&](std::string_view why) {
    return MakeError(ErrorCode::kInvalid, "the endpoint URL '{}' {}; give it as https://HOST[:PORT]",
                     PrintableOrigin(endpoint), why);
  };
  if (!endpoint.starts_with(kHttp) && !endpoint.starts_with(kHttps)) return fail("is neither http:// nor https://");
  const auto parts = Split(endpoint);
  if (parts.host.empty() || parts.host.starts_with(':')) return fail("names no host");
  if (!std::ranges::all_of(parts.host, IsHostCharacter)) return fail("has a wrong host name");
  if (PercentEncode(parts.prefix, Slashes::kKeep) != parts.prefix) return fail("has a wrong path");
  return {};
}

bool IsUnprotected(std::string_view endpoint) {
  if (!endpoint.starts_with(kHttp)) return false;
  const std::string_view host = Split(endpoint).host;
  const std::string_view name = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  return name != "localhost" && name != "[::1]" && !(name.starts_with("127.") && std::ranges::count(name, '.') == 3 &&
                                                     name.find_first_not_of("0123456789.") == name.npos);
}

std::string PrintableOrigin(std::string_view url) {
  const auto colon = url.find("://");
  const auto scheme = url.find_first_of("/?#@") == colon + 1 ? url.substr(0, colon + 3) : std::string_view();
  auto host = url.substr(scheme.size());
  const auto at = host.rfind('@');
  if (at != std::string_view::npos) host.remove_prefix(at + 1);
  host = host.substr(0, host.find_first_of("/?#"));
  return fmt::format("{}{}{}", Printable(scheme), at != std::string_view::npos ? "...@" : "", Printable(host));
}

RequestUrl MakeRequestUrl(const Settings& settings, std::string_view region, const Location& object) {
  const auto url = settings.endpoint.empty() ? AwsEndpoint(region) : settings.endpoint;
  const auto [scheme, endpoint_host, prefix] = Split(url);
  auto host = std::string(WithoutDefaultPort(scheme, endpoint_host));
  auto path = std::string(prefix);
  if (UsesHostStyle(settings.addressing, host, object.bucket)) {
    host = object.bucket + "." + host;
  } else if (!object.bucket.empty()) {
    path += "/" + object.bucket;
  }
  path += "/" + PercentEncode(object.key, Slashes::kKeep);
  return {std::string(scheme) + host, host, path};
}

}  // namespace weightfs::s3

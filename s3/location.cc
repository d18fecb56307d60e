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

}  // namespace weightfs::s3

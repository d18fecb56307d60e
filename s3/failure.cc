// SPDX-License-Identifier: Apache-2.0
#include "s3/failure.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>

#include "common/printable.h"
#include "s3/responses.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

using Remedy = Failure::Remedy;
constexpr std::chrono::seconds kMaxRetryAfter{60};
constexpr size_t kMaxMessage = 300;  // of a service, in our message

// The codes of S3 whose meaning does not depend on the status.
struct KnownCode {
  std::string_view code;
  Remedy remedy;
  ErrorCode error;
  std::string_view advice;
};
constexpr std::string_view kCheckKeys = "check the access key and the secret key";
constexpr KnownCode kKnownCodes[] = {
    {"SlowDown", Remedy::kRetry, ErrorCode::kIo, ""},
    {"SlowDownRead", Remedy::kRetry, ErrorCode::kIo, ""},
    {"SlowDownWrite", Remedy::kRetry, ErrorCode::kIo, ""},
    {"InternalError", Remedy::kRetry, ErrorCode::kIo, ""},
    {"ServiceUnavailable", Remedy::kRetry, ErrorCode::kIo, ""},
    {"RequestTimeout", Remedy::kRetry, ErrorCode::kIo, ""},
    {"BadDigest", Remedy::kRetryBriefly, ErrorCode::kIo, "the body was changed on the network: use https"},
    {"XAmzContentSHA256Mismatch", Remedy::kRetryBriefly, ErrorCode::kIo,
     "the body was changed on the network: use https"},
    {"IncompleteBody", Remedy::kRetry, ErrorCode::kIo, ""},
    {"OperationAborted", Remedy::kRetry, ErrorCode::kExists, ""},
    {"ConditionalRequestConflict", Remedy::kRetry, ErrorCode::kExists, ""},
    {"RequestTimeTooSkewed", Remedy::kCorrectClock, ErrorCode::kAccess, "set the clock of this machine"},
    {"ExpiredToken", Remedy::kRenewCredentials, ErrorCode::kAccess, "renew the credentials"},
    {"ExpiredTokenException", Remedy::kRenewCredentials, ErrorCode::kAccess, "renew the credentials"},
    {"TokenRefreshRequired", Remedy::kRenewCredentials, ErrorCode::kAccess, "renew the credentials"},
    {"InvalidAccessKeyId", Remedy::kNone, ErrorCode::kAccess, kCheckKeys},
    {"SignatureDoesNotMatch", Remedy::kNone, ErrorCode::kAccess, kCheckKeys},
    {"InvalidToken", Remedy::kNone, ErrorCode::kAccess, kCheckKeys},
    {"NoSuchBucket", Remedy::kNone, ErrorCode::kInvalid, "create the bucket, or check its name and the endpoint URL"},
    {"QuotaExceeded", Remedy::kNone, ErrorCode::kNoSpace, "delete objects, or have the quota raised"},
    {"XMinioStorageFull", Remedy::kNone, ErrorCode::kNoSpace, "delete objects, or add storage"},
    {"EntityTooSmall", Remedy::kNone, ErrorCode::kInvalid, ""},
    {"InvalidRange", Remedy::kNone, ErrorCode::kRange, ""},
};

// The results of libcurl that another attempt may not change, or for which a user can do something.
struct KnownResult {
  CURLcode result;
  Remedy remedy;
  std::string_view advice;  // {0} is the endpoint, {1} the file of certificates
};
constexpr KnownResult kKnownResults[] = {
    {CURLE_COULDNT_RESOLVE_HOST, Remedy::kRetryBriefly, "check the endpoint URL ({0}) and the network"},
    {CURLE_COULDNT_RESOLVE_PROXY, Remedy::kRetryBriefly, "check the endpoint URL ({0}) and the network"},
    {CURLE_COULDNT_CONNECT, Remedy::kRetry, "check the endpoint URL ({0}) and that the service runs"},
    {CURLE_OPERATION_TIMEDOUT, Remedy::kRetry, "check the network and the service"},
    {CURLE_SSL_CONNECT_ERROR, Remedy::kRetryBriefly, "check whether the endpoint ({0}) is https"},
    {CURLE_PEER_FAILED_VERIFICATION, Remedy::kNone,
     "name a file with the certificate of its authority in AWS_CA_BUNDLE"},
    {CURLE_SSL_CACERT_BADFILE, Remedy::kNone, "check the file of certificates, {1}"},
    {CURLE_URL_MALFORMAT, Remedy::kNone, "check the endpoint URL ({0})"},
    {CURLE_UNSUPPORTED_PROTOCOL, Remedy::kNone, "check the endpoint URL ({0})"},
    {CURLE_OUT_OF_MEMORY, Remedy::kNone, ""},
};

bool ChangesObjects(const Request& request) { return request.method != "GET" && request.method != "HEAD"; }

ErrorCode CodeOfStatus(int status, const Request& request) {
  switch (status) {
    case 401:
    case 403: return ErrorCode::kAccess;
    case 404: return ErrorCode::kNotFound;
    case 409: return ErrorCode::kExists;
    case 412: return ChangesObjects(request) ? ErrorCode::kExists : ErrorCode::kStale;
    case 416: return ErrorCode::kRange;
    case 501: return ErrorCode::kNotSupported;
    case 507: return ErrorCode::kNoSpace;
    default: return ErrorCode::kIo;
  }
}

// 408, and 500 to 504 without 501 (not implemented). 507 is a full service.
bool IsRetriedStatus(int status) {
  return status == 408 || status == 429 || (status >= 500 && status <= 504 && status != 501);
}

std::string_view AdviceOfStatus(int status, const Settings& settings) {
  if (status == 401 || status == 403) {
    return settings.sign ? "check the permissions of this access key" : "the object is not public: give credentials";
  }
  if (status == 507) return "delete objects, or add storage";
  if (status >= 300 && status < 400) return "check the region and the endpoint URL";
  return "";
}

std::optional<std::chrono::milliseconds> RetryAfter(const Attempt& attempt) {
  const auto text = attempt.header("retry-after");
  if (text.empty()) return std::nullopt;
  if (const auto seconds = ParseNumber<uint64_t>(text)) {
    return std::chrono::seconds(std::min<uint64_t>(*seconds, kMaxRetryAfter.count()));
  }
  const auto time = ParseHttpTime(std::string(text));
  if (!time) return std::nullopt;
  const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(*time - std::chrono::system_clock::now());
  return std::clamp<std::chrono::milliseconds>(wait, std::chrono::milliseconds(0), kMaxRetryAfter);
}

Failure FailureOfCurl(const Attempt& attempt, const Settings& settings) {
  Failure failure{.remedy = Remedy::kRetry, .reason = Printable(attempt.curl_error)};
  const auto* known = std::ranges::find(kKnownResults, attempt.result, &KnownResult::result);
  if (known == std::end(kKnownResults)) return failure;
  failure.remedy = known->remedy;
  const auto endpoint = Printable(settings.endpoint.empty() ? "of AWS" : settings.endpoint);
  failure.advice = fmt::format(fmt::runtime(known->advice), endpoint, Printable(settings.ca_bundle));
  if (attempt.result == CURLE_OUT_OF_MEMORY) failure.code = ErrorCode::kNoMemory;
  return failure;
}

Failure FailureOfLength(const Request& request, const Attempt& attempt) {
  const auto length = attempt.header("content-length");
  Failure failure{.remedy = Remedy::kRetryBriefly};
  failure.reason =
      fmt::format("the response has {} bytes, not {}",
                  length.empty() ? std::to_string(attempt.bytes_received) : Printable(length), request.into->size());
  // "bytes 90-99/100": the service cut the range off at the end of the object.
  const std::string range(attempt.header("content-range"));
  uint64_t first = 0, last = 0, size = 0;
  const bool parsed = std::sscanf(range.c_str(), "bytes %" SCNu64 "-%" SCNu64 "/%" SCNu64, &first, &last, &size) == 3;
  if (attempt.status == 206 && parsed && last + 1 == size && last - first + 1 < request.into->size()) {
    failure = {.code = ErrorCode::kRange, .reason = fmt::format("the object has only {} bytes", size)};
  }
  return failure;
}

// A wrong region is answered in several ways, depending on the service and the method.
std::string OtherRegion(const Attempt& attempt, const ErrorDocument& document) {
  const bool redirected = attempt.status == 301 || attempt.status == 307 || attempt.status == 400;
  if (!redirected) return "";
  auto region = std::string(attempt.header("x-amz-bucket-region"));
  if (region.empty() && document.code == "AuthorizationHeaderMalformed") region = document.region;
  const bool valid = !region.empty() && region.size() <= 40 && std::ranges::all_of(region, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  return valid ? region : "";
}

Failure FailureOfStatus(const Request& request, const Attempt& attempt, const ErrorDocument& document,
                        const Settings& settings) {
  Failure failure{.code = CodeOfStatus(attempt.status, request), .retry_after = RetryAfter(attempt)};
  failure.reason = fmt::format("HTTP {}", attempt.status);
  if (!document.empty()) failure.reason += " " + Printable(document.code);
  if (!document.message.empty()) failure.reason += ": " + Printable(document.message.substr(0, kMaxMessage));
  if (IsRetriedStatus(attempt.status)) failure.remedy = Remedy::kRetry;
  failure.advice = AdviceOfStatus(attempt.status, settings);
  if (const auto* known = std::ranges::find(kKnownCodes, document.code, &KnownCode::code);
      known != std::end(kKnownCodes)) {
    failure.remedy = known->remedy;
    failure.code = known->error;
    failure.advice = known->advice;
  }
  // Services that are not AWS's may refuse headers that they do not know.
  const bool refuses = attempt.status == 400 || attempt.status == 501;
  if (refuses && document.message.find("x-amz-checksum") != std::string::npos) {
    failure.advice = "if the service does not know checksums, set AWS_REQUEST_CHECKSUM_CALCULATION=when_required";
  }
  const auto is_condition = [](const auto& header) { return header.first == "if-none-match"; };
  if (attempt.status == 501 && failure.advice.empty() && std::ranges::any_of(request.headers, is_condition)) {
    failure.advice = "the service has no conditional writes (If-None-Match): use a newer release of it, or another one";
  }
  // A HEAD has no body that would say so.
  if (request.method == "HEAD" && attempt.status == 400 && document.empty()) failure.remedy = Remedy::kRenewCredentials;
  if (auto region = OtherRegion(attempt, document); !region.empty()) {
    failure.remedy = Remedy::kChangeRegion;
    failure.region = std::move(region);
  }
  return failure;
}

}  // namespace

std::optional<Failure> FindFailure(const Request& request, const Attempt& attempt, const Settings& settings) {
  if (attempt.too_large) {
    return Failure{.code = ErrorCode::kTooLarge,
                   .reason = fmt::format("the response is larger than {} bytes", request.body_limit)};
  }
  if (attempt.wrong_length) return FailureOfLength(request, attempt);
  const bool has_error = attempt.status >= 300;
  if (attempt.result != CURLE_OK && !has_error) return FailureOfCurl(attempt, settings);
  if (has_error) return FailureOfStatus(request, attempt, ParseErrorDocument(attempt.body), settings);
  if (attempt.status < 200) {
    return Failure{.remedy = Remedy::kRetryBriefly, .reason = "the answer is not HTTP"};
  }
  if (ChangesObjects(request) && attempt.body.find("<Error>") != std::string::npos) {
    const auto document = ParseErrorDocument(attempt.body);
    if (!document.empty()) return FailureOfStatus(request, attempt, document, settings);
  }
  if (request.xml_root.empty() || IsDocument(attempt.body, request.xml_root)) return std::nullopt;
  return Failure{.remedy = Remedy::kRetryBriefly,
                 .reason = fmt::format("the response is not a complete {} document", request.xml_root),
                 .advice = "check whether the endpoint URL is that of an S3 service"};
}

}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/failure.h"

#include <gtest/gtest.h>

#include <array>

namespace weightfs::s3 {
namespace {

using Remedy = Failure::Remedy;

Request Of(const std::string& method) { return {.method = method, .object = {"models", "k"}}; }

Attempt Answer(int status, const std::string& code = "", Fields headers = {}) {
  Attempt attempt{.status = status, .headers = std::move(headers)};
  if (!code.empty()) attempt.body = "<Error><Code>" + code + "</Code><Message>Because.</Message></Error>";
  return attempt;
}

Failure Find(const std::string& method, const Attempt& attempt) {
  auto failure = FindFailure(Of(method), attempt, Settings());
  EXPECT_TRUE(failure);
  return failure.value_or(Failure());
}

TEST(Failure, TheStatusDecidesTheCodeOfTheError) {
  const struct {
    const char* method;
    int status;
    ErrorCode code;
    Remedy remedy;
  } kCases[] = {{"GET", 404, ErrorCode::kNotFound, Remedy::kNone}, {"GET", 403, ErrorCode::kAccess, Remedy::kNone},
                {"PUT", 412, ErrorCode::kExists, Remedy::kNone},   {"GET", 412, ErrorCode::kStale, Remedy::kNone},
                {"GET", 416, ErrorCode::kRange, Remedy::kNone},    {"PUT", 507, ErrorCode::kNoSpace, Remedy::kNone},
                {"GET", 400, ErrorCode::kIo, Remedy::kNone},       {"GET", 503, ErrorCode::kIo, Remedy::kRetry},
                {"GET", 429, ErrorCode::kIo, Remedy::kRetry},      {"PUT", 500, ErrorCode::kIo, Remedy::kRetry},
                {"PUT", 408, ErrorCode::kIo, Remedy::kRetry},
                {"GET", 501, ErrorCode::kNotSupported, Remedy::kNone}};
  for (const auto& expected : kCases) {
    const auto failure = Find(expected.method, Answer(expected.status));
    EXPECT_EQ(failure.code, expected.code) << expected.status;
    EXPECT_EQ(failure.remedy, expected.remedy) << expected.status;
  }
}

TEST(Failure, ARefusedChecksumSaysHowToOmitIt) {
  Attempt attempt{.status = 400};
  attempt.body =
      "<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-crc32c'</Message></Error>";
  EXPECT_NE(Find("PUT", attempt).advice.find("AWS_REQUEST_CHECKSUM_CALCULATION=when_required"), std::string::npos);
  EXPECT_EQ(Find("PUT", Answer(400, "InvalidArgument")).advice, "");
}

TEST(Failure, TheCodeOfS3PrecedesTheStatus) {
  EXPECT_EQ(Find("PUT", Answer(400, "RequestTimeout")).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("PUT", Answer(403, "QuotaExceeded")).code, ErrorCode::kNoSpace);
  EXPECT_EQ(Find("PUT", Answer(409, "ConditionalRequestConflict")).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("PUT", Answer(409, "ConditionalRequestConflict")).code, ErrorCode::kExists);
  EXPECT_EQ(Find("GET", Answer(403, "RequestTimeTooSkewed")).remedy, Remedy::kCorrectClock);
  EXPECT_EQ(Find("GET", Answer(400, "ExpiredToken")).remedy, Remedy::kRenewCredentials);
  EXPECT_EQ(Find("HEAD", Answer(400)).remedy, Remedy::kRenewCredentials);
}

TEST(Failure, TheReasonIsOneLineOfLimitedLength) {
  auto attempt = Answer(500);
  attempt.body = "<Error><Code>X\n</Code><Message>" + std::string(100'000, 'm') + "\n</Message></Error>";
  const auto failure = Find("GET", attempt);
  EXPECT_LT(failure.reason.size(), 500U);
  EXPECT_EQ(failure.reason.find('\n'), std::string::npos);
  EXPECT_EQ(Find("GET", Answer(404, "NoSuchKey")).reason, "HTTP 404 NoSuchKey: Because.");
}

TEST(Failure, AnErrorWithStatus200IsFoundInRequestsThatChangeObjects) {
  EXPECT_EQ(Find("POST", Answer(200, "InternalError")).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("POST", Answer(200, "NoSuchUpload")).reason, "HTTP 200 NoSuchUpload: Because.");
  EXPECT_FALSE(FindFailure(Of("GET"), Answer(200, "InternalError"), Settings())) << "an object may look like this";
  auto deleted = Answer(200);
  deleted.body = "<DeleteResult><Error><Key>k</Key><Code>AccessDenied</Code></Error></DeleteResult>";
  EXPECT_FALSE(FindFailure(Of("POST"), deleted, Settings()));
}

TEST(Failure, RetryAfterIsHonoredUpToAMinute) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Find("GET", Answer(503, "", {{"retry-after", "7"}})).retry_after, milliseconds(7'000));
  EXPECT_EQ(Find("GET", Answer(503, "", {{"retry-after", "99999"}})).retry_after, milliseconds(60'000));
  EXPECT_EQ(Find("GET", Answer(503, "", {{"retry-after", "Thu, 01 Jan 1970 00:00:10 GMT"}})).retry_after,
            milliseconds(0));
  EXPECT_EQ(Find("GET", Answer(503, "", {{"retry-after", "soon"}})).retry_after, std::nullopt);
}

TEST(Failure, TheRegionOfARedirectIsFollowedIfItIsOne) {
  EXPECT_EQ(Find("GET", Answer(301, "PermanentRedirect", {{"x-amz-bucket-region", "eu-west-1"}})).region, "eu-west-1");
  auto malformed = Answer(400);
  malformed.body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>";
  EXPECT_EQ(Find("GET", malformed).remedy, Remedy::kChangeRegion);
  EXPECT_EQ(Find("GET", Answer(301, "", {{"x-amz-bucket-region", "evil.example.com/"}})).remedy, Remedy::kNone);
  EXPECT_EQ(Find("GET", Answer(301)).advice, "check the region and the endpoint URL");
}

TEST(Failure, NetworkErrorsAreRetriedUnlessTheyWillLast) {
  EXPECT_EQ(Find("GET", {.result = CURLE_RECV_ERROR}).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("GET", {.result = CURLE_PARTIAL_FILE, .status = 200}).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("GET", {.result = CURLE_OPERATION_TIMEDOUT}).remedy, Remedy::kRetry);
  EXPECT_EQ(Find("GET", {.result = CURLE_COULDNT_RESOLVE_HOST}).remedy, Remedy::kRetryBriefly);
  EXPECT_EQ(Find("GET", {.result = CURLE_PEER_FAILED_VERIFICATION}).remedy, Remedy::kNone);
}

TEST(Failure, AnUnknownHostHasTheAdviceToCheckTheEndpoint) {
  EXPECT_NE(Find("GET", {.result = CURLE_COULDNT_RESOLVE_HOST}).advice.find("check the endpoint URL"),
            std::string::npos);
}

TEST(Failure, HeadersOfTheServiceArePrintable) {
  std::array<std::byte, 10> memory{};
  auto request = Of("GET");
  request.into = memory;
  const auto failure = FindFailure(
      request, {.status = 200, .headers = {{"content-length", "9\x1b[2J"}}, .wrong_length = true}, Settings());
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->reason, "the response has 9\\x1b[2J bytes, not 10");
}

TEST(Failure, AnErrorResponseIsReportedThoughTheBodyCouldNotBeSent) {
  auto attempt = Answer(403, "AccessDenied");
  attempt.result = CURLE_SEND_ERROR;
  EXPECT_EQ(Find("PUT", attempt).code, ErrorCode::kAccess);
}

TEST(Failure, ABodyOfAnotherLengthIsAFailure) {
  std::array<std::byte, 10> memory{};
  auto request = Of("GET");
  request.into = memory;
  const auto failure =
      FindFailure(request, {.status = 200, .headers = {{"content-length", "9"}}, .wrong_length = true}, Settings());
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->reason, "the response has 9 bytes, not 10");
}

TEST(Failure, ADocumentThatIsDamagedOrAnotherIsAFailure) {
  auto request = Of("GET");
  request.xml_root = "ListBucketResult";
  auto attempt = Answer(200);
  for (const auto* body : {"", "<html/>", "<ListBucketResult>", "<ListBucketResult></ListBucketResult"}) {
    attempt.body = body;
    const auto failure = FindFailure(request, attempt, Settings());
    ASSERT_TRUE(failure) << body;
    EXPECT_EQ(failure->remedy, Remedy::kRetryBriefly);
  }
  attempt.body = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"/>";
  EXPECT_FALSE(FindFailure(request, attempt, Settings()));
}

TEST(Failure, SuccessIsNoFailure) {
  for (const int status : {200, 204, 206}) EXPECT_FALSE(FindFailure(Of("GET"), Answer(status), Settings()));
}

}  // namespace
}  // namespace weightfs::s3

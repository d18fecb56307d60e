// SPDX-License-Identifier: Apache-2.0
#include "s3/signer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "s3/location.h"

namespace weightfs::s3 {
namespace {

// The examples of AWS's "Signature Calculations for the Authorization Header".
const Credentials kExampleKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
constexpr std::string_view kExampleHost = "examplebucket.s3.amazonaws.com";
const auto kExampleTime = std::chrono::system_clock::from_time_t(1369353600);  // 2013-05-24T00:00:00Z
constexpr std::string_view kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string ValueOf(const Fields& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &Fields::value_type::first);
  return found == fields.end() ? "(none)" : found->second;
}

std::string AuthorizationOf(std::string_view method, std::string_view path, const Fields& query, const Fields& headers,
                            std::string_view hash) {
  const SignedRequest request{method, kExampleHost, path, query, headers, hash, "us-east-1"};
  return ValueOf(Sign(request, kExampleKeys, kExampleTime).value(), "authorization");
}

std::string SignatureOf(const std::string& authorization) {
  return authorization.substr(authorization.find("Signature=") + 10);
}

TEST(Signer, SignsTheExampleOfGetObject) {
  EXPECT_EQ(AuthorizationOf("GET", "/test.txt", {}, {{"range", "bytes=0-9"}}, kEmptyHash),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(Signer, SignsTheExampleOfPutObject) {
  const auto path = "/" + PercentEncode("test$file.text", Slashes::kKeep);
  const Fields headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
  const auto hash = Sha256Hex("Welcome to Amazon S3.").value();
  EXPECT_EQ(SignatureOf(AuthorizationOf("PUT", path, {}, headers, hash)),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(Signer, SignsTheExampleOfAQueryWithoutValue) {
  EXPECT_EQ(SignatureOf(AuthorizationOf("GET", "/", {{"lifecycle", ""}}, {}, kEmptyHash)),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(Signer, SignsTheExampleOfListObjectsInAnyOrderOfTheQuery) {
  for (const Fields& query : {Fields{{"max-keys", "2"}, {"prefix", "J"}}, Fields{{"prefix", "J"}, {"max-keys", "2"}}}) {
    EXPECT_EQ(SignatureOf(AuthorizationOf("GET", "/", query, {}, kEmptyHash)),
              "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
  }
}

TEST(Signer, SpacesOfHeaderValuesDoNotChangeTheSignature) {
  EXPECT_EQ(AuthorizationOf("GET", "/", {}, {{"x-amz-meta-a", "  one   two "}}, kEmptyHash),
            AuthorizationOf("GET", "/", {}, {{"x-amz-meta-a", "one two"}}, kEmptyHash));
}

TEST(Signer, SignsTheSessionToken) {
  const Fields none;
  const SignedRequest request{"GET", kExampleHost, "/", none, none, kUnsignedPayload, "us-east-1"};
  auto credentials = kExampleKeys;
  EXPECT_EQ(ValueOf(Sign(request, credentials, kExampleTime).value(), "x-amz-security-token"), "(none)");
  credentials.session_token = "token";
  const auto added = Sign(request, credentials, kExampleTime).value();
  EXPECT_EQ(ValueOf(added, "x-amz-security-token"), "token");
  EXPECT_EQ(ValueOf(added, "x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
  EXPECT_EQ(ValueOf(added, "x-amz-date"), "20130524T000000Z");
  EXPECT_NE(ValueOf(added, "authorization").find("x-amz-date;x-amz-security-token,"), std::string::npos);
}

TEST(Signer, EncodesAndSortsTheQueryByItsEncodedBytes) {
  EXPECT_EQ(CanonicalQuery({{"b", "x y"}, {"a", "/+&="}, {"A", "ü"}, {"a-", ""}, {"uploads", ""}}),
            "A=%C3%BC&a=%2F%2B%26%3D&a-=&b=x%20y&uploads=");
  EXPECT_EQ(CanonicalQuery({}), "");
}

}  // namespace
}  // namespace weightfs::s3

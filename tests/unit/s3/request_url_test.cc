// SPDX-License-Identifier: Apache-2.0
#include "s3/location.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

std::string Url(const Settings& settings, const Location& object, std::string_view region = "us-east-1") {
  const auto url = MakeRequestUrl(settings, region, object);
  return url.origin + url.path;
}

TEST(RequestUrl, AwsHasTheBucketInItsHostName) {
  EXPECT_EQ(Url({}, {"models", "a/b c"}), "https://models.s3.us-east-1.amazonaws.com/a/b%20c");
  EXPECT_EQ(Url({}, {"models"}, "eu-west-1"), "https://models.s3.eu-west-1.amazonaws.com/");
  EXPECT_EQ(Url({}, {"models"}, "cn-north-1"), "https://models.s3.cn-north-1.amazonaws.com.cn/");
  EXPECT_EQ(Url({.endpoint = "https://s3.eu-west-1.amazonaws.com"}, {"models", "k"}),
            "https://models.s3.eu-west-1.amazonaws.com/k");
  EXPECT_EQ(Url({.addressing = Addressing::kPath}, {"models", "k"}), "https://s3.us-east-1.amazonaws.com/models/k");
}

TEST(RequestUrl, BucketsThatAreNoHostNamesAreInThePath) {
  for (const auto* bucket : {"my.models", "Models", "my_models", "ab"}) {
    EXPECT_EQ(Url({}, {bucket, "k"}), std::string("https://s3.us-east-1.amazonaws.com/") + bucket + "/k");
  }
}

TEST(RequestUrl, OtherEndpointsHaveTheBucketInThePath) {
  EXPECT_EQ(Url({.endpoint = "http://127.0.0.1:7480"}, {"models", "a//b"}), "http://127.0.0.1:7480/models/a//b");
  EXPECT_EQ(Url({.endpoint = "http://[::1]:7480/s3/"}, {"models"}), "http://[::1]:7480/s3/models/");
  EXPECT_EQ(Url({.endpoint = "http://localhost:7480", .addressing = Addressing::kHost}, {"models", "k"}),
            "http://models.localhost:7480/k");
}

TEST(RequestUrl, TheHostHasNoDefaultPort) {
  EXPECT_EQ(MakeRequestUrl({.endpoint = "http://h:80"}, "r", {"b"}).host, "h");
  EXPECT_EQ(MakeRequestUrl({.endpoint = "https://h:443"}, "r", {"b"}).host, "h");
  EXPECT_EQ(MakeRequestUrl({.endpoint = "https://h:80"}, "r", {"b"}).host, "h:80");
}

TEST(RequestUrl, HttpToAnotherMachineIsUnprotected) {
  for (const auto* url : {"http://gateway:7480", "http://10.0.0.1", "http://localhost.example", "http://127.example.com",
                          "http://[fd00::1]:80/s3", "http://0.0.0.0:9000", "http://127.0.0.1.example:80"}) {
    EXPECT_TRUE(IsUnprotected(url)) << url;
  }
  for (const auto* url : {"https://gateway", "http://localhost:7480", "http://127.0.0.1/s3", "http://127.1.2.3:80",
                          "http://[::1]:7480", ""}) {
    EXPECT_FALSE(IsUnprotected(url)) << url;
  }
}

TEST(RequestUrl, ErrorsShowOnlyTheServerOfAUrl) {
  EXPECT_EQ(PrintableOrigin("http://h:80/path?token=secret"), "http://h:80");
  EXPECT_EQ(PrintableOrigin("https://h?token=secret"), "https://h");
  EXPECT_EQ(PrintableOrigin("h#x"), "h");
  EXPECT_EQ(PrintableOrigin("http://h\n"), "http://h\\x0a");
  for (const auto* url : {"https://me:secret@h", "https://me:sec@ret@h/x", "https://me:sec/ret@h", "ftp://me:secret@h",
                          "me:secret@h", "https://me:secret?http://@h"}) {
    const auto shown = PrintableOrigin(url);
    EXPECT_TRUE(shown.ends_with("...@h")) << shown;
    const auto checked = CheckEndpoint(url);
    ASSERT_FALSE(checked) << url;
    EXPECT_EQ(checked.error().what.find("sec"), std::string::npos) << checked.error().what;
  }
}

}  // namespace
}  // namespace weightfs::s3

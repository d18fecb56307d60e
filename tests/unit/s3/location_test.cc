// SPDX-License-Identifier: Apache-2.0
#include "s3/location.h"

#include <gtest/gtest.h>

namespace weightfs::s3 {
namespace {

TEST(Location, KeysAreTakenAsTheyAre) {
  EXPECT_EQ(ParseLocation("s3://models"), (Location{"models", ""}));
  EXPECT_EQ(ParseLocation("s3://models/"), (Location{"models", ""}));
  EXPECT_EQ(ParseLocation("s3://models/a b/%20//ü?x=1#y/"), (Location{"models", "a b/%20//ü?x=1#y/"}));
  EXPECT_EQ(ParseLocation("s3://my.Bucket_1-x/k"), (Location{"my.Bucket_1-x", "k"}));
}

TEST(Location, OtherTextsAreRejectedWithOneLine) {
  for (const std::string url : {"", "models/a", "https://models/a", "S3://models", "s3:/models", "s3://", "s3:///key",
                                "s3://mod els/a", "s3://../a", "s3://models:80/a", "s3://user@models/a\nb"}) {
    const auto parsed = ParseLocation(url);
    ASSERT_FALSE(parsed) << url;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(parsed.error().what.find('\n'), std::string::npos);
    EXPECT_NE(parsed.error().what.find("s3://BUCKET/NAME"), std::string::npos) << parsed.error().what;
  }
}

TEST(Location, KeysLongerThanS3AllowsAreRejected) {
  EXPECT_TRUE(ParseLocation("s3://models/" + std::string(1024, 'x')));
  const auto parsed = ParseLocation("s3://models/" + std::string(1025, 'x'));
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().what.find("1025 bytes, and S3 allows 1024"), std::string::npos) << parsed.error().what;
}

TEST(Location, MessagesHaveNoUnprintableBytes) { EXPECT_EQ(ToString({"models", "a\nb"}), "s3://models/a\\x0ab"); }

TEST(PercentEncode, LeavesOnlyUnreservedCharacters) {
  EXPECT_EQ(PercentEncode("aZ09-._~", Slashes::kEncode), "aZ09-._~");
  EXPECT_EQ(PercentEncode("a b+c%d/e//ü*'()!:@&=$,;?#", Slashes::kKeep),
            "a%20b%2Bc%25d/e//%C3%BC%2A%27%28%29%21%3A%40%26%3D%24%2C%3B%3F%23");
  EXPECT_EQ(PercentEncode("/", Slashes::kEncode), "%2F");
}

TEST(PercentDecode, InvertsEveryByte) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(PercentDecode(PercentEncode(all, Slashes::kEncode)), all);
  EXPECT_EQ(PercentDecode("a+b%2B%2b"), "a b++");
  EXPECT_EQ(PercentDecode("%zz%4%"), "%zz%4%");
}

}  // namespace
}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/config_file.h"

#include <gtest/gtest.h>

#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

TEST(ConfigFile, ReadsSectionsNestedValuesAndComments) {
  const auto file = ConfigFile::Parse(R"(# a comment
[default]
region=eu-west-1
; another
[profile work]
  Region = us-west-2
s3 =
  addressing_style = path
  payload_signing_enabled=true
output = json
[profile "my name"]
aws_secret_access_key = a#b;c=d
[services local]
s3 =
	endpoint_url = http://127.0.0.1:9000
)",
                                      "config");
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(ValueOf(file->FindProfile("default"), "region"), "eu-west-1");
  const auto* work = file->FindProfile("work");
  EXPECT_EQ(ValueOf(work, "region"), "us-west-2");
  EXPECT_EQ(ValueOf(work, "s3.addressing_style"), "path");
  EXPECT_EQ(ValueOf(work, "output"), "json");
  EXPECT_EQ(ValueOf(work, "missing"), std::nullopt);
  EXPECT_EQ(ValueOf(file->FindProfile("my name"), "aws_secret_access_key"), "a#b;c=d");
  EXPECT_EQ(ValueOf(file->Find("services local"), "s3.endpoint_url"), "http://127.0.0.1:9000");
  EXPECT_EQ(file->FindProfile("nobody"), nullptr);
  EXPECT_EQ(ValueOf(file->FindProfile("nobody"), "region"), std::nullopt);
}

TEST(ConfigFile, AcceptsLinesThatEndWithCarriageReturns) {
  const auto file = ConfigFile::Parse("[default]\r\nregion = x\r\n\r\n", "config");
  ASSERT_TRUE(file);
  EXPECT_EQ(ValueOf(file->Find("default"), "region"), "x");
}

TEST(ConfigFile, NamesTheLineThatIsWrong) {
  for (const auto* text : {"\nregion = x\n", "[default]\nregion\n", "[default]\n[broken\n", "[default]\n= x\n"}) {
    const auto file = ConfigFile::Parse(text, "/home/me/.aws/config");
    ASSERT_FALSE(file) << text;
    EXPECT_EQ(file.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(file.error().what.find("/home/me/.aws/config: line 2: "), 0U) << file.error().what;
  }
}

TEST(ConfigFile, AMissingFileIsEmpty) {
  const auto file = ConfigFile::Read("/nonexistent/config");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->Find("default"), nullptr);
}

TEST(ConfigFile, AFileThatIsTooLargeIsAnError) {
  const UserFiles files;
  const auto path = files.Write("config", "[default]\nregion = a\n#" + std::string(1 << 20, 'x'));
  const auto file = ConfigFile::Read(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(ConfigFile::Read(path + ".absent"));
  EXPECT_TRUE(ConfigFile::Read(path + "/x"));
}

}  // namespace
}  // namespace weightfs::s3

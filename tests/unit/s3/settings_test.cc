// SPDX-License-Identifier: Apache-2.0
#include "s3/settings.h"

#include <gtest/gtest.h>

#include "s3/location.h"
#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

class SettingsTest : public testing::Test {
 protected:
  Settings Load(const SettingsOverrides& overrides = {}) {
    auto settings = LoadSettings(overrides, files_.environment());
    EXPECT_TRUE(settings) << settings.error().what;
    return settings.value_or(Settings());
  }
  Error LoadError(const SettingsOverrides& overrides = {}) {
    const auto settings = LoadSettings(overrides, files_.environment());
    EXPECT_FALSE(settings);
    return settings ? Error{ErrorCode::kIo} : settings.error();
  }
  UserFiles files_;
};

TEST_F(SettingsTest, WithoutFilesAndVariablesTheyAreThoseOfAws) {
  const auto settings = Load();
  EXPECT_EQ(settings.endpoint, "");
  EXPECT_EQ(settings.region, "us-east-1");
  EXPECT_EQ(settings.profile, "default");
  EXPECT_EQ(settings.addressing, Addressing::kAuto);
  EXPECT_EQ(settings.ca_bundle, "");
  EXPECT_TRUE(settings.sign);
}

TEST_F(SettingsTest, OptionsPrecedeVariablesAndVariablesPrecedeFiles) {
  files_.Write(".aws/config", "[default]\nregion = file\nendpoint_url = http://file\nca_bundle = /file\n");
  EXPECT_EQ(Load().endpoint, "http://file");
  EXPECT_EQ(Load().region, "file");
  EXPECT_EQ(Load().ca_bundle, "/file");
  files_.variables["AWS_DEFAULT_REGION"] = "default-variable";
  files_.variables["AWS_ENDPOINT_URL"] = "http://variable";
  EXPECT_EQ(Load().region, "default-variable");
  EXPECT_EQ(Load().endpoint, "http://variable");
  files_.variables["AWS_REGION"] = "variable";
  files_.variables["AWS_ENDPOINT_URL_S3"] = "http://s3-variable";
  files_.variables["AWS_CA_BUNDLE"] = "/variable";
  EXPECT_EQ(Load().region, "variable");
  EXPECT_EQ(Load().endpoint, "http://s3-variable");
  EXPECT_EQ(Load().ca_bundle, "/variable");
  const auto settings = Load({.endpoint = "http://option", .region = "option", .ca_bundle = "/option"});
  EXPECT_EQ(settings.endpoint, "http://option");
  EXPECT_EQ(settings.region, "option");
  EXPECT_EQ(settings.ca_bundle, "/option");
}

TEST_F(SettingsTest, TheProfileSelectsItsSectionsInTheFile) {
  files_.Write(".aws/config",
               "[profile work]\nregion = eu-west-1\nservices = local\nendpoint_url = http://any\ns3 =\n"
               "  addressing_style = virtual\n[services local]\ns3 =\n  endpoint_url = http://local:9000\n");
  files_.variables["AWS_PROFILE"] = "work";
  const auto settings = Load();
  EXPECT_EQ(settings.region, "eu-west-1");
  EXPECT_EQ(settings.endpoint, "http://local:9000");
  EXPECT_EQ(settings.addressing, Addressing::kHost);
  EXPECT_EQ(Load({.addressing = Addressing::kPath}).addressing, Addressing::kPath);
  files_.variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(Load().endpoint, "");
}

TEST_F(SettingsTest, ChecksumsCanBeRestricted) {
  EXPECT_TRUE(Load().send_crc32c);
  files_.Write(".aws/config", "[default]\nrequest_checksum_calculation = WHEN_REQUIRED\n");
  EXPECT_FALSE(Load().send_crc32c);
  files_.variables["AWS_REQUEST_CHECKSUM_CALCULATION"] = "when_supported";
  EXPECT_TRUE(Load().send_crc32c);
}

TEST_F(SettingsTest, AProfileOfTheCredentialsFileAloneIsEnough) {
  files_.Write(".aws/credentials", "[work]\naws_access_key_id = a\naws_secret_access_key = b\n");
  EXPECT_EQ(Load({.profile = "work"}).profile, "work");
}

TEST_F(SettingsTest, FilesCanBeElsewhere) {
  files_.variables["AWS_CONFIG_FILE"] = "~/other";
  files_.Write("other", "[default]\nregion = other\n");
  EXPECT_EQ(Load().region, "other");
}

TEST_F(SettingsTest, AProfileThatDoesNotExistIsAnError) {
  const auto error = LoadError({.profile = "wrok"});
  EXPECT_EQ(error.code, ErrorCode::kInvalid);
  EXPECT_NE(error.what.find("there is no profile 'wrok' in "), std::string::npos) << error.what;
}

TEST_F(SettingsTest, WrongValuesAreErrorsThatNameThem) {
  for (const auto* endpoint :
       {"localhost:9000", "ftp://x", "http://", "http://a b", "http://user@host", "http://h/?q"}) {
    EXPECT_NE(LoadError({.endpoint = endpoint}).what.find(PrintableOrigin(endpoint)), std::string::npos);
  }
  files_.Write(".aws/config", "[default]\ns3 =\n  addressing_style = paht\n");
  EXPECT_NE(LoadError().what.find("addressing_style is 'paht'"), std::string::npos);
  files_.Write(".aws/config", "nonsense\n");
  EXPECT_NE(LoadError().what.find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/credentials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <vector>

#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

class CredentialsTest : public testing::Test {
 protected:
  std::unique_ptr<CredentialProvider> Provider(const SettingsOverrides& overrides = {}) {
    auto settings = LoadSettings(overrides, files_.environment());
    EXPECT_TRUE(settings) << settings.error().what;
    return std::make_unique<CredentialProvider>(*settings, files_.environment());
  }
  Credentials Get(const SettingsOverrides& overrides = {}) {
    auto credentials = Provider(overrides)->Get();
    EXPECT_TRUE(credentials) << credentials.error().what;
    return credentials.value_or(Credentials());
  }
  std::string GetError(const SettingsOverrides& overrides = {}) {
    const auto credentials = Provider(overrides)->Get();
    EXPECT_FALSE(credentials);
    if (credentials) return "";
    EXPECT_EQ(credentials.error().code, ErrorCode::kAccess);
    EXPECT_EQ(credentials.error().what.find('\n'), std::string::npos);
    return credentials.error().what;
  }
  // A profile whose credential_process appends a line to the file `calls` and prints `answer`.
  void WriteProcess(const std::string& answer) {
    files_.Write("calls", "");
    const auto script = files_.Write(
        "script", "echo call >>" + files_.variables["HOME"] + "/calls\ncat <<'END'\n" + answer + "\nEND\n");
    files_.Write(".aws/config", "[default]\ncredential_process = sh " + script + "\n");
  }
  size_t CountCalls() const {
    std::ifstream calls(files_.variables.at("HOME") + "/calls");
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(calls), {}, '\n'));
  }
  UserFiles files_;
};

TEST_F(CredentialsTest, TheEnvironmentPrecedesTheFiles) {
  files_.Write(".aws/credentials", "[default]\naws_access_key_id = file\naws_secret_access_key = s\n");
  EXPECT_EQ(Get().access_key, "file");
  files_.variables["AWS_ACCESS_KEY_ID"] = "variable";
  files_.variables["AWS_SECRET_ACCESS_KEY"] = "secret";
  files_.variables["AWS_SESSION_TOKEN"] = "token";
  const auto credentials = Get();
  EXPECT_EQ(credentials.access_key, "variable");
  EXPECT_EQ(credentials.secret_key, "secret");
  EXPECT_EQ(credentials.session_token, "token");
  EXPECT_EQ(Get({.profile = "default"}).access_key, "file") << "a profile that was named precedes the environment";
}

TEST_F(CredentialsTest, TheCredentialsFilePrecedesTheConfigFile) {
  files_.Write(".aws/config",
               "[profile work]\naws_access_key_id = config\naws_secret_access_key = s\naws_session_token = t\n");
  EXPECT_EQ(Get({.profile = "work"}).session_token, "t");
  files_.Write(".aws/credentials", "[work]\naws_access_key_id = credentials\naws_secret_access_key = s\n");
  EXPECT_EQ(Get({.profile = "work"}).access_key, "credentials");
}

TEST_F(CredentialsTest, WithoutAnyTheErrorNamesThePlaces) {
  const auto error = GetError();
  for (const auto* place : {"AWS_ACCESS_KEY_ID", "/.aws/credentials", "/.aws/config", "AWS_WEB_IDENTITY_TOKEN_FILE",
                            "AWS_CONTAINER_CREDENTIALS_FULL_URI"}) {
    EXPECT_NE(error.find(place), std::string::npos) << error;
  }
}

TEST_F(CredentialsTest, HalfOfAKeyIsAnError) {
  files_.variables["AWS_ACCESS_KEY_ID"] = "a";
  EXPECT_NE(GetError().find("set AWS_SECRET_ACCESS_KEY too"), std::string::npos);
  files_.variables.erase("AWS_ACCESS_KEY_ID");
  files_.Write(".aws/credentials", "[default]\naws_secret_access_key = s\n");
  EXPECT_NE(GetError().find("only one of aws_access_key_id"), std::string::npos);
}

TEST_F(CredentialsTest, ProfilesThatNeedAnotherProgramSayWhich) {
  files_.Write(".aws/config", "[profile work]\nrole_arn = r\nsource_profile = other\n");
  const auto error = GetError({.profile = "work"});
  EXPECT_NE(error.find("has source_profile, which weightfs does not support"), std::string::npos) << error;
  EXPECT_NE(error.find("aws configure export-credentials --profile work"), std::string::npos) << error;
}

TEST_F(CredentialsTest, AProcessIsRunOnceUntilItsCredentialsExpire) {
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c",
                  "Expiration": "2099-01-01T00:00:00Z"})");
  const auto provider = Provider();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(provider->Get()->session_token, "c");
  EXPECT_EQ(CountCalls(), 1U);
}

TEST_F(CredentialsTest, RejectedCredentialsAreLoadedAgain) {
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"})");
  const auto provider = Provider();
  const auto credentials = provider->Get();
  provider->Invalidate({"other", "b"});
  EXPECT_TRUE(provider->Get());
  EXPECT_EQ(CountCalls(), 1U);
  provider->Invalidate(*credentials);
  EXPECT_TRUE(provider->Get());
  EXPECT_EQ(CountCalls(), 2U);
}

TEST_F(CredentialsTest, CredentialsThatExpireSoonAreRenewedAndUsedMeanwhile) {
  const time_t soon = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()) + 60;
  char time[32];
  std::tm parts{};
  std::strftime(time, sizeof time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&soon, &parts));
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": ")" + std::string(time) +
               "\"}");
  const auto provider = Provider();
  EXPECT_TRUE(provider->Get());
  EXPECT_TRUE(provider->Get()) << "they are still valid";
  EXPECT_EQ(CountCalls(), 1U) << "they were renewed a moment ago";
}

TEST_F(CredentialsTest, OneThreadLoadsAndAllGetItsResult) {
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"})");
  const auto get = [](CredentialProvider& provider) {
    std::vector<std::future<Result<Credentials>>> calls;
    for (int i = 0; i < 8; ++i) calls.push_back(std::async(std::launch::async, [&] { return provider.Get(); }));
    size_t found = 0;
    for (auto& call : calls) found += call.get().has_value();
    return found;
  };
  EXPECT_EQ(get(*Provider()), 8U);
  EXPECT_EQ(CountCalls(), 1U);
  files_.Write("script", "echo call >>" + files_.variables["HOME"] + "/calls; sleep 1; exit 1\n");
  EXPECT_EQ(get(*Provider()), 0U);
  EXPECT_LT(CountCalls(), 9U) << "most have waited for the first load";
}

TEST_F(CredentialsTest, TheServiceDecidesWhetherLoadedCredentialsHaveExpired) {
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "2020-01-01T00:00:00Z"})");
  const auto provider = Provider();
  EXPECT_TRUE(provider->Get()) << "the clock of this machine may be ahead";
  EXPECT_TRUE(provider->Get());
  EXPECT_EQ(CountCalls(), 1U);
}

TEST_F(CredentialsTest, AProcessThatFailsIsAnErrorWithoutItsOutput) {
  WriteProcess("not JSON, and secret");
  EXPECT_NE(GetError().find("returned no JSON object"), std::string::npos);
  EXPECT_EQ(GetError().find("secret"), std::string::npos);
  files_.Write("script", "echo secret; exit 3\n");
  EXPECT_NE(GetError().find("it exited with 3"), std::string::npos);
  EXPECT_EQ(GetError().find("secret"), std::string::npos);
}

TEST_F(CredentialsTest, AnInterruptionEndsAProcess) {
  // It reports that it runs by creating a file in its own directory.
  const auto started = files_.variables["HOME"] + "/started";
  const auto script = files_.Write("script", "touch " + started + "\nsleep 1000\n");
  files_.Write(".aws/config", "[default]\ncredential_process = sh " + script + "\n");
  const auto credentials = Provider()->Get([&] { return std::filesystem::exists(started); });
  ASSERT_FALSE(credentials);
  EXPECT_EQ(credentials.error().code, ErrorCode::kCancelled);
}

TEST_F(CredentialsTest, TokensAreNotSentToOtherMachinesWithoutTls) {
  for (const auto* url : {"http://example.com/x", "http://127.0.0.1.example.com/", "ftp://127.0.0.1/"}) {
    files_.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = url;
    EXPECT_NE(GetError().find("neither https nor on this machine"), std::string::npos) << url;
  }
}

TEST_F(CredentialsTest, AUserInAUrlDoesNotMakeItThisMachine) {
  files_.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://localhost:secret@example.com/";
  const auto error = GetError();
  EXPECT_NE(error.find("is http://...@example.com, which is neither https"), std::string::npos) << error;
}

TEST_F(CredentialsTest, AWebIdentityIsNotSentToOtherMachinesWithoutTls) {
  files_.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = files_.Write("token", "t");
  files_.variables["AWS_ROLE_ARN"] = "r";
  files_.variables["AWS_ENDPOINT_URL_STS"] = "http://sts.example.com/";
  const auto error = GetError();
  EXPECT_NE(error.find("AWS_ENDPOINT_URL_STS is http://sts.example.com, which is neither https"), std::string::npos)
      << error;
}

TEST_F(CredentialsTest, ATokenThatIsEmptyOrUnreadableIsAnError) {
  files_.variables["AWS_ROLE_ARN"] = "r";
  files_.variables["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:1";
  auto& file = files_.variables["AWS_WEB_IDENTITY_TOKEN_FILE"];
  file = files_.variables["HOME"];
  EXPECT_NE(GetError().find("cannot read the token: Is a directory"), std::string::npos);
  file = files_.Write("token", "\n");
  EXPECT_NE(GetError().find("the token is empty"), std::string::npos);
  file = files_.Write("token", std::string((64 << 10) + 1, 't'));
  EXPECT_NE(GetError().find("the token is larger than 65536 bytes"), std::string::npos);
  file = files_.Write("token", std::string(64 << 10, 't'));
  EXPECT_NE(GetError().find("http://127.0.0.1:1: "), std::string::npos) << "this one is sent";
}

TEST_F(CredentialsTest, ALineBreakInATokenIsAnError) {
  files_.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://127.0.0.1:1/path";
  files_.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "a\r\nx-injected: 1";
  const auto error = GetError();
  EXPECT_NE(error.find("http://127.0.0.1:1: the header authorization has a line break"), std::string::npos) << error;
}

TEST_F(CredentialsTest, CredentialsOfTheFarFutureHaveNotExpired) {
  WriteProcess(R"({"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "Expiration": "9999-12-31T23:59:59Z"})");
  EXPECT_EQ(Get().access_key, "a");
}

}  // namespace
}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/client.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

// Nothing listens there.
constexpr auto kEndpoint = "http://127.0.0.1:1";

Request Get() { return {.object = {"models", "k"}}; }

Error SendWith(const Credentials& credentials, const std::string& region = "us-east-1", Request request = Get()) {
  const Settings settings{.endpoint = kEndpoint, .region = region, .attempts = 1};
  const auto environment = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "AWS_ACCESS_KEY_ID") return credentials.access_key;
    if (name == "AWS_SECRET_ACCESS_KEY") return credentials.secret_key;
    if (name == "AWS_SESSION_TOKEN") return credentials.session_token;
    return std::nullopt;
  };
  const auto client = Client::Create(settings, std::make_unique<CredentialProvider>(settings, environment));
  EXPECT_TRUE(client);
  const auto response = (*client)->Send(std::move(request));
  EXPECT_FALSE(response);
  return response ? Error{} : response.error();
}

TEST(Client, NoPartOfARequestCanAddAHeader) {
  EXPECT_EQ(SendWith({"a", "b"}).code, ErrorCode::kIo) << "this one is sent";
  const Error errors[] = {SendWith({"a\r\nx-injected: 1", "b"}), SendWith({"a", "b", "token\nx-injected: 1"}),
                          SendWith({"a", "b"}, "us\r\nx-injected: 1"),
                          SendWith({"a", "b"}, "us", {.headers = {{"x", "1\r\n"}}})};
  for (const auto& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::kInvalid) << error.what;
    EXPECT_NE(error.what.find("has a line break"), std::string::npos) << error.what;
    EXPECT_EQ(error.what.find("injected"), std::string::npos) << error.what;
  }
}

TEST(Client, AnInterruptionOfALoadOfCredentialsIsNoErrorOfTheNextRequest) {
  UserFiles files;
  const auto home = files.variables.at("HOME");
  // A call succeeds once the file `go` exists. Those before end when they are interrupted.
  const auto script = files.Write("script", "cd " + home + R"(
      if [ -e go ]; then echo '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}'; exit; fi
      touch started
      sleep 1000)");
  files.Write(".aws/config", "[default]\ncredential_process = sh " + script + "\n");
  auto settings = LoadSettings({.endpoint = kEndpoint}, files.environment());
  ASSERT_TRUE(settings);
  settings->attempts = 1;
  const auto client = Client::Create(*settings, std::make_unique<CredentialProvider>(*settings, files.environment()));
  ASSERT_TRUE(client);

  const auto cancelled = (*client)->Send(Get(), [&] { return std::filesystem::exists(home + "/started"); });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  files.Write("go", "");
  const auto response = (*client)->Send(Get());
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, ErrorCode::kIo) << response.error().what;
  EXPECT_NE(response.error().what.find("that the service runs"), std::string::npos) << response.error().what;
}

}  // namespace
}  // namespace weightfs::s3

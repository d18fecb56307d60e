// SPDX-License-Identifier: Apache-2.0
#include "s3/client.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/s3/files.h"

namespace weightfs::s3 {
namespace {

// Nothing listens there.
constexpr auto kEndpoint = "http://127.0.0.1:1";

Request Get() { return {.object = {"models", "k"}}; }

Error SendWith(const Credentials& credentials, const std::string& region = "us-east-1", Request request = Get()) {
  const auto client = Client::Create({.endpoint = kEndpoint, .region = region, .attempts = 1},
                                     std::make_unique<CredentialProvider>(credentials));
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

// True if this process has a thread with the name, and it sleeps.
bool IsAsleep(const std::string& name) {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string found, status;
    std::getline(std::ifstream(thread.path() / "comm") >> std::ws, found);
    std::getline(std::ifstream(thread.path() / "stat") >> std::ws, status);
    if (found == name) return status.find(") S ") != std::string::npos;
  }
  return false;
}

bool HasChildren() {
  siginfo_t ended{};
  return waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

TEST(Client, TheErrorOfCredentialsThatNoRequestAwaitsIsDropped) {
  UserFiles files;
  const auto home = files.variables.at("HOME");
  // The first call fails when the file `go` exists. The others succeed.
  const auto script = files.Write("script", "cd " + home + R"(
      if [ -e go ]; then echo '{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b"}'; exit; fi
      touch started
      while [ ! -e go ]; do sleep 0.01; done
      exit 1)");
  files.Write(".aws/config", "[default]\ncredential_process = sh " + script + "\n");
  auto settings = LoadSettings({.endpoint = kEndpoint}, files.environment());
  ASSERT_TRUE(settings);
  settings->attempts = 1;
  const auto client = Client::Create(*settings, std::make_unique<CredentialProvider>(*settings, files.environment()));
  ASSERT_TRUE(client);

  std::promise<ErrorCode> cancelled;
  const auto id = (*client)->Start(
      Get(), [&](const Result<Response>& result) { cancelled.set_value(result ? ErrorCode{} : result.error().code); });
  while (!std::filesystem::exists(home + "/started")) std::this_thread::yield();
  (*client)->Cancel(id);
  EXPECT_EQ(cancelled.get_future().get(), ErrorCode::kCancelled);
  files.Write("go", "");
  // The load has ended, and the thread of the client has seen that.
  while (HasChildren() || !IsAsleep("s3-credentials") || !IsAsleep("s3-client")) std::this_thread::yield();

  const auto response = (*client)->Send(Get());
  ASSERT_FALSE(response);
  EXPECT_EQ(response.error().code, ErrorCode::kIo) << response.error().what;
  EXPECT_NE(response.error().what.find("that the service runs"), std::string::npos) << response.error().what;
}

}  // namespace
}  // namespace weightfs::s3

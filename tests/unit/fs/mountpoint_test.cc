// SPDX-License-Identifier: Apache-2.0
#include "fs/mountpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

class Mountpoint : public testing::Test {
 protected:
  Mountpoint() { std::ofstream(root_ + "/file") << "x"; }

  void ExpectRefused(const std::string& mountpoint, ErrorCode code, const char* text) {
    const auto path = PrepareMountpoint(mountpoint, false);
    ASSERT_FALSE(path.has_value()) << mountpoint;
    EXPECT_EQ(path.error().code, code) << path.error().what;
    EXPECT_THAT(path.error().what, HasSubstr(text));
  }
  const TemporaryDirectory scratch_;
  const std::string root_ = scratch_.path().string();
};

TEST_F(Mountpoint, MustBeAnExistingDirectory) {
  ExpectRefused(root_ + "/missing", ErrorCode::kNotFound, "make the directory first");
  ExpectRefused(root_ + "/file", ErrorCode::kNotDirectory, "not a directory");
}

// Users other than root unmount through fusermount3.
TEST_F(Mountpoint, AnUnmountWhoseEndIsNotSeenIsNoSuccess) {
  std::filesystem::permissions(root_, std::filesystem::perms(0755));
  std::ofstream(root_ + "/fusermount3") << "#!/bin/sh\nexit 1\n";
  std::filesystem::permissions(root_ + "/fusermount3", std::filesystem::perms(0755));
  const std::string path = std::getenv("PATH");
  ASSERT_EQ(setenv("PATH", (root_ + ":" + path).c_str(), 1), 0);
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65533), 0);
  }
  const auto before = signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(UnmountDirectory(root_, UnmountMode::kPlain), ECHILD);
  signal(SIGCHLD, SIG_DFL);
  EXPECT_EQ(UnmountDirectory(root_, UnmountMode::kPlain), EBUSY);
  signal(SIGCHLD, before);
  ASSERT_EQ(seteuid(user), 0);
  setenv("PATH", path.c_str(), 1);
}

TEST_F(Mountpoint, MustNotHoldTheStoreNorLieInIt) {
  for (const char* mountpoint : {"/srv/store", "/srv", "/", "/srv/store/meta"}) {
    const auto checked = CheckApart(mountpoint, "/srv/store");
    ASSERT_FALSE(checked.has_value()) << mountpoint;
    EXPECT_EQ(checked.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(checked.error().what, HasSubstr("lie in one another"));
  }
  for (const char* mountpoint : {"/srv/store2", "/srv/sto", "/mnt"}) {
    EXPECT_TRUE(CheckApart(mountpoint, "/srv/store").has_value()) << mountpoint;
  }
}

}  // namespace
}  // namespace weightfs

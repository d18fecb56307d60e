// SPDX-License-Identifier: Apache-2.0
#include "fs/mountpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

class Mountpoint : public testing::Test {
 protected:
  Mountpoint() {
    std::filesystem::create_directories(root_ + "/store/meta");
    std::filesystem::create_directories(root_ + "/store2");
    std::ofstream(root_ + "/file") << "x";
  }

  void ExpectRefused(const std::string& mountpoint, const std::string& store, ErrorCode code, const char* text) {
    const auto path = PrepareMountpoint(mountpoint, store, false);
    ASSERT_FALSE(path.has_value()) << mountpoint;
    EXPECT_EQ(path.error().code, code) << path.error().what;
    EXPECT_THAT(path.error().what, HasSubstr(text));
  }
  const TemporaryDirectory scratch_;
  const std::string root_ = scratch_.path().string();
};

TEST_F(Mountpoint, MustBeAnExistingDirectory) {
  ExpectRefused(root_ + "/missing", root_ + "/store", ErrorCode::kNotFound, "make the directory first");
  ExpectRefused(root_ + "/file", root_ + "/store", ErrorCode::kNotDirectory, "not a directory");
}

TEST_F(Mountpoint, MustNotHoldTheStoreNorLieInIt) {
  ExpectRefused(root_ + "/store", root_ + "/store", ErrorCode::kInvalid, "lie in one another");
  ExpectRefused(root_, root_ + "/store", ErrorCode::kInvalid, "lie in one another");
  ExpectRefused(root_ + "/store/meta", root_ + "/store", ErrorCode::kInvalid, "lie in one another");
  std::filesystem::create_directory_symlink(root_ + "/store", root_ + "/link");
  ExpectRefused(root_ + "/link", root_ + "/store", ErrorCode::kInvalid, "lie in one another");
}

}  // namespace
}  // namespace weightfs

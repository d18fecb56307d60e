// SPDX-License-Identifier: Apache-2.0
#include "common/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

namespace weightfs {
namespace {

TEST(ErrorCode, IsTheErrnoThatASystemCallShows) {
  EXPECT_EQ(ToErrno(ErrorCode::kNotFound), ENOENT);
  EXPECT_EQ(ToErrno(ErrorCode{ELOOP}), ELOOP);
  EXPECT_EQ((Error{ErrorCode{ENODEV}}).error_number(), ENODEV);
}

TEST(ErrorCode, OfOurOwnIsShownAsEio) {
  for (const ErrorCode code : {ErrorCode::kCorrupt, ErrorCode::kVersion, ErrorCode::kShutdown}) {
    EXPECT_EQ(ToErrno(code), EIO) << ErrorCodeName(code);
  }
}

TEST(ErrorCode, HasANameForEveryErrno) {
  EXPECT_EQ(ErrorCodeName(ErrorCode::kNoSpace), "no space left");
  EXPECT_EQ(ErrorCodeName(ErrorCode::kCorrupt), "corrupt data");
  EXPECT_EQ(ErrorCodeName(ErrorCode{ELOOP}), std::strerror(ELOOP));
  EXPECT_EQ(ErrorCodeName(ErrorCode{4000}), "unknown error");
}

TEST(Error, ShowsItsCodeOnce) {
  EXPECT_EQ(ToString({ErrorCode::kBusy}), "busy");
  EXPECT_EQ(ToString({ErrorCode::kCorrupt, "block 7: its checksum is another"}),
            "block 7: its checksum is another (corrupt data)");
  EXPECT_EQ(ToString(SystemError("/a b", "cannot be opened", EACCES)), "/a b: cannot be opened: Permission denied");
}

TEST(Error, OfASystemCallTakesErrno) {
  errno = ENOTDIR;
  EXPECT_EQ(SystemError("x", "stat").code, ErrorCode::kNotDirectory);
}

}  // namespace
}  // namespace weightfs

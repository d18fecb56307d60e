// SPDX-License-Identifier: Apache-2.0
#include "fs/errno_map.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace weightfs {
namespace {

TEST(ErrnoMap, EveryCodeIsTheErrnoThatItsCommentNames) {
  const std::pair<ErrorCode, int> expected[] = {{ErrorCode::kNotFound, ENOENT},
                                                {ErrorCode::kExists, EEXIST},
                                                {ErrorCode::kNotDirectory, ENOTDIR},
                                                {ErrorCode::kIsDirectory, EISDIR},
                                                {ErrorCode::kNotEmpty, ENOTEMPTY},
                                                {ErrorCode::kNoSpace, ENOSPC},
                                                {ErrorCode::kInvalid, EINVAL},
                                                {ErrorCode::kPermission, EPERM},
                                                {ErrorCode::kAccess, EACCES},
                                                {ErrorCode::kIo, EIO},
                                                {ErrorCode::kCorrupt, EIO},
                                                {ErrorCode::kVersion, EIO},
                                                {ErrorCode::kReadOnly, EROFS},
                                                {ErrorCode::kNameTooLong, ENAMETOOLONG},
                                                {ErrorCode::kTooManyLinks, EMLINK},
                                                {ErrorCode::kFileTooBig, EFBIG},
                                                {ErrorCode::kNoAttribute, ENODATA},
                                                {ErrorCode::kRange, ERANGE},
                                                {ErrorCode::kTooLarge, E2BIG},
                                                {ErrorCode::kBusy, EBUSY},
                                                {ErrorCode::kNotSupported, EOPNOTSUPP},
                                                {ErrorCode::kNoData, ENXIO},
                                                {ErrorCode::kStale, ESTALE},
                                                {ErrorCode::kNoMemory, ENOMEM},
                                                {ErrorCode::kAgain, EAGAIN},
                                                {ErrorCode::kCrossDevice, EXDEV},
                                                {ErrorCode::kShutdown, EIO}};
  // In the order of the enumeration and without a gap, so that a new code without a line here fails.
  size_t next = 0;
  for (const auto& [code, error] : expected) {
    EXPECT_EQ(static_cast<size_t>(code), next++);
    EXPECT_EQ(ToErrno(code), error) << ErrorCodeName(code);
  }
  EXPECT_EQ(next, static_cast<size_t>(ErrorCode::kShutdown) + 1);
}

}  // namespace
}  // namespace weightfs

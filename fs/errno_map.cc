// SPDX-License-Identifier: Apache-2.0
#include "fs/errno_map.h"

#include <cerrno>

namespace weightfs {

int ToErrno(ErrorCode code) {
  switch (code) {  // no default: the compiler names a code that is missing
    case ErrorCode::kNotFound: return ENOENT;
    case ErrorCode::kExists: return EEXIST;
    case ErrorCode::kNotDirectory: return ENOTDIR;
    case ErrorCode::kIsDirectory: return EISDIR;
    case ErrorCode::kNotEmpty: return ENOTEMPTY;
    case ErrorCode::kNoSpace: return ENOSPC;
    case ErrorCode::kInvalid: return EINVAL;
    case ErrorCode::kPermission: return EPERM;
    case ErrorCode::kAccess: return EACCES;
    case ErrorCode::kIo: return EIO;
    case ErrorCode::kCorrupt: return EIO;
    case ErrorCode::kVersion: return EIO;
    case ErrorCode::kReadOnly: return EROFS;
    case ErrorCode::kNameTooLong: return ENAMETOOLONG;
    case ErrorCode::kTooManyLinks: return EMLINK;
    case ErrorCode::kFileTooBig: return EFBIG;
    case ErrorCode::kNoAttribute: return ENODATA;
    case ErrorCode::kRange: return ERANGE;
    case ErrorCode::kTooLarge: return E2BIG;
    case ErrorCode::kBusy: return EBUSY;
    case ErrorCode::kNotSupported: return EOPNOTSUPP;
    case ErrorCode::kNoData: return ENXIO;
    case ErrorCode::kStale: return ESTALE;
    case ErrorCode::kNoMemory: return ENOMEM;
    case ErrorCode::kAgain: return EAGAIN;
    case ErrorCode::kCrossDevice: return EXDEV;
    case ErrorCode::kShutdown: return EIO;
  }
  return EIO;
}

}  // namespace weightfs

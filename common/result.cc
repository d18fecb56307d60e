// SPDX-License-Identifier: Apache-2.0
#include "common/result.h"

namespace weightfs {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound: return "not found";
    case ErrorCode::kExists: return "already exists";
    case ErrorCode::kNotDirectory: return "not a directory";
    case ErrorCode::kIsDirectory: return "is a directory";
    case ErrorCode::kNotEmpty: return "not empty";
    case ErrorCode::kNoSpace: return "no space left";
    case ErrorCode::kInvalid: return "invalid argument";
    case ErrorCode::kPermission: return "not permitted";
    case ErrorCode::kAccess: return "access denied";
    case ErrorCode::kIo: return "I/O error";
    case ErrorCode::kCorrupt: return "corrupt data";
    case ErrorCode::kVersion: return "unknown format version";
    case ErrorCode::kReadOnly: return "read-only";
    case ErrorCode::kNameTooLong: return "name too long";
    case ErrorCode::kTooManyLinks: return "too many links";
    case ErrorCode::kFileTooBig: return "file too big";
    case ErrorCode::kNoAttribute: return "no such attribute";
    case ErrorCode::kRange: return "buffer too small";
    case ErrorCode::kTooLarge: return "too large";
    case ErrorCode::kBusy: return "busy";
    case ErrorCode::kNotSupported: return "not supported";
    case ErrorCode::kNoData: return "no data past the offset";
    case ErrorCode::kStale: return "stale inode";
    case ErrorCode::kNoMemory: return "out of memory";
    case ErrorCode::kAgain: return "try again";
    case ErrorCode::kCrossDevice: return "crosses devices";
    case ErrorCode::kShutdown: return "the store is closed";
  }
  return "unknown error";
}

std::string ToString(const Error& error) {
  if (error.what.empty()) return std::string(ErrorCodeName(error.code));
  return error.what + " (" + std::string(ErrorCodeName(error.code)) + ")";
}

}  // namespace weightfs

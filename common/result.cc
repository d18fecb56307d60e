// SPDX-License-Identifier: Apache-2.0
#include "common/result.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

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
    case ErrorCode::kCancelled: return "cancelled";
    case ErrorCode::kShutdown: return "the store is closed";
  }
  const char* const description = strerrordesc_np(static_cast<int>(code));
  return description == nullptr ? "unknown error" : description;
}

std::string ToString(const Error& error) {
  if (error.what.empty()) return std::string(ErrorCodeName(error.code));
  if (error.what.ends_with(std::strerror(error.error_number()))) return error.what;
  return error.what + " (" + std::string(ErrorCodeName(error.code)) + ")";
}

Error SystemError(std::string_view path, std::string_view what, int error_number) {
  const char* const advice = error_number == ENOTCONN || error_number == ECONNABORTED
                                 ? "; if it is a mount, its process has ended: 'weightfs umount' removes the mount"
                                 : "";
  return {ErrorCode{error_number}, fmt::format("{}: {}: {}{}", path, what, std::strerror(error_number), advice)};
}

}  // namespace weightfs

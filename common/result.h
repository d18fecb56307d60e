// SPDX-License-Identifier: Apache-2.0
// The one error type of weightfs. Fallible functions return Result<T>; errors travel as values and are
// converted at the edges only (libaio in engine/, RocksDB in meta/, errno in fs/errno_map.h).
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace weightfs {

// What went wrong, in the terms of a filesystem. Every code maps to one errno (fs/errno_map.h).
enum class ErrorCode : unsigned char {
  kNotFound,      // ENOENT
  kExists,        // EEXIST
  kNotDirectory,  // ENOTDIR
  kIsDirectory,   // EISDIR
  kNotEmpty,      // ENOTEMPTY
  kNoSpace,       // ENOSPC
  kInvalid,       // EINVAL: an argument that can never be right
  kPermission,    // EPERM
  kAccess,        // EACCES
  kIo,            // EIO: the device or the key-value store failed
  kCorrupt,       // EIO: bytes on disk that are not what was written
  kVersion,       // a format newer than this program; EIO at run time
  kReadOnly,      // EROFS
  kNameTooLong,   // ENAMETOOLONG
  kTooManyLinks,  // EMLINK
  kFileTooBig,    // EFBIG
  kNoAttribute,   // ENODATA
  kRange,         // ERANGE: the caller's buffer is too small
  kTooLarge,      // E2BIG: an attribute larger than the format holds
  kBusy,          // EBUSY: locked by another process, or in use
  kNotSupported,  // EOPNOTSUPP
  kNoData,        // ENXIO: no data or hole past the offset
  kStale,         // ESTALE: an inode that no longer exists
  kNoMemory,      // ENOMEM
  kAgain,         // EAGAIN: a limited resource is taken for now
  kCrossDevice,   // EXDEV
  kShutdown,      // ESHUTDOWN-like: the store is closed; EIO
};

// The code as lower-case words, for messages: "not found", "no space".
std::string_view ErrorCodeName(ErrorCode code);

// An error. `what` is empty on the hot paths (no allocation); where an error begins that a person must act on
// (format, mount, damaged bytes) it is one full line: what failed, where, and the next step.
struct Error {
  ErrorCode code;
  std::string what = {};
};

// "what (code name)", or the code's name alone where nothing more is known.
std::string ToString(const Error& error);

// A value or an Error; dropping one is a compile error.
template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using Base = tl::expected<T, Error>;
  using Base::Base;
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  Result(ErrorCode code) : Base(tl::unexpect, Error{code}) {}    // NOLINT(google-explicit-constructor)
};

template <>
class [[nodiscard]] Result<void> : public tl::expected<void, Error> {
 public:
  using Base = tl::expected<void, Error>;
  using Base::Base;
  Result() = default;
  Result(Error error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  Result(ErrorCode code) : Base(tl::unexpect, Error{code}) {}    // NOLINT(google-explicit-constructor)
};

#define WEIGHTFS_CONCAT_INNER(a, b) a##b
#define WEIGHTFS_CONCAT(a, b) WEIGHTFS_CONCAT_INNER(a, b)

// Statements, never expressions: a statement-expression inside a braced initialiser leaks.
#define RETURN_IF_ERROR(expression)                                                                                   \
  do {                                                                                                                \
    if (auto weightfs_result = (expression); !weightfs_result.has_value()) return std::move(weightfs_result).error(); \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(WEIGHTFS_CONCAT(weightfs_result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(temporary, declaration, expression)  \
  auto temporary = (expression);                                   \
  if (!temporary.has_value()) return std::move(temporary).error(); \
  declaration = std::move(*temporary)

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The one error type of weightfs, for the programs that link libweightfs too. Fallible functions return Result<T>;
// errors travel as values and are converted at the edges only (libaio in io/, RocksDB in meta/, the kernel's numbers
// here).
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace weightfs {

// What went wrong: an errno, or one of our own that a system call shows as EIO. Every errno is a value of this type
// (`ErrorCode{errno}`); those that the code tells apart have names.
enum class ErrorCode : int {
  kNotFound = ENOENT,
  kExists = EEXIST,
  kNotDirectory = ENOTDIR,
  kIsDirectory = EISDIR,
  kNotEmpty = ENOTEMPTY,
  kNoSpace = ENOSPC,
  kInvalid = EINVAL,  // an argument that can never be right
  kPermission = EPERM,
  kAccess = EACCES,
  kIo = EIO,  // the device or the key-value store failed
  kReadOnly = EROFS,
  kNameTooLong = ENAMETOOLONG,
  kTooManyLinks = EMLINK,
  kFileTooBig = EFBIG,
  kNoAttribute = ENODATA,
  kRange = ERANGE,    // the caller's buffer is too small
  kTooLarge = E2BIG,  // an attribute larger than the format holds
  kBusy = EBUSY,      // locked by another process, or in use
  kNotSupported = EOPNOTSUPP,
  kNoData = ENXIO,  // no data or hole past the offset
  kStale = ESTALE,  // an inode that no longer exists
  kNoMemory = ENOMEM,
  kAgain = EAGAIN,         // a limited resource is taken for now
  kCancelled = ECANCELED,  // by the caller
  kFirstOwn = 4096,        // greater than every errno
  kCorrupt = kFirstOwn,    // bytes on disk that are not what was written
  kVersion,                // a format newer than this program
  kShutdown,               // the store, or the other end of a channel, is closed
};

// The positive errno that a system call shows for `code`.
constexpr int ToErrno(ErrorCode code) { return code < ErrorCode::kFirstOwn ? static_cast<int>(code) : EIO; }

// An error. `what` is empty on the hot paths (no allocation); where an error begins that a person must act on
// (format, mount, damaged bytes) it is one full line: what failed, where, and the next step. The client library says
// too which transfer failed.
struct Error {
  ErrorCode code;
  std::string what = {};
  std::string path = {};  // the file, as the caller named it
  uint64_t offset = 0;    // in the file, in bytes: where the transfer that failed begins

  int error_number() const { return ToErrno(code); }
};

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

}  // namespace weightfs

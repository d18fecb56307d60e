// SPDX-License-Identifier: Apache-2.0
// The error type of weightfs, also for programs that link libweightfs. Fallible functions return Result<T>. Errors are
// values, converted only at the boundaries (libaio in io/, RocksDB in meta/, errno here).
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace weightfs {

// The kind of an error: an errno, or one of our own codes, which a system call reports as EIO. Every errno is a value
// of this type (`ErrorCode{errno}`); the codes that weightfs distinguishes have names.
enum class ErrorCode : int {
  kNotFound = ENOENT,
  kExists = EEXIST,
  kNotDirectory = ENOTDIR,
  kIsDirectory = EISDIR,
  kNotEmpty = ENOTEMPTY,
  kNoSpace = ENOSPC,
  kInvalid = EINVAL,  // an argument that can never be valid
  kPermission = EPERM,
  kAccess = EACCES,
  kIo = EIO,  // the device or the key-value store failed
  kReadOnly = EROFS,
  kNameTooLong = ENAMETOOLONG,
  kTooManyLinks = EMLINK,
  kFileTooBig = EFBIG,
  kNoAttribute = ENODATA,
  kRange = ERANGE,    // the caller's buffer is too small
  kTooLarge = E2BIG,  // an attribute larger than the format allows
  kBusy = EBUSY,      // locked by another process, or in use
  kNotSupported = EOPNOTSUPP,
  kNoData = ENXIO,  // no data or hole past the offset
  kStale = ESTALE,  // the inode no longer exists
  kNoMemory = ENOMEM,
  kAgain = EAGAIN,         // a limited resource is in use
  kCancelled = ECANCELED,  // by the caller
  kFirstOwn = 4096,        // greater than every errno
  kCorrupt = kFirstOwn,    // bytes on disk differ from what was written
  kVersion,                // a format newer than this program
  kShutdown,               // the store, or the other end of a channel, is closed
};

// The positive errno that a system call reports for `code`.
constexpr int ToErrno(ErrorCode code) { return code < ErrorCode::kFirstOwn ? static_cast<int>(code) : EIO; }

// An error. `what` is empty on hot paths, to avoid allocation. For an error that a person must act on (format, mount,
// damaged bytes), it is one full line: what failed, where, and the next step. The client library also names the failed
// transfer.
struct Error {
  ErrorCode code;
  std::string what = {};
  std::string path = {};  // the file, as named by the caller
  uint64_t offset = 0;    // start of the failed transfer in the file, in bytes

  int error_number() const { return ToErrno(code); }
};

// A value or an Error. Ignoring one is a compile error.
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

// SPDX-License-Identifier: Apache-2.0
// The error type of the client library. Its callers live in the world of system calls, so an
// error is an errno with the place where it happened.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace weightfs::client {

struct IoError {
  int error_number = 0;   // a positive errno; ECANCELED for an operation that was cancelled
  std::string what;       // one full line: what failed, where, and the next step where there is one
  std::string path = {};  // the file, as the caller named it
  uint64_t offset = 0;    // in the file, in bytes: where the transfer that failed begins
};

// A value or an IoError; who drops one is warned by the compiler.
template <typename T>
class [[nodiscard]] IoResult : public tl::expected<T, IoError> {
 public:
  using Base = tl::expected<T, IoError>;
  using Base::Base;
  IoResult(IoError error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT(google-explicit-constructor)
};

template <>
class [[nodiscard]] IoResult<void> : public tl::expected<void, IoError> {
 public:
  using Base = tl::expected<void, IoError>;
  using Base::Base;
  IoResult() = default;
  IoResult(IoError error) : Base(tl::unexpect, std::move(error)) {}  // NOLINT(google-explicit-constructor)
};

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
// Error texts, and macros that propagate errors.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "common/error.h"

namespace weightfs {

// Returns the code as lower-case words for messages, such as "not found" or "no space left".
std::string_view ErrorCodeName(ErrorCode code);

// Returns "what (code name)". Without `what`, returns the code's name only; if `what` ends with the text of the errno,
// returns `what` only.
std::string ToString(const Error& error);

// Returns the error of a system call on `path`: "PATH: WHAT: No such file or directory".
Error SystemError(std::string_view path, std::string_view what, int error_number = errno);

#define WEIGHTFS_CONCAT_INNER(a, b) a##b
#define WEIGHTFS_CONCAT(a, b) WEIGHTFS_CONCAT_INNER(a, b)

// These are statements, because a statement-expression inside a braced initializer leaks.
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

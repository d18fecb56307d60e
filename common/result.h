// SPDX-License-Identifier: Apache-2.0
// What weightfs itself uses errors with: their texts, and macros that pass them on.
#pragma once

#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "common/error.h"

namespace weightfs {

// The code as lower-case words, for messages: "not found", "no space left".
std::string_view ErrorCodeName(ErrorCode code);

// "what (code name)"; the code's name alone where nothing more is known, `what` alone where it ends with the errno's
// text.
std::string ToString(const Error& error);

// The error of a system call on `path`: "PATH: WHAT: No such file or directory".
Error SystemError(std::string_view path, std::string_view what, int error_number = errno);

#define WEIGHTFS_CONCAT_INNER(a, b) a##b
#define WEIGHTFS_CONCAT(a, b) WEIGHTFS_CONCAT_INNER(a, b)

// Statements, never expressions: a statement-expression inside a braced initializer leaks.
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

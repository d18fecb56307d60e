// SPDX-License-Identifier: Apache-2.0
// Makes errors with a text.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "common/error.h"

namespace weightfs {

// The text is that of fmt::format.
template <typename... T>
Error MakeError(ErrorCode code, fmt::format_string<T...> format, T&&... values) {
  return {code, fmt::format(format, std::forward<T>(values)...)};
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Reads the files of a user: configurations and tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/error.h"

namespace weightfs::s3 {

// Returns the content of a file of at most `limit` bytes; a larger one fails with kTooLarge. `what` is for messages,
// such as "the token".
Result<std::string> ReadSmallFile(const std::string& path, std::string_view what, size_t limit);

}  // namespace weightfs::s3

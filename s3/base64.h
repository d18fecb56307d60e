// SPDX-License-Identifier: Apache-2.0
// Base64 of RFC 4648.
#pragma once

#include <string>
#include <string_view>

namespace weightfs::s3 {

// Returns the bytes in Base64 with padding and without line breaks.
std::string EncodeBase64(std::string_view bytes);

}  // namespace weightfs::s3

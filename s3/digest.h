// SPDX-License-Identifier: Apache-2.0
// Hashes, and Base64 of RFC 4648.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weightfs::s3 {

// The bytes of the hash of `bytes`. None if OpenSSL does not have it (perhaps MD5 in FIPS mode).
std::optional<std::string> Md5(std::string_view bytes);
std::optional<std::string> Sha256(std::string_view bytes);

// Returns the bytes in Base64 with padding and without line breaks.
std::string EncodeBase64(std::string_view bytes);
// The inverse, as OpenSSL reads it; none for a text that it refuses.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace weightfs::s3

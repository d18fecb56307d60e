// SPDX-License-Identifier: Apache-2.0
// AWS Signature Version 4, in the Authorization header.
#pragma once

#include <string_view>
#include <vector>

#include "s3/credentials.h"

namespace weightfs::s3 {

// Names and values in any order. Names of headers are in lower case.
using Fields = std::vector<std::pair<std::string, std::string>>;

// The hash of a body that is not signed. TLS, or checksums of our own, must protect such a body.
inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

// A request as it is sent. Everything here is signed.
struct SignedRequest {
  std::string_view method;
  std::string_view host;                             // with the port if the Host header has it
  std::string_view path;                             // percent-encoded, as in the URL
  const Fields& query;                               // not encoded
  const Fields& headers;                             // without host
  std::string_view payload_hash = kUnsignedPayload;  // SHA-256 of the body in hexadecimal, or kUnsignedPayload
  std::string_view region;
  std::string_view service = "s3";
};

// Returns the headers to add to the request: x-amz-date, x-amz-content-sha256, x-amz-security-token with a session
// token, and authorization. Fails if OpenSSL has no SHA-256. A pure function; thread-safe.
Result<Fields> Sign(const SignedRequest& request, const Credentials& credentials,
                    std::chrono::system_clock::time_point now);

// Returns the query as it must be in the URL: encoded and sorted, without '?'.
std::string CanonicalQuery(const Fields& query);

// Returns the SHA-256 in hexadecimal. Fails if OpenSSL has none.
Result<std::string> Sha256Hex(std::string_view bytes);

}  // namespace weightfs::s3

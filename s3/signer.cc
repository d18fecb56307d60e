// SPDX-License-Identifier: Apache-2.0
#include "s3/signer.h"

#include <fmt/chrono.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "common/hex.h"
#include "common/result.h"
#include "s3/digest.h"
#include "s3/location.h"

namespace weightfs::s3 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

Error NoSha256() {
  return {ErrorCode::kNotSupported, "OpenSSL on this machine has no SHA-256; check its configuration"};
}

Result<std::string> Hmac(std::string_view key, std::string_view text) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
           text.size(), reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr) {
    return NoSha256();
  }
  digest.resize(size);
  return digest;
}

// Removes spaces at both ends and makes several of them one, as the signature requires.
std::string TrimmedValue(std::string_view value) {
  std::string trimmed;
  for (const char c : value) {
    if (c != ' ' && c != '\t') {
      trimmed += c;
    } else if (!trimmed.empty() && trimmed.back() != ' ') {
      trimmed += ' ';
    }
  }
  if (trimmed.ends_with(' ')) trimmed.pop_back();
  return trimmed;
}

struct CanonicalHeaders {
  std::string lines, names;
};

CanonicalHeaders Canonicalize(Fields headers) {
  std::ranges::stable_sort(headers, {}, &Fields::value_type::first);
  CanonicalHeaders canonical;
  for (const auto& [name, value] : headers) {
    canonical.lines += fmt::format("{}:{}\n", name, TrimmedValue(value));
    canonical.names += (canonical.names.empty() ? "" : ";") + name;
  }
  return canonical;
}

}  // namespace

Result<Fields> Sign(const SignedRequest& request, const Credentials& credentials,
                    std::chrono::system_clock::time_point now) {
  const auto time = fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now)), day = time.substr(0, 8);
  Fields added = {{"x-amz-date", time}, {"x-amz-content-sha256", std::string(request.payload_hash)}};
  if (!credentials.session_token.empty()) added.emplace_back("x-amz-security-token", credentials.session_token);

  Fields headers = request.headers;
  headers.emplace_back("host", request.host);
  headers.insert(headers.end(), added.begin(), added.end());
  const auto canonical = Canonicalize(std::move(headers));
  const auto text = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, CanonicalQuery(request.query),
                                canonical.lines, canonical.names, request.payload_hash);

  const auto scope = fmt::format("{}/{}/{}/aws4_request", day, request.region, request.service);
  ASSIGN_OR_RETURN(const auto hash, Sha256Hex(text));
  auto key = "AWS4" + credentials.secret_key;
  for (const std::string_view part :
       {std::string_view(day), request.region, request.service, std::string_view("aws4_request")}) {
    ASSIGN_OR_RETURN(key, Hmac(key, part));
  }
  ASSIGN_OR_RETURN(const auto signature, Hmac(key, fmt::format("{}\n{}\n{}\n{}", kAlgorithm, time, scope, hash)));
  added.emplace_back("authorization", fmt::format("{} Credential={}/{},SignedHeaders={},Signature={}", kAlgorithm,
                                                  credentials.access_key, scope, canonical.names, ToHex(signature)));
  return added;
}

std::string CanonicalQuery(const Fields& query) {
  Fields encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query) {
    encoded.emplace_back(PercentEncode(name, Slashes::kEncode), PercentEncode(value, Slashes::kEncode));
  }
  std::ranges::sort(encoded);
  std::string text;
  for (const auto& [name, value] : encoded) text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  return text;
}

Result<std::string> Sha256Hex(std::string_view bytes) {
  const auto digest = Sha256(bytes);
  if (!digest) return NoSha256();
  return ToHex(*digest);
}

}  // namespace weightfs::s3

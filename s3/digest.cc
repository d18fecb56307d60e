// SPDX-License-Identifier: Apache-2.0
#include "s3/digest.h"

#include <openssl/evp.h>

#include <algorithm>

namespace weightfs::s3 {
namespace {

const unsigned char* In(std::string_view bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* Out(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

std::optional<std::string> Digest(const EVP_MD* algorithm, std::string_view bytes) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), Out(digest), &size, algorithm, nullptr) != 1) return std::nullopt;
  digest.resize(size);
  return digest;
}

}  // namespace

std::optional<std::string> Md5(std::string_view bytes) { return Digest(EVP_md5(), bytes); }
std::optional<std::string> Sha256(std::string_view bytes) { return Digest(EVP_sha256(), bytes); }

std::string EncodeBase64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and a zero byte, which EVP_EncodeBlock appends
  text.resize(static_cast<size_t>(EVP_EncodeBlock(Out(text), In(bytes), static_cast<int>(bytes.size()))));
  return text;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(Out(bytes), In(text), static_cast<int>(text.size()));
  if (size != static_cast<int>(bytes.size())) return std::nullopt;
  // OpenSSL counts the bytes of the padding.
  bytes.resize(bytes.size() - std::min<size_t>(2, std::ranges::count(text, '=')));
  return bytes;
}

}  // namespace weightfs::s3

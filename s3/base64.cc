// SPDX-License-Identifier: Apache-2.0
#include "s3/base64.h"

#include <openssl/evp.h>

namespace weightfs::s3 {

std::string EncodeBase64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // and a zero byte, which EVP_EncodeBlock appends
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/small_file.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "common/result.h"

namespace weightfs::s3 {

Result<std::string> ReadSmallFile(const std::string& path, std::string_view what, size_t limit) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return SystemError(path, fmt::format("cannot read {}", what));
  std::string text(limit + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return SystemError(path, fmt::format("cannot read {}", what));
  if (text.size() > limit) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("{}: {} is larger than {} bytes; name another file", path, what, limit)};
  }
  return text;
}

}  // namespace weightfs::s3

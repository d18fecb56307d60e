// SPDX-License-Identifier: Apache-2.0
// Names of temporary files, which are renamed when complete or removed. Documented for users in README, "Limits".
#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <random>
#include <string>

#include "common/unique_fd.h"

namespace weightfs::client {

// A template for mkdtemp(3), which replaces the last six characters.
inline std::string TemporaryName(const std::string& start) { return start + ".weightfs-" + std::string(6, 'X'); }

// Creates a file whose name begins with `start`, open for reading and writing. Its mode is `mode` minus the umask,
// which mkostemp(3) does not offer. Invalid, with errno set, if that fails.
inline UniqueFd CreateTemporaryFile(const std::string& start, mode_t mode, std::string* path) {
  std::random_device random;
  for (;;) {
    *path = fmt::format("{}.weightfs-{:08x}", start, random());
    UniqueFd file(open(path->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file || errno != EEXIST) return file;
  }
}

}  // namespace weightfs::client

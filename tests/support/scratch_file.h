// SPDX-License-Identifier: Apache-2.0
// A file that is removed with its object.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace weightfs {

// A file of zeros of a given size, in TMPDIR or in the working directory, so that it is on a disk where O_DIRECT works.
class ScratchFile {
 public:
  explicit ScratchFile(uint64_t size) {
    const char* folder = std::getenv("TMPDIR");
    path_ = fmt::format("{}/weightfs-test.XXXXXX", folder != nullptr ? folder : ".");
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(size)) != 0) std::abort();
    close(descriptor);
  }
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Files for the tests of the client library: a directory that is removed after the test, and bytes that identify their
// offset.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace weightfs::client {

using Bytes = std::vector<std::byte>;

// Bytes that differ at all offsets that a test could confuse.
inline Bytes RandomBytes(size_t size, unsigned seed = 1) {
  std::mt19937_64 generator(seed);
  Bytes bytes(size + 8);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t value = generator();
    std::memcpy(bytes.data() + i, &value, sizeof(value));
  }
  bytes.resize(size);
  return bytes;
}

// The content of a file of `old` bytes after `written` was written at an offset. Without an offset it is replaced.
inline Bytes AfterWrite(Bytes old, std::optional<uint64_t> offset, const Bytes& written) {
  if (!offset) return written;
  old.resize(std::max<size_t>(old.size(), *offset + written.size()));
  std::copy(written.begin(), written.end(), old.begin() + static_cast<long>(*offset));
  return old;
}

// In TMPDIR or in the working directory, so that it is on a disk where O_DIRECT works. `parent` may name another
// filesystem.
class Folder {
 public:
  explicit Folder(std::string parent = "") {
    const char* standard = std::getenv("TMPDIR");
    if (parent.empty()) parent = standard != nullptr ? standard : ".";
    path_ = parent + "/weightfs-client.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  size_t entries() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::string path_;
};

inline void WriteFile(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) std::abort();
}

inline Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

inline size_t OpenDescriptors() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

// True once no more descriptors are open than before. The fake mount, on a thread of this process, closes those that it
// has sent after they have arrived.
inline bool NoMoreAreOpenThan(size_t before) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (OpenDescriptors() > before) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace weightfs::client

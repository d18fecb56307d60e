// SPDX-License-Identifier: Apache-2.0
// Stores in a temporary directory, for the tests of format and of the store directory.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "store/volume/store_directory.h"
#include "tests/support/temporary_directory.h"

namespace weightfs {

inline constexpr ByteCount kSmall{16 * kMiB};
// Larger than a file may be on any filesystem.
inline constexpr ByteCount kHuge{uint64_t{1} << 61};

class StoreDirectoryTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return (scratch_.path() / name).string(); }

  StoreDescription Format(const std::string& name, FormatOptions options = {}) const {
    if (options.devices.empty() && options.size.value == 0) options.size = kSmall;
    auto made = FormatStore(Path(name), options);
    if (!made.has_value()) {
      ADD_FAILURE() << ToString(made.error());
      return {};
    }
    return made->description;
  }

  Error FormatError(const std::string& name, const FormatOptions& options) const {
    auto made = FormatStore(Path(name), options);
    if (!made.has_value()) return made.error();
    ADD_FAILURE() << "format of " << name << " succeeded";
    return {ErrorCode::kInvalid};
  }

  Error OpenError(const std::string& name) const {
    auto parts = OpenStoreParts(Path(name), {});
    if (!parts.has_value()) return parts.error();
    ADD_FAILURE() << "open of " << name << " succeeded";
    return {ErrorCode::kInvalid};
  }

  std::string MakeFile(const std::string& name, ByteCount size) const {
    std::ofstream(Path(name)).flush();
    std::filesystem::resize_file(Path(name), size.value);
    return Path(name);
  }

  static void Poke(const std::string& path, uint64_t offset, std::string_view bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }

  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Maps every file under `name` to its content.
  std::map<std::string, uint32_t> Snapshot(const std::string& name) const {
    std::map<std::string, uint32_t> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(Path(name))) {
      if (!entry.is_regular_file()) continue;
      const std::string content = Slurp(entry.path().string());
      files[entry.path().string()] = Crc32c(std::as_bytes(std::span(content)));
    }
    return files;
  }

  TemporaryDirectory scratch_;
};

inline FormatOptions Sized(ByteCount size) {
  FormatOptions options;
  options.size = size;
  return options;
}

inline FormatOptions OnDevices(std::vector<std::string> devices) {
  FormatOptions options;
  options.devices = std::move(devices);
  return options;
}

inline Superblock SuperblockOf(const std::string& path) {
  auto device = FileDevice::Open(path, {.exclusive = false});
  EXPECT_TRUE(device.has_value());
  auto superblock = ReadSuperblock(**device);
  EXPECT_TRUE(superblock.has_value());
  return *superblock;
}

}  // namespace weightfs

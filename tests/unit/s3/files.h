// SPDX-License-Identifier: Apache-2.0
// A directory with the configuration files of a user, and an environment that names them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "s3/settings.h"

namespace weightfs::s3 {

class UserFiles {
 public:
  UserFiles() {
    std::string path = std::filesystem::temp_directory_path() / "weightfs-s3-XXXXXX";
    home_ = mkdtemp(path.data());
    std::filesystem::create_directory(home_ / ".aws");
    variables["HOME"] = home_;
    variables["AWS_EC2_METADATA_DISABLED"] = "true";
  }
  ~UserFiles() { std::filesystem::remove_all(home_); }
  UserFiles(const UserFiles&) = delete;
  UserFiles& operator=(const UserFiles&) = delete;

  // Writes a file in the home directory and returns its path.
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(home_ / name) << text;
    return home_ / name;
  }
  Environment environment() const {
    return [this](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end() || found->second.empty()) return std::nullopt;
      return found->second;
    };
  }

  std::map<std::string, std::string> variables;

 private:
  std::filesystem::path home_;
};

}  // namespace weightfs::s3

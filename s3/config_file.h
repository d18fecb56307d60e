// SPDX-License-Identifier: Apache-2.0
// The configuration files that all AWS programs share: ~/.aws/config and ~/.aws/credentials.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string_view>

#include "common/error.h"

namespace weightfs::s3 {

// Returns the content of a file of a user of at most `limit` bytes; a larger one fails with kTooLarge. `what` is for
// messages, such as "the token".
Result<std::string> ReadSmallFile(const std::string& path, std::string_view what, size_t limit);

// The values of one section. Names are in lower case. A nested value has the name of its parent before it:
//   s3 =
//     addressing_style = path      is "s3.addressing_style".
using ConfigSection = std::map<std::string, std::string>;

// Immutable, so thread-safe.
class ConfigFile {
 public:
  ConfigFile() = default;

  // Parses `text`; `path` is for messages. Fails with kInvalid, the path and the number of the line.
  static Result<ConfigFile> Parse(std::string_view text, std::string_view path);
  // Reads a file. One that does not exist is empty.
  static Result<ConfigFile> Read(const std::string& path);

  // Returns null if there is no such section.
  const ConfigSection* Find(const std::string& section) const;
  // Returns the section of a profile in ~/.aws/config: "profile NAME", or "default".
  const ConfigSection* FindProfile(const std::string& profile) const;

 private:
  std::map<std::string, ConfigSection> sections_;
};

// Returns the value, or none if the section is null or has none, or if the value is empty.
std::optional<std::string> ValueOf(const ConfigSection* section, const std::string& name);

}  // namespace weightfs::s3

// SPDX-License-Identifier: Apache-2.0
#include "s3/config_file.h"

#include <cstdio>
#include <memory>

#include "common/make_error.h"
#include "common/result.h"
#include "s3/text.h"

namespace weightfs::s3 {
namespace {

constexpr std::string_view kSpaces = " \t\r";
constexpr size_t kMaxFileSize = 1 << 20;

// Returns the name of a section with single spaces and without quotes: [profile "my name"] is "profile my name".
std::string SectionName(std::string_view text) {
  text = Trim(text);
  const auto space = text.find_first_of(kSpaces);
  if (space == std::string_view::npos) return std::string(text);
  auto rest = Trim(text.substr(space));
  if (rest.size() >= 2 && rest.front() == rest.back() && (rest.front() == '"' || rest.front() == '\'')) {
    rest = rest.substr(1, rest.size() - 2);
  }
  return fmt::format("{} {}", text.substr(0, space), rest);
}

}  // namespace

Result<std::string> ReadSmallFile(const std::string& path, std::string_view what, size_t limit) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return SystemError(path, fmt::format("cannot read {}", what));
  std::string text(limit + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return SystemError(path, fmt::format("cannot read {}", what));
  if (text.size() <= limit) return text;
  return MakeError(ErrorCode::kTooLarge, "{}: {} is larger than {} bytes; name another file", path, what, limit);
}

Result<ConfigFile> ConfigFile::Parse(std::string_view text, std::string_view path) {
  ConfigFile file;
  ConfigSection* section = nullptr;
  std::string parent;  // of indented lines
  for (size_t number = 1; !text.empty(); ++number) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end), content = Trim(line);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto fail = [&, number](std::string_view why) {
      return MakeError(ErrorCode::kInvalid, "{}: line {}: {}; correct the file", path, number, why);
    };
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (line.front() == '[') {
      const auto close = content.find(']');
      if (close == std::string_view::npos) return fail("']' is missing");
      section = &file.sections_[SectionName(content.substr(1, close - 1))];
      parent.clear();
      continue;
    }
    const bool indented = kSpaces.find(line.front()) != std::string_view::npos;
    const auto equals = content.find('=');
    if (section == nullptr) return fail("it is in no section");
    if (equals == std::string_view::npos || equals == 0) {
      if (indented && !parent.empty()) continue;  // the rest of a value of several lines, which none of ours has
      return fail("it is neither a section nor 'name = value'");
    }
    auto name = LowerCase(Trim(content.substr(0, equals)));
    if (indented && !parent.empty()) {
      name = parent + "." + name;
    } else {
      parent = name;
    }
    (*section)[name] = Trim(content.substr(equals + 1));
  }
  return file;
}

Result<ConfigFile> ConfigFile::Read(const std::string& path) {
  const auto text = ReadSmallFile(path, "the AWS configuration", kMaxFileSize);
  if (text) return Parse(*text, path);
  const bool is_absent = text.error().code == ErrorCode::kNotFound || text.error().code == ErrorCode::kNotDirectory;
  return is_absent ? Result<ConfigFile>(ConfigFile()) : text.error();
}

const ConfigSection* ConfigFile::Find(const std::string& section) const {
  const auto found = sections_.find(section);
  return found == sections_.end() ? nullptr : &found->second;
}

const ConfigSection* ConfigFile::FindProfile(const std::string& profile) const {
  if (const auto* section = Find("profile " + profile)) return section;
  return profile == "default" ? Find(profile) : nullptr;
}

std::optional<std::string> ValueOf(const ConfigSection* section, const std::string& name) {
  if (section == nullptr) return std::nullopt;
  const auto found = section->find(name);
  if (found == section->end() || found->second.empty()) return std::nullopt;
  return found->second;
}

}  // namespace weightfs::s3

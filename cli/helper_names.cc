// SPDX-License-Identifier: Apache-2.0
#include "cli/helper_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs::cli {
namespace {

using Words = std::vector<std::string>;

bool Contains(std::string_view list, std::string_view option) {
  return fmt::format(",{},", list).find(fmt::format(",{},", option)) != std::string::npos;
}

// mount(8): SOURCE DIRECTORY [-sfnv] [-N namespace] [-o options] [-t type]
Words TranslateMount(const Words& arguments, bool is_root) {
  Words words = {"mount"};
  // Before the others, which win. A remount changes only what it names.
  const bool remount = std::any_of(arguments.begin(), arguments.end(),
                                   [](const std::string& list) { return Contains(list, "remount"); });
  if (is_root && !remount) words.insert(words.end(), {"-o", "dev,suid"});
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    const bool has_next = at + 1 < arguments.size();
    if (argument == "-t" && has_next) {
      ++at;
    } else if (argument == "-N" && has_next) {
      words.insert(words.end(), {"--namespace", arguments[++at]});
    } else if (argument == "-o" && has_next) {
      words.insert(words.end(), {"-o", arguments[++at]});
    } else if (argument == "-f") {
      return {"--version"};  // a rehearsal: nothing is mounted
    } else if (argument == "-r") {
      words.insert(words.end(), {"-o", "ro"});
    } else if (argument != "-s" && argument != "-n" && argument != "-v" && argument != "-w") {
      words.push_back(argument);
    }
  }
  return words;
}

// umount(8): [-nlfvr] [-N namespace] [-t type] DIRECTORY
Words TranslateUmount(const Words& arguments) {
  Words words = {"umount"};
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    const bool has_next = at + 1 < arguments.size();
    if (argument == "-t" && has_next) {
      ++at;
    } else if (argument == "-N" && has_next) {
      words.insert(words.end(), {"--namespace", arguments[++at]});
    } else if (argument == "-l" || argument == "-f" || argument == "-r" || !argument.starts_with('-')) {
      words.push_back(argument);
    }
  }
  return words;
}

// fsck(8): -a and -p repair unasked what can be, -y repairs, -n only looks, -C shows progress.
Words TranslateFsck(const Words& arguments) {
  Words words = {"fsck"};
  for (const std::string& argument : arguments) {
    if (argument == "-a" || argument == "-p" || argument == "-y" || argument == "-r") {
      words.emplace_back("--repair");
    } else if (argument.starts_with("--") || !argument.starts_with('-')) {
      words.push_back(argument);
    }
  }
  return words;
}

}  // namespace

std::vector<std::string> TranslateHelperName(std::string_view program, const Words& arguments, bool is_root) {
  const std::string_view name = program.substr(program.rfind('/') + 1);
  if (name == "mount.weightfs" || name == "mount.fuse.weightfs") return TranslateMount(arguments, is_root);
  if (name == "umount.weightfs" || name == "umount.fuse.weightfs") return TranslateUmount(arguments);
  if (name == "fsck.weightfs") return TranslateFsck(arguments);
  return arguments;
}

}  // namespace weightfs::cli

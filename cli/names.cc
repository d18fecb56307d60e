// SPDX-License-Identifier: Apache-2.0
#include "cli/names.h"

#include <fmt/ranges.h>
#include <getopt.h>

#include <algorithm>
#include <iterator>

#include "cli/output.h"
#include "common/mounts.h"

namespace weightfs::cli {
namespace {

using Words = std::vector<std::string>;

// A one-letter option, or a word if the letter is '\0'.
struct Part {
  char letter;
  std::string value;
};

// Parses the arguments with getopt(3); `letters` is in its syntax. Unknown options are kept, and the subcommand rejects
// them.
std::vector<Part> TakeApart(Words arguments, const std::string& letters) {
  std::vector<char*> words = {nullptr};
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  const int count = static_cast<int>(words.size()) - 1;
  const option no_long_ones[] = {{}};
  optind = 0;
  std::vector<Part> parts;
  for (int found = 0;
       (found = getopt_long(count, words.data(), ("-:" + letters).c_str(), no_long_ones, nullptr)) != -1;) {
    const bool refused = found == '?' || found == ':';
    if (found == 1) {
      parts.push_back({'\0', optarg});
    } else if (refused && optopt == 0) {
      parts.push_back({'\0', words[optind - 1]});  // "--json"
    } else {
      parts.push_back({static_cast<char>(refused ? optopt : found), optarg == nullptr ? "" : optarg});
    }
  }
  while (optind < count) parts.push_back({'\0', words[optind++]});
  return parts;
}

bool IsOneOf(char letter, std::string_view letters) { return letters.find(letter) != std::string_view::npos; }

void PassOn(const Part& part, Words* words) {
  words->push_back(part.letter == '\0' ? part.value : std::string{'-', part.letter});
  if (part.letter != '\0' && !part.value.empty()) words->push_back(part.value);
}

// mount(8): SOURCE DIRECTORY [-sfnv] [-N namespace] [-o options] [-t type]
Words TranslateMount(const Words& arguments, bool is_root) {
  Words words = {"mount", "--from-table"};
  const std::vector<Part> parts = TakeApart(arguments, "sfnvrwo:t:N:");
  const bool remount = std::ranges::any_of(
      parts, [](const Part& part) { return part.letter == 'o' && HasOption(part.value, "remount"); });
  // Placed before the user's options, which take precedence. A remount changes only the options that it names.
  if (is_root && !remount) words.insert(words.end(), {"-o", "dev,suid"});
  for (const Part& part : parts) {
    if (part.letter == 'f') return {"--version"};  // a dry run: nothing is mounted
    if (part.letter == 'r') {
      words.insert(words.end(), {"-o", "ro"});
    } else if (!IsOneOf(part.letter, "snvwt")) {
      PassOn(part, &words);
    }
  }
  return words;
}

// umount(8): [-nlfvr] [-N namespace] [-t type] DIRECTORY
Words TranslateUmount(const Words& arguments) {
  Words words = {"umount"};
  for (const Part& part : TakeApart(arguments, "nlfvrt:N:")) {
    if (!IsOneOf(part.letter, "nvt")) PassOn(part, &words);
  }
  return words;
}

// fsck(8): -a and -p repair automatically what can be repaired, -y repairs, -n only checks, -C shows progress, -f also
// checks a store that was closed cleanly. A boot does not wait until all data was read.
Words TranslateFsck(const Words& arguments) {
  Words words = {"verify", "--catalog"};
  for (const Part& part : TakeApart(arguments, "apyrnfvVTMlC::t:")) {
    if (part.value == "--data") {  // of `weightfs fsck`
      std::erase(words, "--catalog");
    } else if (IsOneOf(part.letter, "apyr")) {
      words.emplace_back("--repair");
    } else if (!IsOneOf(part.letter, "nfvVTMlCt")) {
      PassOn(part, &words);
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
  if (name != "weightfs-bench") return arguments;
  Words words = arguments;
  words.emplace(words.begin(), "bench");
  return words;
}

std::vector<std::string> TranslateOldName(Words words) {
  struct Renamed {
    std::string_view old;
    Words now;
  };
  const Renamed all[] = {{"fsck", {"verify", "--catalog"}},
                         {"scrub", {"verify"}},
                         {"top", {"stats", "--by", "process,file"}},
                         {"unpublish", {"publish", "--undo"}}};
  const auto renamed = std::ranges::find(all, words.empty() ? "" : words.front(), &Renamed::old);
  if (renamed == std::end(all)) return words;
  Words now = renamed->now;
  // fsck read the data only with --data, and verify reads it unless --catalog is given.
  if (renamed->old == "fsck" && std::erase(words, "--data") > 0) now.pop_back();
  if (std::ranges::count(words, "--json") == 0) {
    Print(stderr, "weightfs: '{}' is now 'weightfs {}'; the old name will be removed after this version\n",
          renamed->old, fmt::join(now, " "));
  }
  now.insert(now.end(), words.begin() + 1, words.end());
  return now;
}

}  // namespace weightfs::cli

// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE BENCH.json` writes the man pages and the completions.
// BENCH.json is the description of `weightfs bench` by its package.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/completion.h"
#include "cli/man_page.h"
#include "cli/program.h"

namespace {

using weightfs::cli::Command;
using weightfs::cli::Target;

bool Write(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "weightfs-documents: %s: cannot be written\n", path.c_str());
  return static_cast<bool>(file);
}

// A command that another program describes (bench/options.py, describe).
Command ParseCommand(const std::string& json) {
  const auto described = nlohmann::json::parse(json);
  Command command(described.at("name"), described.at("summary"));
  command.footer = described.at("footer");
  command.options.clear();
  for (const auto& one : described.at("options")) {
    std::string synopsis;
    for (const std::string name : one.at("names")) synopsis += name + " ";
    const std::string value = one.at("value");
    const bool may_be_missing = one.at("optional_value") || (synopsis.empty() && !value.empty());
    synopsis += may_be_missing ? "[" + value + "]" : value;
    const bool repeated = one.at("repeated");
    command.Add(synopsis, repeated ? Target(static_cast<std::vector<std::string>*>(nullptr)) : Target(),
                one.at("meaning"));
  }
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "Usage: weightfs-documents DIRECTORY DATE BENCH.json\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  auto commands = weightfs::cli::MakeCommands();
  std::ifstream description(argv[3]);
  auto bench = ParseCommand({std::istreambuf_iterator<char>(description), {}});
  std::ranges::replace_if(commands, [&](const auto& command) { return command.name == bench.name; }, bench);
  std::erase_if(commands, [](const auto& command) { return command.hidden; });
  for (auto& command : commands) std::erase_if(command.options, [](const auto& option) { return option.hidden; });
  bool written = true;
  for (const auto& [path, page] : weightfs::cli::MakeManPages(commands, argv[2])) {
    written = Write(directory / "man" / path, page) && written;
  }
  written = Write(directory / "weightfs.bash", weightfs::cli::BashCompletion(commands)) && written;
  written = Write(directory / "_weightfs", weightfs::cli::ZshCompletion(commands)) && written;
  written = Write(directory / "weightfs.fish", weightfs::cli::FishCompletion(commands)) && written;
  return written ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE BENCH.json` writes the man pages.
// BENCH.json is the description of `weightfs bench` by its package.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/commands.h"
#include "cli/man_page.h"
#include "cli/program.h"

namespace {

bool Write(const std::filesystem::path& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "weightfs-documents: %s: cannot be written\n", path.c_str());
  return static_cast<bool>(file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "Usage: weightfs-documents DIRECTORY DATE BENCH.json\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  auto commands = weightfs::cli::MakeCommands();
  *std::ranges::find(commands, "bench", &weightfs::cli::Command::name) = weightfs::cli::DescribeBench(argv[3]);
  std::erase_if(commands, [](const auto& command) { return command.hidden; });
  for (auto& command : commands) std::erase_if(command.options, [](const auto& option) { return option.hidden; });
  bool written = true;
  for (const auto& [path, page] : weightfs::cli::MakeManPages(commands, argv[2])) {
    written = Write(directory / "man" / path, page) && written;
  }
  return written ? 0 : 1;
}

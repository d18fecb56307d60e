// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE BENCH.json` writes the man pages and the completions.
// BENCH.json is the description of `weightfs bench` by its package.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/command_tree.h"
#include "cli/completion.h"
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
  int exit_code = 0;
  const auto app = weightfs::cli::MakeApp(&exit_code);
  auto commands = weightfs::cli::DescribeCommands(*app);
  std::ifstream description(argv[3]);
  auto bench = weightfs::cli::ParseCommand({std::istreambuf_iterator<char>(description), {}});
  std::ranges::replace_if(commands, [&](const auto& command) { return command.name == bench.name; }, bench);
  bool written = true;
  for (const auto& [path, page] : weightfs::cli::MakeManPages(commands, argv[2])) {
    written = Write(directory / "man" / path, page) && written;
  }
  written = Write(directory / "weightfs.bash", weightfs::cli::BashCompletion(commands)) && written;
  written = Write(directory / "_weightfs", weightfs::cli::ZshCompletion(commands)) && written;
  written = Write(directory / "weightfs.fish", weightfs::cli::FishCompletion(commands)) && written;
  return written ? 0 : 1;
}

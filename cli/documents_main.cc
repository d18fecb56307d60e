// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE` writes the man pages and the completions.
#include <cstdio>
#include <filesystem>
#include <fstream>
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
  if (argc != 3) {
    std::fprintf(stderr, "Usage: weightfs-documents DIRECTORY DATE\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  int exit_code = 0;
  const auto app = weightfs::cli::MakeApp(&exit_code);
  const auto commands = weightfs::cli::DescribeCommands(*app);
  bool written = true;
  for (const auto& [path, page] : weightfs::cli::MakeManPages(commands, argv[2])) {
    written = Write(directory / "man" / path, page) && written;
  }
  written = Write(directory / "weightfs.bash", weightfs::cli::BashCompletion(commands)) && written;
  written = Write(directory / "_weightfs", weightfs::cli::ZshCompletion(commands)) && written;
  written = Write(directory / "weightfs.fish", weightfs::cli::FishCompletion(commands)) && written;
  return written ? 0 : 1;
}

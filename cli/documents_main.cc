// SPDX-License-Identifier: Apache-2.0
// A tool of the build: `weightfs-documents DIRECTORY DATE BENCH.json PAGE...` writes the man pages. BENCH.json is the
// description of `weightfs bench` by its package. A PAGE is written by hand, except for the table of mount options.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

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

std::string AddMountOptions(const std::filesystem::path& page) {
  constexpr std::string_view kMark = ".\\\" MOUNT OPTIONS\n";
  std::ifstream file(page);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  return text.replace(text.find(kMark), kMark.size(), weightfs::cli::MountOptions());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "Usage: weightfs-documents DIRECTORY DATE BENCH.json PAGE...\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  auto commands = weightfs::cli::MakeCommands();
  auto& bench = *std::ranges::find(commands, "bench", &weightfs::cli::Command::name);
  bench = weightfs::cli::DescribeBench(argv[3]);
  if (bench.options.empty()) {
    std::fprintf(stderr, "weightfs-documents: %s: not the description of weightfs bench\n", argv[3]);
    return 1;
  }
  std::erase_if(commands, [](const auto& command) { return command.hidden; });
  for (auto& command : commands) std::erase_if(command.options, [](const auto& option) { return option.hidden; });
  bool written = true;
  for (const auto& [path, page] : weightfs::cli::MakeManPages(commands, argv[2])) {
    written = Write(directory / "man" / path, page) && written;
  }
  for (const std::filesystem::path page : std::span(argv + 4, argv + argc)) {
    const std::string section = "man" + page.extension().string().substr(1);
    written = Write(directory / "man" / section / page.filename(), AddMountOptions(page)) && written;
  }
  return written ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
// weightfs bench: runs the Python package bench/, which is installed beside the program and uses this program and its
// worker.
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/worker.h"
#include "cli/commands.h"
#include "cli/output.h"

namespace weightfs::cli {
namespace {

std::filesystem::path Program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::filesystem::path Package() { return (Program().parent_path() / "../share/weightfs/bench").lexically_normal(); }

// Replaces this process. Returns only if that fails.
Error Execute(const std::vector<std::string>& arguments) {
  const auto package = Package();
  if (access((package / "__main__.py").c_str(), R_OK) != 0) {
    return MakeError(ErrorCode::kNotFound,
                     "{}: weightfs bench runs this Python package, which is not installed; install the package "
                     "weightfs, or run 'cmake --install'",
                     package.string());
  }
  // Isolated mode: no module in the current directory or in PYTHONPATH replaces one that the benchmark imports.
  std::vector<std::string> words = {"python3", "-I", package.string(), Program().string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  signal(SIGPIPE, SIG_DFL);
  execvp(pointers[0], pointers.data());
  if (errno != ENOENT) return SystemError("python3", "cannot be run");
  return {ErrorCode::kNotFound, "the benchmark needs python3, and it is not in PATH: apt-get install python3"};
}

}  // namespace

Command BenchCommand() {
  Command command("bench", "Compare a mount with the raw disk and the host's filesystem");
  command.options.clear();  // the package has the options and explains them
  command.footer = "Examples:\n  weightfs bench /mnt/tensors --json bench.json --report bench.html";
  command.run_words = [](const std::vector<std::string>& words) { return Fail(Execute(words)); };
  return command;
}

Command DescribeBench(std::filesystem::path description) {
  if (description.empty()) description = Package().string() + ".json";
  std::ifstream file(description);
  const auto described = nlohmann::json::parse(file, nullptr, false);
  Command command = BenchCommand();
  if (described.is_discarded()) return command;
  command.footer = described.at("footer");
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

Command BenchWorkerCommand() {
  Command command("bench-worker", "");
  command.hidden = true;
  command.run = bench::RunWorker;
  return command;
}

}  // namespace weightfs::cli

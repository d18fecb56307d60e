// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every kept input, the seeds of the target, and mutations of both.
//
// Usage: fuzz_TARGET [-runs=N] [-seed=N] [-seconds=N] [-write=DIR] [FILE|DIR]...
//   -runs     number of mutations (20000)
//   -seed     seed of the mutations (WEIGHTFS_SEED, or 1); it is printed
//   -seconds  mutate for this time instead of -runs
//   -write    write the target's seeds to DIR, from which libFuzzer can start, and exit
// A failing input is kept as ./fuzz_TARGET-failure; the same program run on that file repeats the failure.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz.h"
#include "tests/support/seeds.h"

// Of the sanitizers, which end the process without a signal.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace weightfs::fuzz {
namespace {

constexpr size_t kLargestInput = 8192;
constexpr unsigned kSecondsPerInput = 60;  // an input that needs longer is a failure

// Signal handlers read these: the input under test, and the name of the file that keeps it if it fails.
std::string_view current;
std::string failure_name;

void KeepCurrent() {
  const int file = open(failure_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  if (write(file, current.data(), current.size()) == static_cast<ssize_t>(current.size()))
    dprintf(STDERR_FILENO, "The input is kept as ./%s\n", failure_name.c_str());
  close(file);
}

void OnSignal(int signal) {
  KeepCurrent();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void CatchFailures() {
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(KeepCurrent);
  } else {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, OnSignal);
  }
}

// A copy of exact size on the heap lets the address sanitizer see every read beyond the end.
void RunOne(const std::string& input) {
  const std::vector<uint8_t> exact(input.begin(), input.end());
  current = Text(exact.data(), exact.size());
  alarm(kSecondsPerInput);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
  alarm(0);
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  // A pool member after one to eight changes.
  std::string Next(const std::vector<std::string>& pool) {
    std::string input = pool[Below(pool.size())];
    const size_t changes = size_t{1} << Below(4);
    for (size_t i = 0; i < changes; ++i) Change(input, pool[Below(pool.size())]);
    if (input.size() > kLargestInput) input.resize(kLargestInput);
    return input;
  }

 private:
  size_t Below(size_t end) { return static_cast<size_t>(random_() % end); }

  void Change(std::string& input, const std::string& other) {
    switch (Below(7)) {
      case 0: input.resize(Below(input.size() + 1)); return;  // truncate
      case 1: input.insert(Below(input.size() + 1), Below(9), static_cast<char>(random_())); return;
      case 2: return Splice(input, other);
      case 3: return PutInteger(input);
      default: break;
    }
    if (input.empty()) return;
    char& byte = input[Below(input.size())];
    switch (Below(3)) {
      case 0: byte = static_cast<char>(random_()); return;
      case 1: byte = static_cast<char>(byte + (Below(2) == 0 ? 1 : -1)); return;
      default: byte = static_cast<char>(byte ^ 1 << Below(8)); return;
    }
  }

  // Replaces a part by a part of another input.
  void Splice(std::string& input, const std::string& other) {
    const size_t at = Below(input.size() + 1), from = Below(other.size() + 1);
    const size_t size = Below(std::min<size_t>(64, other.size() - from) + 1);
    input.replace(at, Below(2) == 0 ? 0 : size, other, from, size);
  }

  // Overwrites 1, 2, 4 or 8 bytes with a number at a limit, in either byte order.
  void PutInteger(std::string& input) {
    const size_t size = size_t{1} << Below(4);
    if (input.size() < size) return;
    constexpr std::array<uint64_t, 8> kLimits = {0, 1, 255, 4095, 4096, 1U << 16, 1U << 20, uint64_t{1} << 52};
    uint64_t value = Below(2) == 0 ? kLimits[Below(kLimits.size())] : uint64_t{1} << Below(64);
    value += Below(3) - 1;
    if (Below(4) == 0) value = ~value;
    if (Below(2) == 0) value = __builtin_bswap64(value) >> (64 - 8 * size);
    input.replace(Below(input.size() - size + 1), size, reinterpret_cast<const char*>(&value), size);
  }

  std::mt19937_64 random_;
};

struct Options {
  uint64_t runs = 20'000, seed = FirstSeed(), seconds = 0;
  std::string write;
  std::vector<std::filesystem::path> inputs;
};

// Returns false after a message if an argument is invalid.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with('-')) {
      options->inputs.emplace_back(argument);
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size() - 1);
    const std::string_view name = argument.substr(0, equals + 1), value = argument.substr(equals + 1);
    if (name == "-write=" && !value.empty()) {
      options->write = value;
      continue;
    }
    uint64_t* number = name == "-runs="      ? &options->runs
                       : name == "-seed="    ? &options->seed
                       : name == "-seconds=" ? &options->seconds
                                             : nullptr;
    const char* end = value.data() + value.size();
    if (number == nullptr || value.empty() || std::from_chars(value.data(), end, *number).ptr != end) {
      std::fprintf(stderr, "invalid argument '%s'; arguments: [-runs=N] [-seed=N] [-seconds=N] [-write=DIR] FILE...\n",
                   argv[i]);
      return false;
    }
  }
  return true;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool WriteSeeds(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  size_t number = 0;
  for (const std::string& seed : Seeds()) {
    std::ofstream file(directory / ("seed-" + std::to_string(number++)), std::ios::binary);
    if (!file.write(seed.data(), static_cast<std::streamsize>(seed.size())).flush()) return false;
  }
  return true;
}

// Appends the content of each file. Returns false after a message if a path does not exist.
bool Read(const std::vector<std::filesystem::path>& paths, std::vector<std::string>* pool) {
  for (const auto& path : paths) {
    if (!std::filesystem::exists(path)) {
      std::fprintf(stderr, "%s does not exist\n", path.c_str());
      return false;
    }
    if (!std::filesystem::is_directory(path)) {
      pool->push_back(ReadFile(path));
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());  // the order of a directory differs between filesystems
    for (const auto& file : files) pool->push_back(ReadFile(file));
  }
  return true;
}

int Run(const Options& options) {
  if (!options.write.empty()) return WriteSeeds(options.write) ? 0 : 1;
  std::vector<std::string> pool;
  if (!Read(options.inputs, &pool)) return 2;
  const size_t kept = pool.size();
  for (std::string& seed : Seeds()) pool.push_back(std::move(seed));
  pool.emplace_back();
  std::fprintf(stderr, "%zu kept inputs, %zu seeds, WEIGHTFS_SEED=%lu\n", kept, pool.size() - kept, options.seed);
  CatchFailures();
  for (const std::string& input : pool) RunOne(input);
  Mutator mutator(options.seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  uint64_t runs = 0;
  const auto goes_on = [&] {
    return options.seconds > 0 ? std::chrono::steady_clock::now() < end : runs < options.runs;
  };
  for (; goes_on(); ++runs) RunOne(mutator.Next(pool));
  std::fprintf(stderr, "%lu mutations passed\n", runs);
  return 0;
}

}  // namespace
}  // namespace weightfs::fuzz

int main(int argc, char** argv) {
  weightfs::fuzz::failure_name = std::filesystem::path(argv[0]).filename().string() + "-failure";
  weightfs::fuzz::Options options;
  return weightfs::fuzz::Parse(argc, argv, &options) ? weightfs::fuzz::Run(options) : 2;
}

// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/basics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>

namespace weightfs::bench {
namespace {

constexpr uint64_t kHugePage = 2 * kMiB;

ErrorCode CodeOf(int number) {
  switch (number) {
    case ENOENT: return ErrorCode::kNotFound;
    case ENOSPC: return ErrorCode::kNoSpace;
    case EACCES: return ErrorCode::kAccess;
    case EPERM: return ErrorCode::kPermission;
    case EINVAL: return ErrorCode::kInvalid;
    default: return ErrorCode::kIo;
  }
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

Error SystemError(std::string_view path, std::string_view what) {
  return {CodeOf(errno), fmt::format("{}: {}: {}", path, what, std::strerror(errno))};
}

Error Interrupted() { return {ErrorCode::kShutdown, "interrupted; what the benchmark made is removed"}; }

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    Reset();
    descriptor_ = other.Take();
  }
  return *this;
}

Result<File> File::Open(const std::string& path, int flags) {
  File file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) return SystemError(path, "cannot be opened");
  return file;
}

Result<void> File::Close(const std::string& path) {
  if (close(Take()) != 0) return SystemError(path, "close");
  return {};
}

void File::Reset() {
  if (descriptor_ >= 0) close(Take());
}

int File::Take() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor;
}

void Pages::Unmap::operator()(std::byte* memory) const { munmap(memory, size); }

Result<Pages> Pages::Create(uint64_t size, Kind kind) {
  const uint64_t length = RoundUp(std::max<uint64_t>(size, 1), kHugePage);
  // One huge page more, so that the part that is kept can begin on one.
  void* mapped = mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("no memory for a buffer of {} MiB; give a smaller --size", size / kMiB)};
  }
  const auto first = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = RoundUp(first, kHugePage);
  if (aligned > first) munmap(mapped, aligned - first);
  munmap(reinterpret_cast<void*>(aligned + length), kHugePage - (aligned - first));
  Pages buffer;
  buffer.size_ = size;
  buffer.memory_ = {reinterpret_cast<std::byte*>(aligned), Unmap{length}};
  madvise(buffer.data(), length, kind == Kind::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(buffer.data(), 1, length);
  return buffer;
}

void WarmMemory() {
  const uint64_t size = RoundDown(std::min(KernelFigure(0, "MemFree") / 2, 6 * kGiB), kHugePage);
  if (size > 0) (void)Pages::Create(size);
}

void FillPattern(std::byte* data, uint64_t size, uint64_t seed) {
  // splitmix64: a counter, well mixed; each word stands for itself, so the loop has no chain of dependencies.
  uint64_t counter = seed * 0x9E3779B97F4A7C15;
  for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
    uint64_t word = (counter += 0x9E3779B97F4A7C15);
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB;
    word ^= word >> 31;
    std::memcpy(data + at, &word, std::min(sizeof(word), size - at));
  }
}

uint64_t SumWords(const std::byte* data, uint64_t size) {
  uint64_t sums[4] = {};
  uint64_t at = 0;
  for (; at + 32 <= size; at += 32) {
    uint64_t words[4];
    std::memcpy(words, data + at, sizeof(words));
    for (int lane = 0; lane < 4; ++lane) sums[lane] += words[lane];
  }
  for (; at + 8 <= size; at += 8) {
    uint64_t word;
    std::memcpy(&word, data + at, sizeof(word));
    sums[0] += word;
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double OwnCpuSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    seconds += Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  }
  return seconds;
}

double CpuSecondsOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name in parentheses, which may hold anything; utime and stime are 14 and 15.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

uint64_t KernelFigure(pid_t pid, std::string_view name) {
  std::ifstream file(pid > 0 ? fmt::format("/proc/{}/status", pid) : std::string("/proc/meminfo"));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * kKiB;
    }
  }
  return 0;
}

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench/suite/system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>

namespace weightfs::bench {
namespace {

double SecondsOf(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

}  // namespace

Result<UniqueFd> OpenFile(const std::string& path, int flags) {
  UniqueFd file(open(path.c_str(), flags | O_CLOEXEC, 0644));
  if (!file) return SystemError(path, "cannot be opened");
  return file;
}

Result<void> Sync(const UniqueFd& file, std::string_view path) {
  if (fsync(file.get()) != 0) return SystemError(path, "fsync");
  return {};
}

Result<void> Close(UniqueFd& file, std::string_view path) {
  if (file.Close() != 0) return SystemError(path, "close");
  return {};
}

Result<Memory> AllocateTouched(uint64_t size, PageSize pages) {
  constexpr uint64_t kHugePage = 2 * kMiB;
  const uint64_t length = RoundUp(size, kHugePage);
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePage, length)));
  if (memory == nullptr) {
    return Error{ErrorCode::kNoMemory,
                 fmt::format("no memory for a buffer of {} MiB; give a smaller --size", size / kMiB)};
  }
  madvise(memory.get(), length, pages == PageSize::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  std::memset(memory.get(), 1, length);
  return memory;
}

void WarmMemory() {
  struct sysinfo machine = {};
  if (sysinfo(&machine) == 0) (void)AllocateTouched(std::min(machine.freeram * machine.mem_unit / 2, 6 * kGiB));
}

void FillRandom(std::byte* data, uint64_t size) {
  std::mt19937_64 random(1);
  std::generate_n(reinterpret_cast<uint64_t*>(data), size / sizeof(uint64_t), std::ref(random));
}

uint64_t SumWords(const std::byte* data, uint64_t size) {
  const auto* words = reinterpret_cast<const uint64_t*>(data);
  return std::accumulate(words, words + size / sizeof(uint64_t), uint64_t{0});
}

double Now() { return SecondsOf(CLOCK_MONOTONIC); }

double OwnCpuSeconds() { return SecondsOf(CLOCK_PROCESS_CPUTIME_ID); }

}  // namespace weightfs::bench

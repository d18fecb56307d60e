// SPDX-License-Identifier: Apache-2.0
// What the whole benchmark is built from: memory in huge pages, files with errors as values, clocks. Independent of the
// engine on purpose: a reference must not be made of what it judges.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/units.h"

namespace weightfs::bench {

// An error of a system call with errno's text: "PATH: cannot be read: No such file or directory".
Error SystemError(std::string_view path, std::string_view what);

// What a measurement returns when the user asked to stop.
Error Interrupted();

// Whether the user asked to stop; `cancel` may be null.
inline bool IsSet(const std::atomic<bool>* cancel) { return cancel != nullptr && cancel->load(); }

// An owned descriptor. Movable; -1 is none.
class File {
 public:
  File() = default;
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(File&& other) noexcept : descriptor_(other.Take()) {}
  File& operator=(File&& other) noexcept;
  ~File() { Reset(); }

  // open(2) with O_CLOEXEC and mode 0644.
  static Result<File> Open(const std::string& path, int flags);

  int get() const { return descriptor_; }
  explicit operator bool() const { return descriptor_ >= 0; }
  // close(2) with its error, which may be that of an earlier write.
  Result<void> Close(const std::string& path);
  void Reset();

 private:
  int Take();
  int descriptor_ = -1;
};

// Memory that begins on a huge page, in huge pages where the machine gives them, and touched: timing never meets a
// first touch, which is four times as slow as a second in a virtual machine. Movable.
class Pages {
 public:
  enum class Kind : unsigned char { kHuge, kSmall };  // small ones: of 4 KiB, for certain
  Pages() = default;
  // kNoMemory with a full line.
  static Result<Pages> Create(uint64_t size, Kind kind = Kind::kHuge);

  std::byte* data() const { return memory_.get(); }
  uint64_t size() const { return size_; }

 private:
  struct Unmap {
    uint64_t size;
    void operator()(std::byte* memory) const;
  };
  uint64_t size_ = 0;
  std::unique_ptr<std::byte, Unmap> memory_;
};

// Touches half of the free memory, 6 GiB at most, and lets it go again: what the hypervisor has to give, it gives now.
void WarmMemory();

// Fills with bytes that repeat nowhere: no device, and no host below it, gets away with compressing or sharing them.
void FillPattern(std::byte* data, uint64_t size, uint64_t seed);

// Sum of the 8-byte words, as fast as memory: what a program does that merely looks at every byte. `size` is a multiple
// of 8.
uint64_t SumWords(const std::byte* data, uint64_t size);

// CLOCK_MONOTONIC, seconds.
double Now();

// User and system time of a process: this one with its ended children, or (pid > 0) another one. Seconds; 0 when it is
// gone.
double OwnCpuSeconds();
double CpuSecondsOf(pid_t pid);

// One "Name:   123 kB" of /proc/PID/status (or /proc/meminfo, with pid 0) in bytes; 0 when it is not there.
uint64_t KernelFigure(pid_t pid, std::string_view name);

}  // namespace weightfs::bench

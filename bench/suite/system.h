// SPDX-License-Identifier: Apache-2.0
// System calls with errors as values, memory in huge pages and clocks. Independent of the engine on purpose: the
// reference shares no code with what it is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace weightfs::bench {

// open(2) with O_CLOEXEC and mode 0644.
Result<UniqueFd> OpenFile(const std::string& path, int flags);
Result<void> Sync(const UniqueFd& file, std::string_view path);
// close(2), which may report an earlier write that failed.
Result<void> Close(UniqueFd& file, std::string_view path);

// Memory that begins on a huge page and whose pages have all been touched: in a virtual machine the first touch is four
// times as slow as the second, and must not be timed.
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;
enum class PageSize : unsigned char { kHuge, kSmall };  // kSmall: only pages of 4 KiB
Result<Memory> AllocateTouched(uint64_t size, PageSize pages = PageSize::kHuge);

// Touches half of the free memory, 6 GiB at most, and frees it, so that the hypervisor has provided it.
void WarmMemory();

// Fills with random words: no device or hypervisor can compress or share them. `size` is a multiple of 8.
void FillRandom(std::byte* data, uint64_t size);

// The sum of the 8-byte words: the access of a program that looks at every byte. `size` is a multiple of 8.
uint64_t SumWords(const std::byte* data, uint64_t size);

double Now();            // CLOCK_MONOTONIC, seconds
double OwnCpuSeconds();  // user and system time of this process

}  // namespace weightfs::bench

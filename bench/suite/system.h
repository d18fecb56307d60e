// SPDX-License-Identifier: Apache-2.0
// System calls that return errors as values, memory in huge pages, and clocks. Intentionally independent of the engine:
// the reference shares no code with the code it is compared with.
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
// close(2), which may report the failure of an earlier write.
Result<void> Close(UniqueFd& file, std::string_view path);

// Memory that begins on a huge page. All its pages have been touched, because in a virtual machine the first touch
// takes four times as long as later ones and must not be timed.
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;
enum class PageSize : unsigned char { kHuge, kSmall };  // kSmall: 4 KiB pages only
Result<Memory> AllocateTouched(uint64_t size, PageSize pages = PageSize::kHuge);

// Touches half of the free memory, at most 6 GiB, and frees it, so that the hypervisor has allocated it.
void WarmMemory();

// Fills the memory with random words, which no device or hypervisor can compress or deduplicate. `size` is a multiple
// of 8.
void FillRandom(std::byte* data, uint64_t size);

// Returns the sum of the 8-byte words, like a program that accesses every byte. `size` is a multiple of 8.
uint64_t SumWords(const std::byte* data, uint64_t size);

double Now();            // CLOCK_MONOTONIC, seconds
double OwnCpuSeconds();  // user and system time of this process

}  // namespace weightfs::bench

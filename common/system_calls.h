// SPDX-License-Identifier: Apache-2.0
// System calls that are repeated until no signal interrupts them.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weightfs {

// Repeats `call`, which returns -1 and sets errno as system calls do, while a signal interrupts it. Not for close(2),
// which must not be repeated, nor for a wait that a signal is to end.
template <typename Call>
auto RepeatInterrupted(const Call& call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// Reads from the offset on until `out` is full or the file ends. Returns the number of bytes, or -1 and sets errno.
ssize_t ReadFully(int file, std::span<std::byte> out, uint64_t offset);

// Writes all of `in` at the offset. Returns false and sets errno on failure; then a part may have been written.
bool WriteFully(int file, std::span<const std::byte> in, uint64_t offset);

// Fills at most 256 bytes with random ones. Returns false and sets errno on failure.
bool FillRandom(std::span<std::byte> out);

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "common/system_calls.h"

#include <sys/random.h>
#include <unistd.h>

#include <iterator>

namespace weightfs {

ssize_t ReadFully(int file, std::span<std::byte> out, uint64_t offset) {
  size_t done = 0;
  while (done < out.size()) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t got = RepeatInterrupted([&] { return pread(file, out.data() + done, out.size() - done, at); });
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

bool WriteFully(int file, std::span<const std::byte> in, uint64_t offset) {
  while (!in.empty()) {
    const auto at = static_cast<off_t>(offset);
    const ssize_t written = RepeatInterrupted([&] { return pwrite(file, in.data(), in.size(), at); });
    if (written == 0) errno = EIO;
    if (written <= 0) return false;
    in = in.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

bool FillRandom(std::span<std::byte> out) {
  return RepeatInterrupted([&] { return getrandom(out.data(), out.size(), 0); }) == std::ssize(out);
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli, RFC 3720 appendix B.4: reflected polynomial 0x82F63B78, initial value and final xor ~0), and the
// CRC-32 of zip archives. Hardware-accelerated through ISA-L. Pure functions, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"

namespace weightfs {

// The CRC-32C of `bytes`; Crc32c("123456789") == 0xE3069283.
uint32_t Crc32c(std::span<const std::byte> bytes);

// Continues a CRC: Crc32cExtend(Crc32c(a), b) == Crc32c(a followed by b).
uint32_t Crc32cExtend(uint32_t crc, std::span<const std::byte> bytes);

// Computes a CRC from parts in any order: Crc32cOfZeros(n) ^ all contributions is the CRC of n bytes. Each part
// contributes once; `behind` is the number of bytes after it.
uint32_t Crc32cContribution(std::span<const std::byte> part, uint64_t behind);
uint32_t Crc32cOfZeros(uint64_t size);

// Writes one CRC per kBlockSize block of `blocks` (a multiple of kBlockSize) to `out`.
void Crc32cBlocks(std::span<const std::byte> blocks, uint32_t* out);

// The CRC-32 of zip (ISO 3309: reflected polynomial 0xEDB88320, initial value and final xor ~0);
// ZipCrc32("123456789") == 0xCBF43926.
uint32_t ZipCrc32(std::span<const std::byte> bytes);

// The reads of something that has a checksum. Some errors of a transfer do not recur, so it is damaged only if kMost
// reads in succession differ from the checksum; a read of many things at once before them is not counted. The caller
// makes sure that each read is of what the checksum belongs to: it keeps blocks from being reused (a read epoch, a
// lease), or finds the checksum again. Not thread-safe.
class ReadAttempts {
 public:
  static constexpr unsigned kMost = 4;

  // True if the next read to end is the last one.
  bool last() const { return differing_ + 1 == kMost; }
  // Call this after each read that differs. Returns true if it must be read again, false if it is damaged.
  bool ReadAgain() { return ++differing_ < kMost; }

 private:
  unsigned differing_ = 0;
};

enum class ReadOutcome : unsigned char { kIntact, kMismatch, kUnreadable };

// Reads until a checksum matches, at most ReadAttempts::kMost times. `read` returns the checksum of what it has read,
// or an error. kMismatch: at least one read succeeded; kUnreadable: none did.
template <typename Read>
ReadOutcome ReadVerified(uint32_t expected, const Read& read) {
  auto outcome = ReadOutcome::kUnreadable;
  ReadAttempts attempts;
  do {
    const Result<uint32_t> checksum = read();
    if (!checksum) continue;
    if (*checksum == expected) return ReadOutcome::kIntact;
    outcome = ReadOutcome::kMismatch;
  } while (attempts.ReadAgain());
  return outcome;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "common/checksum.h"

#include <isa-l/crc.h>

#include <array>

#include "common/units.h"

namespace weightfs {
namespace {

// ISA-L takes a pointer to non-const data and the running state before the final inversion.
uint32_t Run(uint32_t state, const std::byte* data, size_t size) {
  auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data));
  while (size > 0) {  // the length of this function is an int
    const size_t step = size < kGiB ? size : kGiB;
    state = crc32_iscsi(bytes, static_cast<int>(step), state);
    bytes += step;
    size -= step;
  }
  return state;
}

// Polynomials over GF(2) modulo the CRC polynomial, bit-reflected: the highest bit is x^0.
constexpr uint32_t kPolynomial = 0x82F63B78;
constexpr uint32_t kOne = 1U << 31;

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if ((a & kOne) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kPolynomial : 0);
  }
  return product;
}

// The factors by which 1, 2, 4 ... zero bytes multiply a CRC: x^8, and then each the square of the one before.
constexpr std::array<uint32_t, 64> kZeroBytes = [] {
  std::array<uint32_t, 64> powers{kOne >> 8};
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = Multiply(powers[i - 1], powers[i - 1]);
  return powers;
}();

uint32_t AppendZeros(uint32_t state, uint64_t count) {
  for (size_t i = 0; count != 0; ++i, count >>= 1) {
    if ((count & 1) != 0) state = Multiply(kZeroBytes[i], state);
  }
  return state;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) { return ~Run(~0U, bytes.data(), bytes.size()); }

uint32_t Crc32cExtend(uint32_t crc, std::span<const std::byte> bytes) { return ~Run(~crc, bytes.data(), bytes.size()); }

// A CRC without the initial value and the final inversion is linear.
uint32_t Crc32cContribution(std::span<const std::byte> part, uint64_t behind) {
  return AppendZeros(Run(0, part.data(), part.size()), behind);
}

uint32_t Crc32cOfZeros(uint64_t size) { return ~AppendZeros(~0U, size); }

void Crc32cBlocks(std::span<const std::byte> blocks, uint32_t* out) {
  for (size_t at = 0; at < blocks.size(); at += kBlockSize) *out++ = Crc32c(blocks.subspan(at, kBlockSize));
}

// This function of ISA-L inverts by itself.
uint32_t ZipCrc32(std::span<const std::byte> bytes) {
  return crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace weightfs

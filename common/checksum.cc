#include "common/checksum.h"

#include <isa-l/crc.h>

#include "common/units.h"

namespace weightfs {
namespace {

// ISA-L reads through a pointer to non-const and takes the running (not yet inverted) value.
uint32_t Run(uint32_t state, const std::byte* data, size_t size) {
  auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data));
  while (size > 0) {  // ISA-L's length is an int.
    const size_t step = size < kGiB ? size : kGiB;
    state = crc32_iscsi(bytes, static_cast<int>(step), state);
    bytes += step;
    size -= step;
  }
  return state;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) { return ~Run(~0U, bytes.data(), bytes.size()); }

uint32_t Crc32cExtend(uint32_t crc, std::span<const std::byte> bytes) {
  return ~Run(~crc, bytes.data(), bytes.size());
}

void Crc32cBlocks(std::span<const std::byte> blocks, uint32_t* out) {
  for (size_t at = 0; at < blocks.size(); at += kBlockSize) *out++ = Crc32c(blocks.subspan(at, kBlockSize));
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "client/checksum_attribute.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "common/bytes.h"
#include "common/checksum.h"
#include "common/result.h"
#include "common/units.h"
#include "lease/on_mount.h"

namespace weightfs::client {
namespace {

// The start of the attribute's value (docs/FORMAT.md, section 9). The block size is chosen so that the value fits into
// the smallest attribute size that filesystems support.
constexpr uint32_t kVersion = 1;
struct Header {
  uint32_t version = kVersion;
  uint32_t block_shift = 0;
  uint64_t size = 0;    // of the file in bytes
  int64_t seconds = 0;  // modification time, which reveals later changes by others
  int64_t nanoseconds = 0;
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == 32);

constexpr uint32_t kLeastShift = 20;
constexpr size_t kMostBlocks = 512;
constexpr size_t kGatheredAtOnce = kMiB;

uint32_t ShiftFor(uint64_t size) {
  uint32_t shift = kLeastShift;
  while ((size >> shift) >= kMostBlocks) ++shift;
  return shift;
}

size_t BlocksIn(uint64_t size, uint32_t shift) { return RoundUp(size, uint64_t{1} << shift) >> shift; }

std::vector<uint32_t> Compute(const MemoryView& memory, uint32_t shift) {
  std::vector<uint32_t> out;
  std::vector<std::byte> gathered;
  const size_t block = size_t{1} << shift;
  for (size_t begin = 0; begin < memory.size(); begin += block) {
    const size_t end = std::min(begin + block, memory.size());
    uint32_t crc = 0;
    for (size_t at = begin; at < end;) {
      const size_t size = std::min(end - at, kGatheredAtOnce);
      const std::byte* data = memory.Direct(at, size);
      if (data == nullptr) {
        gathered.resize(size);
        memory.Gather(at, gathered);
        data = gathered.data();
      }
      crc = Crc32cExtend(crc, {data, size});
      at += size;
    }
    out.push_back(crc);
  }
  return out;
}

Header Describe(const struct stat& status) {
  const auto size = static_cast<uint64_t>(status.st_size);
  return {.block_shift = ShiftFor(size),
          .size = size,
          .seconds = status.st_mtim.tv_sec,
          .nanoseconds = status.st_mtim.tv_nsec};
}

}  // namespace

Error ChecksumAttribute::Failed(int error_number, const std::string& what) const {
  return {ErrorCode{error_number}, fmt::format("{} of {}: {}", writes_ ? "write" : "read", path_, what), path_,
          offset_};
}

Result<void> ChecksumAttribute::Begin(int descriptor, uint64_t file_size) {
  if (lease::IsOnMount(descriptor)) {
    needed_ = false;
    return {};
  }
  if (memory_.on_device()) {
    return Failed(EOPNOTSUPP, "checksums are kept of tensors in the host's memory, not of a GPU's");
  }
  if (writes_ && !whole_file_) return Failed(EINVAL, "checksums are of whole files: they take a path and no offset");
  if (!writes_) {
    if (offset_ != 0 || memory_.size() != file_size) {
      return Failed(EINVAL, fmt::format("outside a weightfs mount only a whole file can be verified; it has {} bytes",
                                        file_size));
    }
    return Load(descriptor);
  }
  if (fremovexattr(descriptor, kName) != 0 && errno != ENODATA) {
    return Failed(errno, fmt::format("checksums cannot be kept with it: {}", std::strerror(errno)));
  }
  block_shift_ = ShiftFor(memory_.size());
  sent_ = std::vector<std::atomic<uint32_t>>(BlocksIn(memory_.size(), block_shift_));
  return {};
}

// Computed from the bytes that are sent, not from the memory, because the program may change its memory at any time.
void ChecksumAttribute::NoteWritten(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t block = offset >> block_shift_;
    const uint64_t end = std::min<uint64_t>((block + 1) << block_shift_, memory_.size());
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), end - offset));
    sent_[block].fetch_xor(Crc32cContribution(part, end - offset - part.size()), std::memory_order_relaxed);
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
}

Result<void> ChecksumAttribute::Load(int descriptor) {
  std::string bytes(sizeof(Header) + kMostBlocks * sizeof(uint32_t), '\0');
  const ssize_t size = fgetxattr(descriptor, kName, bytes.data(), bytes.size());
  if (size < 0 && (errno == ENODATA || errno == EOPNOTSUPP)) {
    return Failed(ENODATA, "it has no checksums to verify: write it with the option checksum");
  }
  if (size < 0 && errno != ERANGE) {
    return Failed(errno, fmt::format("its checksums cannot be read: {}", std::strerror(errno)));
  }
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return Failed(errno, "cannot look at the file");
  if (size >= 0) bytes.resize(static_cast<size_t>(size));  // otherwise it is larger than any value we write
  Decoder first(bytes);
  const auto version = first.Little<uint32_t>();
  if (size < 0 || (first.ok() && version != kVersion)) {
    return Failed(ENODATA, fmt::format("its attribute {} is {}, which this library does not know: nothing is verified",
                                       kName, size < 0 ? "larger than any" : fmt::format("of version {}", version)));
  }
  const Header now = Describe(status);
  const size_t count = BlocksIn(now.size, now.block_shift);
  Decoder in(bytes);
  if (in.Little<Header>() != now || !in.ok() || in.rest().size() != count * sizeof(uint32_t)) {
    return Failed(ENODATA, "it was changed after its checksums were made, and has none for what it is now");
  }
  block_shift_ = now.block_shift;
  expected_.resize(count);
  for (auto& checksum : expected_) checksum = in.Little<uint32_t>();
  return {};
}

Result<void> ChecksumAttribute::End(int descriptor) const {
  if (!needed_) return {};
  if (writes_) return Store(descriptor);
  const auto found = Compute(memory_, block_shift_);
  const auto [wrong, right] = std::mismatch(found.begin(), found.end(), expected_.begin());
  if (wrong == found.end()) return {};
  const uint64_t at = static_cast<uint64_t>(wrong - found.begin()) << block_shift_;
  Error error =
      Failed(EIO, fmt::format("the {} bytes from offset {} on are not what was written: their CRC-32C is "
                              "{:08x} and {:08x} is recorded; restore the file from a copy",
                              std::min(uint64_t{1} << block_shift_, memory_.size() - at), at, *wrong, *right));
  error.offset = at;
  return error;
}

Result<void> ChecksumAttribute::Store(int descriptor) const {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) return Failed(errno, "cannot look at the file");
  const Header header = Describe(status);
  if (header.size != memory_.size()) {
    return Failed(EBUSY, fmt::format("another program made it {} bytes long meanwhile: no checksums", header.size));
  }
  std::string value;
  AppendLittle(value, header);
  for (size_t block = 0; block < sent_.size(); ++block) {
    const uint64_t begin = uint64_t{block} << block_shift_;
    const uint64_t size = std::min(uint64_t{1} << block_shift_, header.size - begin);
    AppendLittle(value, Crc32cOfZeros(size) ^ sent_[block].load());
  }
  if (fsetxattr(descriptor, kName, value.data(), value.size(), 0) == 0) return {};
  return Failed(errno, fmt::format("its checksums cannot be stored: {}", std::strerror(errno)));
}

}  // namespace weightfs::client

// SPDX-License-Identifier: Apache-2.0
#include "client/lease/leased_blocks.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <new>

#include "client/file_limit.h"
#include "client/open/opened_file.h"
#include "common/checksum.h"
#include "common/result.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

constexpr size_t kCheckedAtOnce = 256;  // blocks whose checksums are on the stack

std::string NameOf(int descriptor) {
  std::array<char, PATH_MAX> name;
  const ssize_t size = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), name.data(), name.size());
  return size < 0 ? "the device" : std::string(name.data(), static_cast<size_t>(size));
}

}  // namespace

Result<void> LeasedBlocks::Reset(uint64_t first, uint64_t count) {
  first_ = first;
  count_ = count;
  checksums_.reset(new (std::nothrow) uint32_t[count]());
  if (checksums_ == nullptr) return Error{ErrorCode::kNoMemory, fmt::format("no memory for {} checksums", count)};
  return {};
}

void LeasedBlocks::Adopt(std::vector<UniqueFd> devices) {
  devices_ = std::move(devices);
  for (const auto& device : devices_) {
    const auto alignment = QueryDirectAlignment(device.get()).value_or(DirectAlignment{});
    alignment_.memory = std::max(alignment_.memory, alignment.memory);
  }
}

Result<void> LeasedBlocks::AddOne(uint64_t block, const lease::Extent& extent) {
  const auto& [file_block, count, device_block, device, verified] = extent;
  constexpr uint64_t kBlocks = UINT64_MAX / kBlockSize;  // so that byte counts do not overflow
  const uint64_t last = extents_.empty() ? first_ : extents_.back().block + extents_.back().count;
  if (device >= devices_.size() || count == 0 || block < last || count > count_ || block - first_ > count_ - count ||
      count > kBlocks || device_block > kBlocks - count) {
    return MalformedAnswer();
  }
  if (!extents_.empty()) {
    Extent& before = extents_.back();
    if (before.device == device && before.verified == (verified != 0) && last == block &&
        before.device_block + before.count == device_block) {
      before.count += count;
      return {};
    }
  }
  extents_.push_back({block, count, device_block, device, verified != 0});
  return {};
}

Result<void> LeasedBlocks::Add(std::span<const lease::Extent> extents, uint64_t first) {
  for (const auto& extent : extents) {
    RETURN_IF_ERROR(AddOne(first + extent.file_block, extent));
  }
  return {};
}

Result<uint64_t> LeasedBlocks::TakeReadAnswer(lease::Message message, uint64_t offset, uint64_t length) {
  lease::BodyReader body(message.body());
  lease::ReadAnswer answer;
  std::vector<lease::Extent> extents;
  if (!body.Take(&answer) || !body.Take(answer.extents, &extents)) return MalformedAnswer();
  const uint64_t end = std::min(offset + length, answer.file_size);
  const uint64_t first = offset / kBlockSize;
  const uint64_t count = end > offset ? RoundUp(end, kBlockSize) / kBlockSize - first : 0;
  if (count > 0 && answer.first_block != first) return MalformedAnswer();
  if (answer.blocks != count) return MalformedAnswer();
  RETURN_IF_ERROR(Reset(first, count));
  Adopt(std::move(message.descriptors));
  RETURN_IF_ERROR(Add(extents, 0));
  if (!body.Take(std::span(checksums(), count))) return MalformedAnswer();
  return answer.file_size;
}

Result<void> LeasedBlocks::CheckWritable() const {
  const uint64_t limit = FileSizeLimit();
  for (const Extent& run : extents_) {
    const uint64_t end = (run.device_block + run.count) * kBlockSize;
    struct stat status {};
    const int device = devices_[run.device].get();
    if (end <= limit || fstat(device, &status) != 0 || !S_ISREG(status.st_mode)) continue;
    return Error{ErrorCode::kFileTooBig,
                 fmt::format("no lease: its blocks end at byte {} of {}, and the process's limit is {} "
                             "(RLIMIT_FSIZE)",
                             end, NameOf(device), limit)};
  }
  return {};
}

// Returns the run that contains the block, or the first one behind it.
const LeasedBlocks::Extent* LeasedBlocks::Find(uint64_t block) const {
  const auto at = std::partition_point(extents_.begin(), extents_.end(),
                                       [block](const Extent& run) { return run.block + run.count <= block; });
  return at == extents_.end() ? nullptr : &*at;
}

Layout::Run LeasedBlocks::Locate(uint64_t offset, uint64_t length) const {
  const Extent* run = Find(offset / kBlockSize);
  if (run == nullptr) return {-1, 0, length};
  const uint64_t begin = run->block * kBlockSize;
  if (offset < begin) return {-1, 0, std::min(length, begin - offset)};
  return {devices_[run->device].get(), run->device_block * kBlockSize + (offset - begin),
          std::min(length, begin + run->count * kBlockSize - offset), run->verified};
}

void LeasedBlocks::NoteWritten(uint64_t offset, std::span<const std::byte> blocks) const {
  Crc32cBlocks(blocks, checksums_.get() + (offset / kBlockSize - first_));
}

std::optional<LeasedBlocks::Damage> LeasedBlocks::FindDamage(uint64_t offset, std::span<const std::byte> blocks) const {
  std::array<uint32_t, kCheckedAtOnce> found;
  for (uint64_t block = offset / kBlockSize; !blocks.empty();) {
    if (const Extent* run = Find(block); run != nullptr && run->verified && run->block <= block) {
      const uint64_t verified = std::min(blocks.size() / kBlockSize, run->block + run->count - block);
      block += verified;
      blocks = blocks.subspan(verified * kBlockSize);
      continue;
    }
    const auto piece = blocks.first(std::min(blocks.size(), kCheckedAtOnce * kBlockSize));
    Crc32cBlocks(piece, found.data());
    const uint32_t* recorded = checksums_.get() + (block - first_);
    const size_t count = piece.size() / kBlockSize;
    const auto [wrong, right] = std::mismatch(found.begin(), found.begin() + static_cast<long>(count), recorded);
    if (wrong != found.begin() + static_cast<long>(count)) {
      const uint64_t at = block + static_cast<uint64_t>(wrong - found.begin());
      const Run place = Locate(at * kBlockSize, kBlockSize);
      return Damage{at, fmt::format("its CRC-32C is {:08x} and {:08x} is recorded, at byte {} of {}", *wrong, *right,
                                    place.offset, NameOf(place.descriptor))};
    }
    block += count;
    blocks = blocks.subspan(piece.size());
  }
  return std::nullopt;
}

Result<void> LeasedAccess::TakeReservation(lease::Message message, uint64_t first, uint64_t count) {
  lease::BodyReader body(message.body());
  lease::ReserveAnswer answer;
  std::vector<lease::Extent> extents;
  if (!body.Take(&answer) || !body.Take(answer.extents, &extents)) return MalformedAnswer();
  RETURN_IF_ERROR(blocks_.Reset(first, count));
  blocks_.Adopt(std::move(message.descriptors));
  RETURN_IF_ERROR(blocks_.Add(extents, first));
  return blocks_.CheckWritable();
}

Error MalformedAnswer() {
  return {ErrorCode{EPROTO}, "no lease: the mount's answer cannot be; it and this library do not fit together"};
}

Result<void> CheckLease(const Lease& lease, const std::string& path) {
  if (lease.alive()) return {};
  return Error{ErrorCode{EPIPE}, fmt::format("read of {}: the mount went away, and the lease with it", path), path};
}

Error DamagedRead(const std::string& path, uint64_t offset, const std::string& what) {
  return {ErrorCode::kIo,
          fmt::format("read of {}: the block at offset {} is not what was written: {}; restore the file from a copy, "
                      "and check the store with 'weightfs verify'",
                      path, offset, what),
          path, offset};
}

}  // namespace weightfs::client

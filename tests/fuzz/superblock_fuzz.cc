// SPDX-License-Identifier: Apache-2.0
// The superblock: four copies on a device in memory. An input has a byte with one bit for each copy that gets a correct
// magic, offset and checksum, the size of the device in MiB (one byte), and the beginnings of the copies.
#include "engine/superblock.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "common/log.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

constexpr size_t kCopies = kSuperblockOffsets.size();
constexpr size_t kGivenSize = offsetof(SuperblockRecord, reserved);

// Stores the blocks of the superblock's copies only.
class CopiesDevice final : public BlockDevice {
 public:
  explicit CopiesDevice(ByteCount size) : size_(size) {}

  ByteCount size() const override { return size_; }
  std::string_view path() const override { return "/dev/fuzz"; }
  void Submit(std::span<IoRequest* const> requests) override {
    for (IoRequest* request : requests) {
      WEIGHTFS_ASSERT(request->size.value == kBlockSize && request->offset.value + kBlockSize <= size_.value);
      SuperblockRecord& copy = At(request->offset.value);
      if (request->operation == IoRequest::Operation::kRead) {
        std::memcpy(request->data, &copy, kBlockSize);
      } else {
        std::memcpy(&copy, request->data, kBlockSize);
      }
      request->OnComplete({});
    }
  }
  Result<void> Flush() override { return {}; }

  SuperblockRecord& At(uint64_t offset) {
    for (size_t copy = 0; copy < kCopies; ++copy) {
      if (kSuperblockOffsets[copy] == offset) return copies[copy];
    }
    WEIGHTFS_ASSERT(!"no copy is at this offset");
    return copies[0];
  }

  std::array<SuperblockRecord, kCopies> copies{};

 private:
  ByteCount size_;
};

void CheckRewritten(CopiesDevice& device, const Superblock& found) {
  Superblock written = found;
  const auto before = device.copies;
  if (found.read_only_features) {
    WEIGHTFS_ASSERT(WriteSuperblock(device, written).error().code == ErrorCode::kReadOnly);
    WEIGHTFS_ASSERT(std::memcmp(&before, &device.copies, sizeof(before)) == 0);
    return;
  }
  WEIGHTFS_ASSERT(WriteSuperblock(device, written).has_value());
  WEIGHTFS_ASSERT(written.sequence > found.sequence);
  if (found.sequence == INT64_MAX) return;  // the greatest that is accepted
  const auto again = ReadSuperblock(device);
  WEIGHTFS_ASSERT(again.has_value());
  WEIGHTFS_ASSERT(again->store_id == found.store_id && again->device_id == found.device_id &&
                  again->device_index == found.device_index && again->device_count == found.device_count &&
                  again->device_size == found.device_size && again->sequence == written.sequence &&
                  again->created_ns == found.created_ns && again->owner == found.owner && again->clean == found.clean &&
                  again->keeps_replica == found.keeps_replica &&
                  again->keeps_lists == found.keeps_lists && !again->read_only_features);
}

void CheckUuid(std::string_view text) {
  const auto id = ParseUuid(text);
  if (!id) return;
  const auto again = ParseUuid(ToString(*id));
  WEIGHTFS_ASSERT(again.has_value() && *again == *id);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  CopiesDevice device(ByteCount{64 * kMiB});
  Superblock superblock{
      .device_count = 2, .device_size = ByteCount{64 * kMiB}, .created_ns = 1'700'000'000'000'000'000};
  superblock.store_id.fill(0xA5);
  superblock.device_id.fill(0x5A);
  superblock.owner.fill(0x3C);
  WEIGHTFS_ASSERT(WriteSuperblock(device, superblock).has_value());
  std::string all("\x0F\x40", 2), one("\x01\x40", 2);
  for (const SuperblockRecord& copy : device.copies) all.append(reinterpret_cast<const char*>(&copy), kGivenSize);
  one.append(all, 2, kGivenSize);
  // Past findings: sequences that an update of the superblock cannot follow.
  std::string last = one, second_last = one;
  fuzz::Put(last, 2 + offsetof(SuperblockRecord, sequence), UINT64_MAX);
  fuzz::Put(second_last, 2 + offsetof(SuperblockRecord, sequence), UINT64_MAX - 1);
  return {all, one, last, second_last, "a5a5a5a5-a5a5-4aa5-85a5-A5A5A5A5A5A5"};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  spdlog::set_level(spdlog::level::off);
  CheckUuid(fuzz::Text(data, size));
  Decoder input(fuzz::Text(data, size));
  const auto repaired = input.Little<uint8_t>();
  CopiesDevice device(ByteCount{input.Little<uint8_t>() * kMiB});
  for (size_t i = 0; i < kCopies; ++i) {
    SuperblockRecord& copy = device.copies[i];
    const std::string_view given = input.Bytes(std::min(kGivenSize, input.rest().size()));
    if (!given.empty()) std::memcpy(&copy, given.data(), given.size());
    if ((repaired >> i & 1) == 0) continue;
    copy.magic = kSuperblockMagic;
    copy.copy_offset = kSuperblockOffsets[i];
    copy.crc = Crc32c(std::as_bytes(std::span(&copy, 1)).first(offsetof(SuperblockRecord, crc)));
  }
  const auto found = ReadSuperblock(device);
  if (!found.has_value()) {
    WEIGHTFS_ASSERT(!found.error().what.empty());
    return 0;
  }
  WEIGHTFS_ASSERT(found->device_index.value < found->device_count);
  WEIGHTFS_ASSERT(found->device_size.value >= kMinimumDeviceSize && found->device_size.value % kBlockSize == 0);
  WEIGHTFS_ASSERT(found->device_size <= device.size());
  CheckRewritten(device, *found);
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// The values of the catalog. The first byte of an input selects the kind of the record, and its high bit a correct
// checksum. An extent record has its key in front.
#include <sys/stat.h>

#include <algorithm>

#include "common/assert.h"
#include "common/bytes.h"
#include "common/checksum.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "tests/fuzz/fuzz.h"

namespace weightfs {
namespace {

constexpr size_t kExtentKeySize = 17;
constexpr uint64_t kMost = INT64_MAX;

// A failed decoding has one of two reasons; whatever decodes has one encoding only.
template <typename T, typename Encoder>
void CheckRecord(const Result<T>& record, std::string_view bytes, const Encoder& encode) {
  if (!record.has_value()) {
    WEIGHTFS_ASSERT(record.error().code == ErrorCode::kCorrupt || record.error().code == ErrorCode::kVersion);
    return;
  }
  WEIGHTFS_ASSERT(encode(*record) == bytes);
}

void CheckInode(std::string_view bytes) {
  const auto record = InodeRecord::Decode(bytes);
  CheckRecord(record, bytes, [](const InodeRecord& inode) { return inode.Encode(); });
  if (!record.has_value()) return;
  WEIGHTFS_ASSERT(record->size <= kMost && record->blocks <= kMost / kBlockSize);
  WEIGHTFS_ASSERT(record->symlink.size() <= 4095 && S_ISLNK(record->mode) == !record->symlink.empty());
  for (const Timestamp time : {record->accessed, record->modified, record->changed, record->created})
    WEIGHTFS_ASSERT(time.nanoseconds < 1'000'000'000);
}

void CheckExtent(std::string_view input, bool repaired) {
  const std::string key(input.substr(0, kExtentKeySize));
  std::string bytes(input.substr(key.size()));
  if (repaired && bytes.size() >= sizeof(uint32_t)) {
    const size_t at = bytes.size() - sizeof(uint32_t);
    fuzz::Put(bytes, at, Crc32c(fuzz::Bytes(key + bytes.substr(0, at))));
  }
  const auto record = ExtentRecord::Decode(key, bytes);
  CheckRecord(record, bytes, [&](const ExtentRecord& extent) { return extent.Encode(key); });
  if (!record.has_value()) return;
  const uint64_t first = keys::ParseIndexed(key)->index;
  WEIGHTFS_ASSERT(record->count.value >= 1 && record->count.value <= kMaximumExtentBlocks);
  for (const uint64_t start : {first, record->start.value})
    WEIGHTFS_ASSERT(start <= kMost / kBlockSize && (start + record->count.value) * kBlockSize <= kMost);
}

}  // namespace

std::vector<std::string> fuzz::Seeds() {
  const std::string key = keys::Extent(InodeId{7}, FileBlock{256});
  const ExtentRecord extent{DeviceId{1}, DeviceBlock{4096}, BlockCount{300}, kExtentUnwritten, 9};
  const Timestamp time{1'700'000'000, 999'999'999};
  const InodeRecord file{
      {.mode = S_IFREG | 0640, .uid = 1000, .links = 2, .size = 123'456'789, .accessed = time, .modified = time},
      kInodeHasAttributes,
      /*blocks=*/30'142};
  InodeRecord link{{.mode = S_IFLNK | 0777, .links = 1, .size = 6}};
  link.symlink = "target";
  return {'\0' + file.Encode(),
          '\0' + link.Encode(),
          '\1' + EntryRecord{InodeId{12}, S_IFDIR}.Encode(),
          '\x82' + key + extent.Encode(key),
          '\2' + key + extent.Encode(key),
          '\3' + EncodeChecksums({1, 2, 0xFFFF'FFFF}),
          '\3' + EncodeChecksums(std::vector<uint32_t>(keys::kSegmentBlocks)),
          '\4' + EncodeFact(0x1'0000'0000)};
}

}  // namespace weightfs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weightfs;
  if (size == 0) return 0;
  const std::string_view bytes = fuzz::Text(data + 1, size - 1);
  switch (data[0] & 0x7F) {
    case 0: CheckInode(bytes); break;
    case 1:
      CheckRecord(EntryRecord::Decode(bytes), bytes, [](const EntryRecord& entry) { return entry.Encode(); });
      break;
    case 2: CheckExtent(bytes, (data[0] & 0x80) != 0); break;
    case 3: CheckRecord(DecodeChecksums(bytes), bytes, EncodeChecksums); break;
    case 4: CheckRecord(DecodeFact(bytes), bytes, EncodeFact); break;
    default: break;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "store/commit/recovery.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "common/log.h"
#include "meta/keys.h"
#include "meta/records.h"

namespace weightfs {

namespace {

// Records are marked in address order, which takes a quarter of the time of catalog order. The batch size bounds
// memory.
constexpr size_t kBatch = 1 << 20;
constexpr uint64_t kLogged = 10;

struct Found {
  InodeId ino;
  FileBlock first;
  DeviceRun run;
};

void MarkBatch(std::vector<Found>& batch, SpaceManager& space, uint64_t* damaged) {
  std::sort(batch.begin(), batch.end(), [](const Found& a, const Found& b) {
    return std::tie(a.run.device, a.run.run.start) < std::tie(b.run.device, b.run.run.start);
  });
  for (const Found& found : batch) {
    if (space.MarkUsed(found.run)) continue;
    if (++*damaged > kLogged) continue;
    spdlog::error("inode {}: the extent at file block {} (device {}, blocks {}+{}) overlaps another or lies outside",
                  found.ino.value, found.first.value, found.run.device.value, found.run.run.start.value,
                  found.run.run.count.value);
  }
  batch.clear();
}

}  // namespace

Result<uint64_t> RecoverSpace(KvStore& catalog, SpaceManager& space) {
  uint64_t damaged = 0;
  std::vector<Found> batch;
  const auto iterator = catalog.NewIterator(keys::KindPrefix(keys::kExtent));
  for (; iterator->Valid(); iterator->Next()) {
    const auto key = keys::ParseIndexed(iterator->key());
    const auto record = ExtentRecord::Decode(iterator->key(), iterator->value());
    if (!key || !record) {
      if (++damaged <= kLogged) spdlog::error("an extent record cannot be decoded");
      continue;
    }
    batch.push_back({key->ino, FileBlock{key->index}, {record->device, {record->start, record->count}}});
    if (batch.size() == kBatch) MarkBatch(batch, space, &damaged);
  }
  RETURN_IF_ERROR(iterator->status());
  MarkBatch(batch, space, &damaged);
  return damaged;
}

}  // namespace weightfs

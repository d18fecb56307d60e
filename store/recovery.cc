#include "store/recovery.h"

#include "common/log.h"
#include "meta/keys.h"
#include "meta/records.h"

namespace weightfs {

Result<SpaceRecovery> RecoverSpace(KvStore& catalog, SpaceManager& space) {
  constexpr uint64_t kLogged = 10;
  SpaceRecovery recovery;
  const auto iterator = catalog.NewIterator(keys::KindPrefix(keys::kExtent));
  for (; iterator->Valid(); iterator->Next()) {
    ++recovery.extents;
    const auto key = keys::ParseIndexed(iterator->key());
    const auto record = ExtentRecord::Decode(iterator->key(), iterator->value());
    if (!key || !record) {
      if (++recovery.damaged <= kLogged) spdlog::error("an extent record cannot be decoded");
      continue;
    }
    if (!space.MarkUsed({record->device, {record->start, record->count}})) {
      if (++recovery.damaged <= kLogged) {
        spdlog::error("inode {}: the extent at file block {} (device {}, blocks {}+{}) overlaps another or lies outside",
                      key->ino.value, key->index, record->device.value, record->start.value, record->count.value);
      }
    }
  }
  RETURN_IF_ERROR(iterator->status());
  return recovery;
}

}  // namespace weightfs

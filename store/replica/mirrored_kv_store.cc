// SPDX-License-Identifier: Apache-2.0
#include "store/replica/mirrored_kv_store.h"

#include <utility>

#include "meta/keys.h"

namespace weightfs::replica {

Result<Version> ReadVersion(KvStore& catalog) {
  ASSIGN_OR_RETURN(const auto bytes, catalog.Get(keys::Store(kVersionFact)));
  if (!bytes) return Version{};
  const auto version = DecodeVersion(*bytes);
  if (!version) return Error{ErrorCode::kCorrupt, "the version of the catalog cannot be decoded"};
  return *version;
}

KvBatch WithVersion(KvBatch batch, Version version) {
  batch.Put(keys::Store(kVersionFact), EncodeVersion(version));
  return batch;
}

void MirroredKvStore::Attach(EntrySink* sink) {
  MutexLock lock(mutex_);
  sink_ = sink;
}

MirroredKvStore::Snapshot MirroredKvStore::TakeSnapshot() {
  MutexLock lock(mutex_);
  return {NewIterator({}), version_};
}

Result<void> MirroredKvStore::Write(KvBatch batch) {
  if (batch.empty()) return {};
  MutexLock lock(mutex_);
  Version next = version_;
  std::string entry = EncodeNext(batch, &next);
  RETURN_IF_ERROR(KvStoreWrapper::Write(WithVersion(std::move(batch), next)));
  version_ = next;
  if (sink_ != nullptr) sink_->Append(std::move(entry), next);
  return {};
}

Result<void> MirroredKvStore::Sync() {
  uint64_t sequence = 0;
  {
    MutexLock lock(mutex_);
    sequence = version_.sequence;
  }
  RETURN_IF_ERROR(KvStoreWrapper::Sync());
  MutexLock lock(mutex_);
  if (sink_ != nullptr) sink_->NoteDurable(sequence);
  return {};
}

}  // namespace weightfs::replica

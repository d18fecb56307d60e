// SPDX-License-Identifier: Apache-2.0
#include "store/wal/logged_kv_store.h"

#include <utility>

#include "meta/keys.h"
#include "store/wal/log_writer.h"

namespace weightfs::wal {

Result<Version> ReadVersion(KvStore& index) {
  ASSIGN_OR_RETURN(const auto bytes, index.Get(keys::Store(kVersionFact)));
  if (!bytes) return Version{};
  const auto version = DecodeVersion(*bytes);
  if (!version) return Error{ErrorCode::kCorrupt, "the version of the catalog cannot be decoded"};
  return *version;
}

KvBatch WithVersion(KvBatch batch, Version version) {
  batch.Put(keys::Store(kVersionFact), EncodeVersion(version));
  return batch;
}

void LoggedKvStore::Attach(LogWriter* log) {
  MutexLock lock(order_);
  log_ = log;
}

Version LoggedKvStore::version() {
  MutexLock lock(order_);
  return version_;
}

bool LoggedKvStore::failed() const {
  const LogWriter* log = log_.load();
  return failed_.load() || (log != nullptr && log->failed()) || KvStoreWrapper::failed();
}

Result<void> LoggedKvStore::Write(KvBatch batch) {
  if (batch.empty()) return {};
  MutexLock lock(order_);
  LogWriter* log = log_.load();
  if (log == nullptr || failed()) return ErrorCode::kReadOnly;
  Version next = version_;
  const std::string entry = EncodeNext(batch, &next);  // sets `next`
  RETURN_IF_ERROR(log->Append(entry, next.sequence, batch.accepted()));
  version_ = next;
  auto applied = KvStoreWrapper::Write(WithVersion(std::move(batch), next));
  if (!applied) failed_ = true;
  return applied;
}

Result<void> LoggedKvStore::Sync() {
  if (failed()) return ErrorCode::kReadOnly;
  LogWriter* log = log_.load();
  return log == nullptr ? Result<void>() : log->Commit();  // without a log nothing was written
}

Result<void> LoggedKvStore::CheckSpace(KvChange change) {
  if (LogWriter* log = log_.load()) RETURN_IF_ERROR(log->CheckSpace(change));
  return KvStoreWrapper::CheckSpace(change);
}

}  // namespace weightfs::wal

// SPDX-License-Identifier: Apache-2.0
#include "tests/support/memory_kv_store.h"

#include <limits>
#include <utility>

#include "common/assert.h"
#include "common/mutex.h"

namespace weightfs {

class MemoryKvStore::Iterator final : public KvIterator {
 public:
  Iterator(std::shared_ptr<State> state, std::shared_ptr<const KvContent> content, std::string_view prefix,
           std::string_view first, uint64_t keys_until_failure)
      : state_(std::move(state)), content_(std::move(content)), prefix_(prefix), left_(keys_until_failure) {
    MoveTo(content_->lower_bound(first < std::string_view(prefix_) ? std::string_view(prefix_) : first));
  }
  // Under the lock, so that a writer that finds itself the only owner has seen the last read of this iterator.
  ~Iterator() override {
    MutexLock lock(state_->mutex);
    content_.reset();
  }

  bool Valid() const override { return valid_; }
  void Next() override {
    if (valid_) MoveTo(std::next(at_));
  }
  void Seek(std::string_view key) override {
    MoveTo(content_->lower_bound(key < std::string_view(prefix_) ? std::string_view(prefix_) : key));
  }
  std::string_view key() const override { return at_->first; }
  std::string_view value() const override { return at_->second; }
  Result<void> status() const override {
    if (failed_) return ErrorCode::kIo;
    return {};
  }

 private:
  void MoveTo(KvContent::const_iterator to) {
    if (left_ == 0) failed_ = true;
    at_ = to;
    valid_ = !failed_ && at_ != content_->end() && at_->first.starts_with(prefix_);
    if (valid_) --left_;
  }

  const std::shared_ptr<State> state_;
  std::shared_ptr<const KvContent> content_;
  const std::string prefix_;
  KvContent::const_iterator at_;
  uint64_t left_;  // keys to return before the injected failure
  bool valid_ = false;
  bool failed_ = false;
};

MemoryKvStore::MemoryKvStore(std::shared_ptr<Journal> journal, KvContent content)
    : journal_(std::move(journal)), state_(std::make_shared<State>()) {
  journal_->SetKvContent(content);
  MutexLock lock(state_->mutex);
  state_->content = std::make_shared<KvContent>(std::move(content));
}

Result<std::optional<std::string>> MemoryKvStore::Get(std::string_view key) {
  WEIGHTFS_ASSERT(Mutex::MayReadCatalog());
  MutexLock lock(state_->mutex);
  if (const auto first = std::exchange(before_get_, nullptr)) {
    lock.Unlock();
    first();
    lock.Lock();
  }
  if (Due(get_failure_)) return ErrorCode::kIo;
  const auto found = state_->content->find(key);
  std::optional<std::string> value;
  if (found != state_->content->end()) value = found->second;
  const auto then = after_get_;
  if (after_get_once_) after_get_ = nullptr;
  lock.Unlock();
  if (then) then();
  return value;
}

Result<void> MemoryKvStore::Write(KvBatch batch) {
  MutexLock lock(state_->mutex);
  if (const auto then = std::exchange(before_write_, nullptr)) {
    lock.Unlock();
    then();
    lock.Lock();
  }
  if (failed_) return ErrorCode::kReadOnly;
  auto recorded = std::make_shared<const KvBatch>(batch);
  if (Due(write_failure_)) {
    if (write_error_ == ErrorCode::kNoSpace) return write_error_;
    failed_ = true;
    journal_->Append({.kind = Journal::Event::Kind::kBatchFailed, .batch = std::move(recorded)});
    return ErrorCode::kIo;
  }
  journal_->Append({.kind = Journal::Event::Kind::kBatch, .batch = std::move(recorded)});
  if (state_->content.use_count() > 1) state_->content = std::make_shared<KvContent>(*state_->content);
  ApplyBatch(batch, *state_->content);
  return {};
}

Result<void> MemoryKvStore::Sync() {
  MutexLock lock(state_->mutex);
  if (failed_) return ErrorCode::kReadOnly;
  if (full_) return ErrorCode::kNoSpace;
  const size_t covered = journal_->size();
  if (const auto then = std::exchange(during_sync_, nullptr)) {
    lock.Unlock();
    then();
    lock.Lock();
  }
  if (Due(sync_failure_)) {
    failed_ = true;
    journal_->Append({.kind = Journal::Event::Kind::kSyncFailed, .subject = covered});
    return ErrorCode::kIo;
  }
  journal_->Append({.kind = Journal::Event::Kind::kSync, .subject = covered});
  return {};
}

std::unique_ptr<KvIterator> MemoryKvStore::NewIterator(std::string_view prefix, std::string_view first, KvScan) {
  WEIGHTFS_ASSERT(Mutex::MayReadCatalog());
  MutexLock lock(state_->mutex);
  const uint64_t keys = Due(iterator_failure_) ? iterator_keys_ : std::numeric_limits<uint64_t>::max();
  auto iterator = std::make_unique<Iterator>(state_, state_->content, prefix, first, keys);
  const auto then = after_new_iterator_;
  lock.Unlock();
  if (then) then();
  return iterator;
}

uint64_t MemoryKvStore::EstimateSize(std::string_view prefix) const {
  MutexLock lock(state_->mutex);
  uint64_t size = 0;
  for (auto at = state_->content->lower_bound(std::string(prefix)); at != state_->content->end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    size += at->first.size() + at->second.size();
  }
  return size;
}

void MemoryKvStore::FailWrite(uint64_t nth, ErrorCode code) {
  MutexLock lock(state_->mutex);
  write_error_ = code;
  write_failure_ = nth;
}

void MemoryKvStore::Fill(bool full) {
  MutexLock lock(state_->mutex);
  full_ = full;
}

void MemoryKvStore::FailSync(uint64_t nth) {
  MutexLock lock(state_->mutex);
  sync_failure_ = nth;
}

void MemoryKvStore::FailGet(uint64_t nth) {
  MutexLock lock(state_->mutex);
  get_failure_ = nth;
}

void MemoryKvStore::BeforeWrite(std::function<void()> then) {
  MutexLock lock(state_->mutex);
  before_write_ = std::move(then);
}

void MemoryKvStore::DuringSync(std::function<void()> then) {
  MutexLock lock(state_->mutex);
  during_sync_ = std::move(then);
}

void MemoryKvStore::BeforeGet(std::function<void()> then) {
  MutexLock lock(state_->mutex);
  before_get_ = std::move(then);
}

void MemoryKvStore::AfterGet(std::function<void()> then, bool once) {
  MutexLock lock(state_->mutex);
  after_get_ = std::move(then);
  after_get_once_ = once;
}

void MemoryKvStore::AfterNewIterator(std::function<void()> then) {
  MutexLock lock(state_->mutex);
  after_new_iterator_ = std::move(then);
}

void MemoryKvStore::FailIterator(uint64_t nth, uint64_t keys) {
  MutexLock lock(state_->mutex);
  iterator_failure_ = nth;
  iterator_keys_ = keys;
}

KvContent MemoryKvStore::content() const {
  MutexLock lock(state_->mutex);
  return *state_->content;
}

bool MemoryKvStore::failed() const {
  MutexLock lock(state_->mutex);
  return failed_;
}

Result<void> MemoryKvStore::Verify(const std::function<bool(ByteCount)>& next) {
  {
    MutexLock lock(state_->mutex);
    if (tables_damaged_) return Error{ErrorCode::kCorrupt, "table 1: block checksum mismatch"};
  }
  next(ByteCount{EstimateSize({})});
  return {};
}

void MemoryKvStore::DamageTables(bool damaged) {
  MutexLock lock(state_->mutex);
  tables_damaged_ = damaged;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "meta/overlay_kv_store.h"

#include <algorithm>
#include <utility>

namespace weightfs {

// Merges the keys of the base and of the changes.
class OverlayKvStore::Iterator final : public KvIterator {
 public:
  Iterator(const OverlayKvStore& store, std::unique_ptr<KvIterator> base, std::string_view prefix,
           std::string_view first)
      : store_(store), base_(std::move(base)), prefix_(prefix) {
    at_ = store_.changes_.lower_bound(std::max(std::string_view(prefix_), first));
    Settle();
  }

  bool Valid() const override { return IsChange() || IsBase(); }
  void Next() override {
    if (IsChange()) {
      if (IsBase() && base_->key() == at_->first) base_->Next();
      ++at_;
    } else if (IsBase()) {
      base_->Next();
    }
    Settle();
  }
  void Seek(std::string_view key) override {
    at_ = store_.changes_.lower_bound(std::max(std::string_view(prefix_), key));
    if (base_) base_->Seek(key);
    Settle();
  }
  std::string_view key() const override { return IsChange() ? std::string_view(at_->first) : base_->key(); }
  std::string_view value() const override { return IsChange() ? std::string_view(*at_->second) : base_->value(); }
  Result<void> status() const override { return base_ ? base_->status() : Result<void>(); }

 private:
  bool HasChange() const { return at_ != store_.changes_.end() && at_->first.starts_with(prefix_); }
  bool IsBase() const { return base_ && base_->Valid(); }
  // The next key is that of a change.
  bool IsChange() const { return HasChange() && (!IsBase() || at_->first <= base_->key()); }

  // Skips deleted keys.
  void Settle() {
    while (true) {
      if (IsChange() && !at_->second) {
        if (IsBase() && base_->key() == at_->first) base_->Next();
        ++at_;
      } else if (!IsChange() && IsBase() && store_.IsErased(base_->key())) {
        base_->Next();
      } else {
        return;
      }
    }
  }

  const OverlayKvStore& store_;
  const std::unique_ptr<KvIterator> base_;
  const std::string prefix_;
  Changes::const_iterator at_;
};

void OverlayKvStore::Apply(const KvBatch& batch) {
  for (const KvBatch::Change& change : batch.changes()) {
    switch (change.kind) {
      case KvBatch::Change::Kind::kPut: changes_[change.key] = change.value; break;
      case KvBatch::Change::Kind::kDelete: changes_[change.key] = std::nullopt; break;
      case KvBatch::Change::Kind::kDeleteRange: {
        std::string begin = change.key, end = change.value;
        if (begin >= end) break;
        changes_.erase(changes_.lower_bound(begin), changes_.lower_bound(end));
        // Joins the ranges that it touches.
        auto next = erased_.upper_bound(begin);
        if (next != erased_.begin() && std::prev(next)->second >= begin) --next;
        while (next != erased_.end() && next->first <= end) {
          begin = std::min(begin, next->first);
          end = std::max(end, next->second);
          next = erased_.erase(next);
        }
        erased_.emplace(std::move(begin), std::move(end));
      }
    }
  }
}

bool OverlayKvStore::IsErased(std::string_view key) const {
  const auto after = erased_.upper_bound(key);
  return after != erased_.begin() && key < std::prev(after)->second;
}

Result<std::optional<std::string>> OverlayKvStore::Get(std::string_view key) {
  if (const auto found = changes_.find(key); found != changes_.end()) return found->second;
  if (!base_ || IsErased(key)) return std::optional<std::string>();
  return base_->Get(key);
}

std::unique_ptr<KvIterator> OverlayKvStore::NewIterator(std::string_view prefix, std::string_view first, KvScan scan) {
  return std::make_unique<Iterator>(*this, base_ ? base_->NewIterator(prefix, first, scan) : nullptr, prefix, first);
}

uint64_t OverlayKvStore::EstimateSize(std::string_view prefix) const {
  uint64_t size = base_ ? base_->EstimateSize(prefix) : 0;
  for (auto at = changes_.lower_bound(prefix); at != changes_.end() && at->first.starts_with(prefix); ++at) {
    size += at->first.size() + (at->second ? at->second->size() : 0);
  }
  return size;
}

Result<void> OverlayKvStore::Verify(const std::function<bool(ByteCount)>& next) {
  return base_ ? base_->Verify(next) : Result<void>();
}

}  // namespace weightfs

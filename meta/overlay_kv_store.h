// SPDX-License-Identifier: Apache-2.0
// A store that is not changed, and changes to it in memory: what a store would be like with them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "meta/kv_store.h"

namespace weightfs {

// Apply first, from one thread. After that it is immutable: thread-safe, and its iterators may not outlive it. Write
// returns kReadOnly.
class OverlayKvStore final : public KvStore {
 public:
  // Null: an empty store.
  explicit OverlayKvStore(std::unique_ptr<KvStore> base) : base_(std::move(base)) {}
  void Apply(const KvBatch& batch);

  Result<std::optional<std::string>> Get(std::string_view key) override;
  bool failed() const override { return false; }
  Result<void> Write(KvBatch) override { return ErrorCode::kReadOnly; }
  Result<void> Sync() override { return {}; }
  std::unique_ptr<KvIterator> NewIterator(std::string_view prefix, std::string_view first = {},
                                          KvScan scan = KvScan::kMany) override;
  uint64_t EstimateSize(std::string_view prefix) const override;
  Result<void> Verify(const std::function<bool(ByteCount)>& next) override;

 private:
  class Iterator;
  using Changes = std::map<std::string, std::optional<std::string>, std::less<>>;  // nullopt: deleted

  // True if a range that was deleted has the key.
  bool IsErased(std::string_view key) const;

  const std::unique_ptr<KvStore> base_;
  Changes changes_;
  std::map<std::string, std::string, std::less<>> erased_;  // begin → end, disjoint; `changes_` is newer
};

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// A whole store over devices and a key-value store in memory, and short ways to use it as a filesystem.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/store.h"
#include "tests/support/restart.h"

namespace weightfs {

struct TestStoreOptions {
  ByteCount device_size{64 * kMiB};
  size_t devices = 1;
  StoreOptions store = {.memory = ByteCount{48 * kMiB}};
  FaultDeviceOptions device = {};
};

// Owns what the store works on and keeps pointers to the fakes, to make them fail. Not thread-safe itself.
class TestStore {
 public:
  // A fresh store; aborts the test's process when it cannot be opened.
  explicit TestStore(const TestStoreOptions& options = {});
  // The store that a crash left; `opened` tells whether it could be opened.
  TestStore(const CrashImage& image, const TestStoreOptions& options);
  ~TestStore();

  Store& operator*() { return *store_; }
  Store* operator->() { return store_.get(); }
  const Result<void>& opened() const { return opened_; }
  Journal& journal() { return *journal_; }
  FaultDevice& device(size_t index = 0) { return *devices_[index]; }
  MemoryKvStore& kv() { return *kv_; }

  // Closes the store and opens it again over the same media.
  Result<void> Remount();

  // By path from the root, "a/b".
  Result<InodeId> Resolve(std::string_view path);
  Result<InodePtr> Create(std::string_view path);  // a regular file, open
  Result<InodePtr> OpenPath(std::string_view path, bool truncate = false);
  Result<std::string> ReadAll(const InodePtr& inode);
  Result<std::string> ReadPath(std::string_view path);
  Result<std::string> ReadAt(const InodePtr& inode, uint64_t offset, uint64_t size);
  Result<void> WriteAt(const InodePtr& inode, uint64_t offset, std::string_view data);
  Result<void> WriteFile(std::string_view path, std::string_view data);  // create or replace, not synced
  uint64_t SizeOf(const InodePtr& inode);

  // As a holder of leases does it: the bytes go past the store, and reads check every block.
  struct Filled {
    BlockReservation grant;
    std::vector<uint32_t> checksums;
  };
  Result<Filled> Fill(const InodePtr& inode, FileBlock first, std::string_view data);  // the last block with zeros
  Result<void> WriteDirect(const InodePtr& inode, uint64_t offset, std::string_view data,
                           std::optional<uint64_t> new_size);
  Result<std::string> ReadLeased(const ReadLease& lease);  // all blocks of the range
  Result<std::string> ReadDirect(const InodePtr& inode, uint64_t offset, uint64_t length);
  struct NamedFile {
    std::string name, data;
  };
  // In one commit; `who` is root.
  Result<void> Publish(std::string_view directory, const std::vector<NamedFile>& files);

 private:
  Result<void> OpenStore(std::unique_ptr<MemoryKvStore> kv, std::vector<std::unique_ptr<FaultDevice>> devices);

  TestStoreOptions options_;
  std::shared_ptr<Journal> journal_;
  std::vector<FaultDevice*> devices_;
  MemoryKvStore* kv_ = nullptr;
  std::unique_ptr<Store> store_;
  Result<void> opened_;
};

std::span<const std::byte> AsBytes(std::string_view text);
std::string ToText(const ReadView& view);
// `size` bytes that differ from those of other seeds and offsets.
std::string Pattern(uint64_t seed, size_t size);

}  // namespace weightfs

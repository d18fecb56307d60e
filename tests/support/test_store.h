// SPDX-License-Identifier: Apache-2.0
// A complete store on devices and a key-value store in memory, with shortcuts to use it as a filesystem.
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
  size_t largest_root = wal::kRootCapacity;  // of the log
  std::vector<wal::Segment> replaced = {};   // of another log, in whose place a new one begins
};

// Owns everything that the store uses, and keeps pointers to the fakes so that tests can make them fail. Not
// thread-safe.
class TestStore {
 public:
  // Creates a new store. Aborts the test process if it cannot be opened.
  explicit TestStore(const TestStoreOptions& options = {});
  // Opens the store that a crash left; `opened` says whether that succeeded.
  TestStore(const CrashImage& image, const TestStoreOptions& options);
  ~TestStore();

  Store& operator*() { return *store_; }
  Store* operator->() { return store_.get(); }
  const Result<void>& opened() const { return opened_; }
  // True if the index had entries that the log lacks. The index stores none before they are durable in the log, so the
  // devices have lost them; a mount says so.
  bool index_was_ahead() const { return index_was_ahead_; }
  Journal& journal() { return *journal_; }
  FaultDevice& device(size_t index = 0) { return *devices_[index]; }
  MemoryKvStore& kv() { return *kv_; }

  // Closes the store and opens it again on the same media.
  Result<void> Remount();

  // By path from the root, "a/b".
  Result<InodeId> Resolve(std::string_view path);
  Result<InodePtr> Create(std::string_view path);  // an open regular file
  Result<InodePtr> OpenPath(std::string_view path, bool truncate = false);  // `truncate`: as a writer
  Result<std::string> ReadAll(const InodePtr& inode);
  Result<std::string> ReadPath(std::string_view path);
  Result<std::string> ReadAt(const InodePtr& inode, uint64_t offset, uint64_t size);
  Result<void> WriteAt(const InodePtr& inode, uint64_t offset, std::string_view data);
  Result<void> WriteFile(std::string_view path, std::string_view data);  // create or replace, not synced
  uint64_t SizeOf(const InodePtr& inode);

  // Like a holder of leases: the bytes bypass the store, and reads verify every block.
  struct Filled {
    BlockReservation grant;
    std::vector<uint32_t> checksums;
  };
  Result<Filled> Fill(const InodePtr& inode, FileBlock first, std::string_view data);  // pads the last block with zeros
  Result<void> WriteDirect(const InodePtr& inode, uint64_t offset, std::string_view data,
                           std::optional<uint64_t> new_size);
  Result<std::string> ReadLeased(const ReadLease& lease);  // all blocks of the range
  Result<std::string> ReadDirect(const InodePtr& inode, uint64_t offset, uint64_t length);
  struct NamedFile {
    std::string name, data;
  };
  // In one commit, as root.
  Result<void> CreateMany(std::string_view directory, const std::vector<NamedFile>& files);

 private:
  Result<void> OpenStore(std::unique_ptr<MemoryKvStore> kv, std::vector<std::unique_ptr<FaultDevice>> devices);
  // Brings the index up to the end of the log, as OpenCatalog does; replaces it if it cannot be used.
  Result<wal::WriterOptions> CatchUp(std::unique_ptr<MemoryKvStore>* kv, std::span<BlockDevice* const> devices);

  TestStoreOptions options_;
  std::shared_ptr<Journal> journal_;
  std::vector<FaultDevice*> devices_;
  MemoryKvStore* kv_ = nullptr;
  std::unique_ptr<Store> store_;
  Result<void> opened_;
  bool index_was_ahead_ = false;
};

std::span<const std::byte> AsBytes(std::string_view text);
std::string ToText(const ReadView& view);
// Returns `size` bytes that differ for different seeds and offsets.
std::string Pattern(uint64_t seed, size_t size);

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/volume/salvage_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/file_device.h"
#include "meta/facts.h"
#include "meta/keys.h"
#include "meta/records.h"
#include "meta/rocks_salvage.h"
#include "store/wal/logged_kv_store.h"
#include "store/wal/wal_reader.h"
#include "store/volume/catalog_replica.h"
#include "store/volume/catalog_swap.h"
#include "store/volume/store_directory.h"

namespace weightfs {
namespace {

constexpr size_t kBatchRecords = 1000;

// Writes records to a catalog, many in one batch.
class RecordWriter {
 public:
  explicit RecordWriter(KvStore& catalog) : catalog_(catalog) {}
  Result<void> Put(std::string_view key, std::string_view value) {
    batch_.Put(std::string(key), std::string(value));
    return batch_.changes().size() < kBatchRecords ? Result<void>() : Flush();
  }
  Result<void> Flush() { return catalog_.Write(std::exchange(batch_, {})); }

 private:
  KvStore& catalog_;
  KvBatch batch_;
};

// The number of the last batch that the replica knows; 0 if there is none.
Result<uint64_t> LastInReplica(const std::string& directory, const StoreDescription& description,
                               const StoreLock& lock) {
  std::vector<std::unique_ptr<FileDevice>> devices;
  std::vector<BlockDevice*> borrowed;
  for (const StoreDescription::Device& device : description.devices) {
    auto opened = FileDevice::Open(DevicePath(directory, device),
                                   {.follow_links = device.path != kPoolName, .lock_wait = DeviceLockWait(lock)});
    if (!opened) continue;
    borrowed.push_back(opened->get());
    devices.push_back(std::move(*opened));
  }
  ASSIGN_OR_RETURN(auto root, wal::FindRoot(borrowed, description.id));
  if (!root || borrowed.size() != description.devices.size()) return 0;
  const auto loaded = wal::LoadSegments(borrowed, &*root);
  if (!loaded && loaded.error().code == ErrorCode::kCorrupt) return root->checkpoint.sequence;
  RETURN_IF_ERROR(loaded);
  ASSIGN_OR_RETURN(const wal::Tail tail, wal::FindTail(borrowed, *root, root->checkpoint));
  return std::max(root->checkpoint.sequence, tail.version.sequence);
}

// A record that cannot be decoded. The check rebuilds an inode with such a record from its names and extents, and
// deletes what belongs to an inode without any record.
constexpr std::string_view kDamagedInode = "\1";

// Adds records of the inodes in the gaps that names and extents refer to. Returns their number.
Result<uint64_t> MarkLostInodes(KvStore& catalog, const std::vector<KeyGap>& gaps) {
  std::set<uint64_t> lost;
  const auto note = [&](InodeId ino) -> Result<void> {
    const std::string key = keys::Inode(ino);
    const bool in_gap = std::any_of(gaps.begin(), gaps.end(), [&](const KeyGap& gap) {
      return gap.begin <= key && (gap.end.empty() || key < gap.end);
    });
    if (!in_gap || lost.contains(ino.value)) return {};
    ASSIGN_OR_RETURN(const auto found, catalog.Get(key));
    if (!found) lost.insert(ino.value);
    return {};
  };
  RETURN_IF_ERROR(note(kRootInode));
  const auto entries = catalog.NewIterator(keys::KindPrefix(keys::kEntry));
  for (; entries->Valid(); entries->Next()) {
    const auto key = keys::ParseNamed(entries->key());
    const auto entry = EntryRecord::Decode(entries->value());
    if (key) RETURN_IF_ERROR(note(key->ino));
    if (entry) RETURN_IF_ERROR(note(entry->ino));
  }
  RETURN_IF_ERROR(entries->status());
  const auto extents = catalog.NewIterator(keys::KindPrefix(keys::kExtent));
  for (; extents->Valid(); extents->Next()) {
    if (const auto key = keys::ParseIndexed(extents->key())) RETURN_IF_ERROR(note(key->ino));
  }
  RETURN_IF_ERROR(extents->status());
  RecordWriter writer(catalog);
  for (const uint64_t ino : lost) RETURN_IF_ERROR(writer.Put(keys::Inode(InodeId{ino}), kDamagedInode));
  RETURN_IF_ERROR(writer.Flush());
  return lost.size();
}

// Completes the facts without which a store cannot be opened.
Result<void> CompleteFacts(KvStore& catalog, const Uuid& store, uint64_t known) {
  ASSIGN_OR_RETURN(const auto version, catalog.Get(keys::Store(wal::kVersionFact)));
  const auto last = version ? wal::DecodeVersion(*version) : std::nullopt;
  // A version that no replica has, so that the next mount renews the replica.
  const uint64_t sequence = std::max(known, last ? last->sequence : 0) + 1;
  KvBatch batch = wal::WithVersion({}, {sequence, last ? last->chain : 0});
  batch.Put(keys::Store(kStoreIdFact), ToString(store));
  RETURN_IF_ERROR(catalog.Write(std::move(batch)));
  return catalog.Sync();
}

}  // namespace

Result<SalvagedStore> SalvageStore(const std::string& directory) {
  ASSIGN_OR_RETURN(StoreLock lock, StoreLock::Acquire(directory));
  lock.Claim();
  ASSIGN_OR_RETURN(const StoreDescription description, ReadStoreDescription(directory));
  ASSIGN_OR_RETURN(auto catalog, CreateNewCatalog(directory));
  RecordWriter writer(*catalog);
  ASSIGN_OR_RETURN(const SalvageReport report,
                   SalvageCatalog(directory + "/" + kCatalogName, [&](std::string_view key, std::string_view value) {
                     return writer.Put(key, value);
                   }));
  RETURN_IF_ERROR(writer.Flush());
  ASSIGN_OR_RETURN(const uint64_t inodes, MarkLostInodes(*catalog, report.gaps));
  ASSIGN_OR_RETURN(const uint64_t last, LastInReplica(directory, description, lock));
  RETURN_IF_ERROR(CompleteFacts(*catalog, description.id, last));
  catalog.reset();
  SalvagedStore salvaged{.records = report.records,
                         .inodes = inodes,
                         .gaps = report.gaps.size(),
                         .uncertain = report.uncertain,
                         .files = report.files,
                         .kept = {}};
  ASSIGN_OR_RETURN(salvaged.kept, SwapCatalogs(directory));
  lock.Clear();
  return salvaged;
}

std::string DescribeSalvaged(const SalvagedStore& salvaged) {
  std::string files;
  for (const std::string& file : salvaged.files) files += (files.empty() ? "" : ", ") + file;
  std::string text = fmt::format("{} records were salvaged from the damaged catalog", salvaged.records);
  if (!salvaged.complete()) {
    text += fmt::format("; records in {} places of {} are lost", salvaged.gaps, files.empty() ? "its tables" : files);
  }
  if (salvaged.inodes > 0) {
    text += fmt::format(
        "; the attributes of {} files or directories are lost: owner, permissions, times and exact size",
        salvaged.inodes);
  }
  if (salvaged.uncertain > 0) text += fmt::format("; {} records may be out of date", salvaged.uncertain);
  return text + fmt::format("; the damaged catalog is in {}", salvaged.kept);
}

}  // namespace weightfs

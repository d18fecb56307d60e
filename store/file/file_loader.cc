// SPDX-License-Identifier: Apache-2.0
// Reads the catalog records of a file's data.
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "meta/keys.h"
#include "store/file/file.h"
#include "store/file/file_io.h"

namespace weightfs {
namespace {

// Calls visit(key, value) for each extent of a file in the catalog, in order.
template <typename Visit>
Result<void> ForEachExtent(KvStore& catalog, InodeId ino, const CommittedData& committed, const Visit& visit) {
  // Read the few extents of a small file without holes individually, because an iterator costs as much as several
  // reads.
  constexpr size_t kFew = 4;
  std::vector<std::pair<std::string, std::string>> few;
  FileBlock end;
  while (end.value < committed.blocks && few.size() < kFew) {
    std::string key = keys::Extent(ino, end);
    ASSIGN_OR_RETURN(auto value, catalog.Get(key));
    const auto record = value ? ExtentRecord::Decode(key, *value) : Result<ExtentRecord>(ErrorCode::kNotFound);
    if (!record) break;
    end += record->count;
    few.emplace_back(std::move(key), std::move(*value));
  }
  if (end.value == committed.blocks && end.value >= BlocksFor(ByteCount{committed.size}).value) {
    for (const auto& [key, value] : few) RETURN_IF_ERROR(visit(key, value));
    return {};
  }
  const auto extents = catalog.NewIterator(keys::ExtentPrefix(ino));
  for (; extents->Valid(); extents->Next()) RETURN_IF_ERROR(visit(extents->key(), extents->value()));
  return extents->status();
}

Result<ExtentMap> ReadExtents(KvStore& catalog, InodeId ino, const CommittedData& committed) {
  ExtentMap extents;
  const auto load = [&](std::string_view key, std::string_view value) -> Result<void> {
    const auto parsed = keys::ParseIndexed(key);
    const auto record = ExtentRecord::Decode(key, value);
    if (parsed && record && extents.Load(FileBlock{parsed->index}, *record)) return {};
    return ErrorCode::kCorrupt;
  };
  RETURN_IF_ERROR(ForEachExtent(catalog, ino, committed, load));
  return extents;
}

}  // namespace

Result<void> LoadFile(KvStore& catalog, const InodePtr& inode) {
  while (true) {
    CommittedData committed;
    uint64_t changes;
    {
      MutexLock lock(inode->mutex);
      if (!inode->file) return inode->IsDirectory() ? ErrorCode::kIsDirectory : ErrorCode::kInvalid;
      if (inode->file->loaded()) return {};
      if (inode->deleted) return ErrorCode::kStale;
      committed = inode->committed;
      changes = inode->changes;
    }
    auto extents = ReadExtents(catalog, inode->id, committed);
    MutexLock lock(inode->mutex);
    if (inode->file->loaded()) return {};
    // Another thread has loaded and committed the file, and a failed write has unloaded it again; or it was deleted, and
    // perhaps put back. The records may be of both versions.
    if (inode->committed.version != committed.version || inode->changes != changes) continue;
    if (!extents) {
      if (extents.error().code == ErrorCode::kCorrupt) {
        spdlog::error("inode {}: a damaged or overlapping extent record; run weightfs verify", inode->id.value);
      }
      return extents.error();
    }
    inode->file->Load(std::move(*extents));
    return {};
  }
}

Result<DataRecords> FileIo::ReadRecords(const InodePtr& inode, bool restorable) {
  DataRecords records;
  CommittedData committed;
  bool loaded;
  {
    MutexLock lock(inode->mutex);
    if (!inode->file) return records;
    committed = inode->committed;
    loaded = inode->file->loaded();
    // Of at most one segment: reading the checksums of a larger file costs more than a second batch.
    const bool small = committed.blocks <= keys::kSegmentBlocks && keys::SegmentsOf(committed.size) <= 1;
    if (restorable && (!small || inode->file->Uncommitted())) return records;
    if (restorable) records.restore.emplace();
  }
  records.version = committed.version;
  records.size = committed.size;
  const auto add = [&](std::string_view key, std::string_view value) -> Result<void> {
    records.extents.emplace_back(key);
    if (records.restore) records.restore->Put(std::string(key), std::string(value));
    const auto record = ExtentRecord::Decode(key, value);
    if (record) records.runs.push_back({record->device, {record->start, record->count}});
    // A loaded file knows its blocks. Deleting any other file would leak its blocks.
    return record || loaded ? Result<void>() : record.error();
  };
  RETURN_IF_ERROR(ForEachExtent(p_.catalog, inode->id, committed, add));
  if (records.restore && committed.size > 0) {
    std::string key = keys::Checksums(inode->id, 0);
    ASSIGN_OR_RETURN(auto checksums, p_.catalog.Get(key));
    if (checksums) records.restore->Put(std::move(key), *std::move(checksums));
  }
  return records;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "store/volume/catalog_replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/log.h"
#include "common/shell_quote.h"
#include "common/utc_time.h"
#include "io/huge_pages.h"
#include "meta/keys.h"
#include "store/wal/log_recovery.h"
#include "store/wal/logged_kv_store.h"

namespace weightfs {
namespace {

// Gives a restored catalog a version after that of the replica, whose log may end in damage.
Result<void> FinishRestore(KvStore& catalog, const wal::Root& root, uint64_t known, ReplicaRestore* restored) {
  const uint64_t last = std::max(known, restored->version.sequence);
  restored->missing = last - restored->version.sequence;
  KvBatch batch = wal::WithVersion({}, {last + 1, restored->version.chain});
  ASSIGN_OR_RETURN(const auto id, catalog.Get(keys::Store(kStoreIdFact)));
  if (!id && root.store_id != Uuid{}) batch.Put(keys::Store(kStoreIdFact), ToString(root.store_id));
  RETURN_IF_ERROR(catalog.Write(std::move(batch)));
  return catalog.Sync();
}

// Applies an entry of the log, with the version after it.
Result<void> ApplyEntry(KvStore& catalog, const wal::Entry& entry) {
  return catalog.Write(wal::WithVersion(entry.batch, entry.version));
}

}  // namespace

Result<ReplicaState> InspectReplica(std::span<BlockDevice* const> devices, std::span<const Superblock> superblocks,
                                    KvStore& catalog) {
  ReplicaState state;
  ASSIGN_OR_RETURN(state.catalog, wal::ReadVersion(catalog));
  if (!std::all_of(superblocks.begin(), superblocks.end(), [](const Superblock& s) { return s.keeps_replica; })) {
    return state;
  }
  const auto store_id = superblocks.empty() ? std::optional<Uuid>() : superblocks.front().store_id;
  ASSIGN_OR_RETURN(state.root, wal::FindRoot(devices, store_id));
  if (!state.root) return state;
  state.root_sequence = state.root->sequence;
  auto tail = [&]() -> Result<wal::Tail> {
    RETURN_IF_ERROR(wal::LoadSegments(devices, &*state.root));
    return wal::FindTail(devices, *state.root, state.root->checkpoint);
  }();
  if (tail) {
    state.tail = *tail;
  } else if (tail.error().code != ErrorCode::kCorrupt) {
    return tail.error();
  } else {
    spdlog::warn("the replica of the catalog cannot be read and is renewed: {}", ToString(tail.error()));
    state.root.reset();
  }
  return state;
}

std::string DescribeBehind(const std::string& directory, const ReplicaState& state) {
  const std::string lost =
      state.tail.version.sequence > state.catalog.sequence
          ? fmt::format("the catalog lacks the last {} changes that it had on {}",
                        state.tail.version.sequence - state.catalog.sequence, FormatUtc(state.tail.time_ns))
          : fmt::format("the catalog is not the one that the devices had on {}", FormatUtc(state.tail.time_ns));
  return fmt::format(
      "{}: {}: it was damaged, or replaced by an older copy; 'weightfs verify {} --repair' restores it from "
      "the replica on the devices, and 'weightfs mount -o ro' shows what it has",
      directory, lost, ShellQuote(directory));
}

std::string DescribeRestored(const ReplicaRestore& restored) {
  std::string text =
      fmt::format("the catalog was restored from its replica on the devices, as of {}", FormatUtc(restored.time_ns));
  if (restored.missing > 0) text += fmt::format("; {} later changes are lost", restored.missing);
  if (restored.damaged_frames > 0) {
    text += fmt::format("; {} parts of the replica are damaged, and their records are lost", restored.damaged_frames);
  }
  return text;
}

bool IsReadable(KvStore& catalog) {
  const auto records = catalog.NewIterator({});
  while (records->Valid()) records->Next();
  return records->status().has_value();
}

Result<void> EraseRoots(std::span<BlockDevice* const> devices, ErasedRoots erased) {
  ASSIGN_OR_RETURN(const HugePageMemory memory, HugePageMemory::Map(wal::kRootCapacity));
  const std::span<std::byte> block(memory.data(), kBlockSize);
  for (BlockDevice* device : devices) {
    for (const uint64_t offset : wal::kRootOffsets) {
      const auto root = wal::ReadRoot(*device, offset, {memory.data(), memory.size()});
      if (erased == ErasedRoots::kWithLists && (!root || root->lists.empty())) continue;
      std::ranges::fill(block, std::byte{0});
      RETURN_IF_ERROR(device->Write(ByteOffset{offset}, block));
    }
    RETURN_IF_ERROR(device->Flush());
  }
  return {};
}

Result<ReplicaRestore> RestoreCatalog(std::span<BlockDevice* const> devices, const wal::Root& root,
                                      KvStore& catalog, uint64_t known, const ProgressFunction& progress) {
  Progress done{.step = "restoring records", .total = root.checkpoint_frames, .unit = Progress::Unit::kParts};
  const auto checkpoint = wal::ReplayCheckpoint(devices, root, [&](const wal::Entry& part) {
    done.done = std::min(done.done + 1, done.total);
    if (progress) progress(done);
    return catalog.Write(part.batch);
  });
  if (!checkpoint) return checkpoint.error();
  RETURN_IF_ERROR(catalog.Write(wal::WithVersion({}, checkpoint->version)));
  ASSIGN_OR_RETURN(const wal::Tail tail, wal::FindDurableTail(devices, root, root.checkpoint));
  const auto log = wal::ReplayLog(devices, root, checkpoint->version, tail.version.sequence,
                                  [&](const wal::Entry& entry) { return ApplyEntry(catalog, entry); });
  if (!log) return log.error();
  ReplicaRestore restored{log->version, log->time_ns, log->entries, checkpoint->damaged_frames};
  RETURN_IF_ERROR(FinishRestore(catalog, root, std::max(known, tail.version.sequence), &restored));
  return restored;
}

Result<ReplicaRestore> CatchUp(std::span<BlockDevice* const> devices, const ReplicaState& state, KvStore& catalog) {
  if (state.catalog.sequence < state.root->checkpoint.sequence ||
      state.catalog.sequence >= state.tail.version.sequence) {
    return Error{ErrorCode::kCorrupt, "the log of the replica does not continue this catalog"};
  }
  const auto log = wal::ReplayLog(devices, *state.root, state.catalog, UINT64_MAX,
                                  [&](const wal::Entry& entry) { return ApplyEntry(catalog, entry); });
  if (!log) return log.error();
  if (log->entries == 0) return Error{ErrorCode::kCorrupt, "the log of the replica does not continue this catalog"};
  ReplicaRestore restored{log->version, log->time_ns, log->entries};
  RETURN_IF_ERROR(FinishRestore(catalog, *state.root, state.tail.version.sequence, &restored));
  return restored;
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The replica of a store's catalog, compared with the catalog, and the catalog rebuilt from it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/progress.h"
#include "common/result.h"
#include "engine/superblock.h"
#include "meta/kv_store.h"
#include "store/wal/wal_reader.h"

namespace weightfs {

// The fact under keys::Store that binds the catalog to its store: the store id as text.
inline constexpr const char* kStoreIdFact = "store_id";

// A store's replica as it was found when the store was opened.
struct ReplicaState {
  std::optional<wal::Root> root;  // nullopt: none, or a program that does not know replicas has written since
  uint64_t root_sequence = 0;         // of the last root, also if the replica cannot be used
  wal::Tail tail;                 // of its log
  wal::Version catalog;           // the version of the catalog

  // True when the catalog lacks batches that were on stable storage, or has others in their place.
  bool CatalogIsBehind() const {
    return root && (tail.version.sequence > catalog.sequence ||
                    (tail.version.sequence == catalog.sequence && tail.version != catalog));
  }
};

// What a replica gave back.
struct ReplicaRestore {
  wal::Version version;
  int64_t time_ns = 0;          // when its last entry was written, since the epoch
  uint64_t entries = 0;         // of the log
  uint64_t damaged_frames = 0;  // of the checkpoint: their records are missing
  uint64_t missing = 0;         // changes that the catalog is known to have had, and that are lost

  bool complete() const { return damaged_frames == 0 && missing == 0; }
};

// Reads the root and the end of the log, and the version of the catalog. Returns errors of devices and catalog.
// `superblocks` are those of the devices.
Result<ReplicaState> InspectReplica(std::span<BlockDevice* const> devices, std::span<const Superblock> superblocks,
                                    KvStore& catalog);
// One line for a catalog that is behind its replica: what it lacks, since when, and the next step.
std::string DescribeBehind(const std::string& directory, const ReplicaState& state);

// True when every record of the catalog can be read.
bool IsReadable(KvStore& catalog);

// One line: how far the catalog was restored, and what of it is missing.
std::string DescribeRestored(const ReplicaRestore& restored);

enum class ErasedRoots : uint8_t { kAll, kWithLists };
// Clears roots that an older program may have made invalid: all, if it does not know replicas, and otherwise those with
// lists.
Result<void> EraseRoots(std::span<BlockDevice* const> devices, ErasedRoots erased);

// Writes the checkpoint and the log to an empty catalog, and syncs it. The catalog gets a version that no replica has,
// so that the next mount renews the replica. `known`: the sequence that the catalog is known to have reached, if that
// is later than the end of the log.
Result<ReplicaRestore> RestoreCatalog(std::span<BlockDevice* const> devices, const wal::Root& root,
                                      KvStore& catalog, uint64_t known = 0, const ProgressFunction& progress = nullptr);
// Appends the entries that a catalog lacks, and gives it a new version likewise. kCorrupt if the log does not continue
// this catalog.
Result<ReplicaRestore> CatchUp(std::span<BlockDevice* const> devices, const ReplicaState& state, KvStore& catalog);

}  // namespace weightfs

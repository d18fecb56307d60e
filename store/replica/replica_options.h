// SPDX-License-Identifier: Apache-2.0
// What a store needs to keep its replica, and the state of the replica.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "store/replica/replica_reader.h"

namespace weightfs::replica {

// The replica of an opened store.
struct WriterOptions {
  Uuid store_id{};
  std::string description;     // the text of store.json
  uint64_t root_sequence = 0;  // of the last root on the devices, also if it cannot be used
  std::optional<Root> root;    // of a replica whose last version is `tail.version`, and whose blocks are marked as used
  Tail tail;
  Version version;  // of the catalog; if it is not tail.version, the log cannot continue
  size_t largest_root = kRootCapacity;  // the segments of a larger one are listed beside it
  std::chrono::milliseconds first_retry{5000};  // until a checkpoint that failed is tried again; doubled each time
  std::chrono::milliseconds commit_interval{5000};  // from a batch until the catalog is synced
};

struct ReplicaStatistics {
  uint64_t bytes = 0;        // of all segments
  uint64_t checkpoints = 0;  // completed since the mount
  bool current = false;      // the replica has, or will have within kFlushInterval, every durable batch
};

}  // namespace weightfs::replica

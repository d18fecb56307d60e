// SPDX-License-Identifier: Apache-2.0
// What a store needs to keep its replica, and the state of the replica.
#pragma once

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
};

struct ReplicaStatistics {
  uint64_t bytes = 0;        // of all segments
  uint64_t checkpoints = 0;  // completed since the mount
  bool current = false;      // the replica has, or will have within kFlushInterval, every durable batch
};

}  // namespace weightfs::replica

// SPDX-License-Identifier: Apache-2.0
// Finds how far a log counts after a crash.
#pragma once

#include <functional>

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/wal/wal_reader.h"

namespace weightfs::wal {

// FindTail, and compares the data of the entries behind the last mark with their checksums, because a crash may leave
// an entry without its data. The tail ends before the first entry whose blocks differ, or cannot be read: a write that
// a power cut has interrupted may leave such blocks.
//
// That is the durable state, or a later one: the data of an entry before the mark is durable, and no block of an entry
// behind it has been used again (log_writer.h).
Result<Tail> FindDurableTail(Devices devices, const Root& root, Version from);

// Calls `apply` with what an index of version `from` lacks, up to the tail, entry by entry, each with its version. kIo
// if the devices cannot read now what they have read for the tail.
Result<void> CatchUp(Devices devices, const Root& root, Version from, const Tail& tail,
                     const std::function<Result<void>(KvBatch)>& apply);

}  // namespace weightfs::wal

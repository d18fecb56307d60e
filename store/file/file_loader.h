// SPDX-License-Identifier: Apache-2.0
// Reads the catalog records of a file's data.
#pragma once

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"

namespace weightfs {

// Loads the extents of a regular file unless they are loaded. A failed write may unload them at any time, so check
// again under the mutex. Returns kIsDirectory or kInvalid for an inode that is not a regular file, kStale for a deleted
// one, or kCorrupt. Thread-safe; called without the inode's mutex.
Result<void> LoadFile(KvStore& catalog, const InodePtr& inode);

// See DataOwner::ReadRecords.
Result<DataRecords> ReadDataRecords(KvStore& catalog, const InodePtr& inode, bool restorable);

}  // namespace weightfs

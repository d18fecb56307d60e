// SPDX-License-Identifier: Apache-2.0
// What the catalog has of a file's data.
#pragma once

#include "common/result.h"
#include "meta/kv_store.h"
#include "store/file/data_owner.h"
#include "store/file/inode.h"

namespace weightfs {

// Reads the extents of a regular file unless they are loaded. A failed write may unload them at any time: look again
// under the mutex. kIsDirectory, kInvalid for what is no regular file, kStale for one that is deleted, kCorrupt.
// Thread-safe; called without the inode's mutex.
Result<void> LoadFile(KvStore& catalog, const InodePtr& inode);

// DataOwner::ReadRecords.
Result<DataRecords> ReadDataRecords(KvStore& catalog, const InodePtr& inode);

}  // namespace weightfs

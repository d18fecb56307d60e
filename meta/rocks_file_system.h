// SPDX-License-Identifier: Apache-2.0
// The files of RocksDB: their owner, and their space. Private to meta/.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/status.h>

#include <functional>
#include <memory>

#include "common/guarded_directory.h"
#include "meta/catalog_space.h"

namespace weightfs {

// True for an error of a full filesystem, or of an exhausted quota, for which RocksDB has no code. It wraps some errors
// and keeps only their text, for example those of writing its OPTIONS file (9.10).
bool IsFull(const rocksdb::Status& status);
// True if the text of a status names an error of the system.
bool Names(const rocksdb::Status& status, int error);

// Returns an environment for a database in `directory`.
//
// All files that RocksDB creates, from its own threads and at any time, belong to the owner of the directory, even if
// this process is killed.
//
// Space is allocated before a file grows, so that an append either succeeds or changes nothing. When the filesystem is
// full, appending, creating and renaming wait for `space`, which must outlive the environment.
//
// Files are created, renamed and deleted only while `may_write` is empty or returns true.
std::unique_ptr<rocksdb::Env> MakeCatalogEnv(const GuardedDirectory& directory, CatalogSpace& space,
                                             std::function<bool()> may_write);

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The files of RocksDB: their directory, their owner, and their space. Private to meta/.
#pragma once

#include <rocksdb/env.h>
#include <rocksdb/status.h>

#include <functional>
#include <memory>
#include <string>

#include "common/guarded_directory.h"
#include "common/result.h"
#include "meta/catalog_space.h"

namespace weightfs {

// True for an error of a full filesystem, or of an exhausted quota, for which RocksDB has no code. It wraps some errors
// and keeps only their text, for example those of writing its OPTIONS file (9.10).
bool IsFull(const rocksdb::Status& status);
// True if the text of a status has that of an error of the system.
bool Mentions(const rocksdb::Status& status, int error);

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

// Checks a directory before RocksDB opens it: RocksDB creates, renames and deletes files before it rejects a directory,
// and it follows symbolic links.
//
// Checks that `directory` holds a catalog or, with `create`, that it is missing or empty, and makes it. The directory
// and its entries must pass common/guarded_directory.h. Unless `read_only`, it removes the log files of RocksDB itself
// that earlier versions left. Full-line errors: kNotFound, kExists, kCorrupt (CURRENT is missing), kPermission,
// kNoSpace, kIo.
Result<GuardedDirectory> PrepareCatalogDirectory(const std::string& directory, bool create, bool read_only);

// Removes all permissions of other users from the directory and its files, which contain names and attributes. Logs a
// failure.
void TakePermissionsOfOthers(const GuardedDirectory& directory);

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Publications of a weightfs mount: directories that are complete, durable and immutable.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "client/export.h"
#include "common/error.h"

namespace weightfs::client {

inline constexpr uint64_t kMaximumPublication = 131'072;  // files and directories

struct Publication {
  uint64_t version = 0;          // below 2^63
  std::array<uint8_t, 16> id{};  // random, different for each publication
  int64_t time_ns = 0;           // of the publication, since the epoch
  uint64_t files = 0;            // regular files
  uint64_t bytes = 0;            // their sizes together
};

// Publishes a directory with everything below it, in one commit: when this returns, its files are complete and durable,
// and every change of them, of their names and of their attributes fails with EPERM. Close the files first. Without a
// version, the publication gets the time (UTC) as the number YYYYMMDDhhmmss, or a greater one if that was used. A
// directory that is published already keeps its publication, which is returned. Thread-safe. Errors, after which
// nothing has changed; each is one line that names the file at fault:
//   EOPNOTSUPP  the directory is not on a weightfs mount, or the mount is older
//   ETXTBSY     a file is open for writing
//   EBUSY       a directory in it is published already
//   EEXIST      it is published with another version
//   EMLINK      a file has another name outside the directory, and would be immutable there, too
//   E2BIG       more than 131,072 files and directories
//   EPERM       a file belongs to another user
//   EINVAL      the root directory of the mount, or a version of 2^63 or more
//   EROFS, ENOSPC, EIO, and those of open(2)
// A path leads through symbolic links, as for open(2). A program that may not trust the owners of the directories on
// the path gives the descriptor of the directory instead; `directory` is then only its name in errors.
WEIGHTFS_EXPORT Result<Publication> Publish(const std::string& directory,
                                            std::optional<uint64_t> version = std::nullopt);
WEIGHTFS_EXPORT Result<Publication> Publish(int opened, const std::string& directory,
                                            std::optional<uint64_t> version = std::nullopt);

// Reverts Publish. ENODATA: the directory was not published by itself; ETXTBSY: a program has a file of it open or
// mapped, which the kernel reads from hot memory.
WEIGHTFS_EXPORT Result<void> Unpublish(const std::string& directory);
WEIGHTFS_EXPORT Result<void> Unpublish(int opened, const std::string& directory);

// ENODATA: the directory was not published by itself; EOPNOTSUPP: as above.
WEIGHTFS_EXPORT Result<Publication> PublicationOf(const std::string& directory);
WEIGHTFS_EXPORT Result<Publication> PublicationOf(int opened, const std::string& directory);

}  // namespace weightfs::client

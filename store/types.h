// SPDX-License-Identifier: Apache-2.0
// The types that the store shares with its callers (fs/, cli/, tests): attributes, requests, views of data.
#pragma once

#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "common/result.h"
#include "common/units.h"
#include "io/buffer.h"
#include "meta/records.h"

namespace weightfs {

// The attributes that stat(2) returns.
struct Attributes : InodeAttributes {
  InodeId ino;
  uint64_t blocks_512 = 0;  // st_blocks, with the blocks that are to be written: a file without any is one hole
};

// The changes of a setattr: each member that has a value is set. `changed` becomes the current time unless given.
struct AttributeChange {
  std::optional<uint32_t> mode;  // permission bits only
  std::optional<uint32_t> uid, gid;
  std::optional<uint64_t> size;
  std::optional<Timestamp> accessed, modified, changed;
};

// A new inode. `mode` holds the type and the requested permissions. `umask` is applied unless the parent has a default
// ACL, which replaces it.
struct CreateRequest {
  uint32_t mode = 0, uid = 0, gid = 0, umask = 0;
  uint32_t device_major = 0, device_minor = 0;
  std::string_view symlink;  // the target, for S_IFLNK
};

// The credentials for permission checks that the kernel does not make. User 0 gets its rights from its capabilities
// alone.
struct Credentials {
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups = {};  // supplementary
  uint64_t capabilities = 0;          // effective; bit CAP_… of linux/capability.h
  bool Can(unsigned capability) const { return (capabilities >> capability & 1) != 0; }
  bool Has(uint32_t group) const {
    return group == gid || std::find(groups.begin(), groups.end(), group) != groups.end();
  }
};

// A new file whose content is already on the devices.
struct DirectFile {
  std::string_view name;
  uint64_t size = 0;  // bytes
};

// The permission bits of the files of a CreateMany.
struct NewFileMode {
  uint32_t mode = 0;
  uint32_t masked = 0;  // bits that the umask has removed from `mode`; a default ACL of the directory restores them
  // A file that replaces a regular file has its mode, and its owner and group as far as the caller may set them.
  bool keep_old = false;
};

struct DirectoryEntry {
  std::string name;
  InodeId ino;
  uint32_t type = 0;  // S_IFMT bits
};

enum class RenameMode : unsigned char { kReplace, kNoReplace, kExchange };

enum class AttributeWrite : unsigned char { kAny, kCreate, kReplace };  // XATTR_CREATE, XATTR_REPLACE

// Bytes of a file in memory: pieces in order, kept alive by `holds`. Valid as long as the view lives.
struct ReadView {
  std::vector<iovec> pieces;
  std::vector<Buffer> holds;
  ByteCount size;
};
using ReadDone = std::function<void(Result<ReadView>)>;
using Done = std::function<void(Result<void>)>;

enum class FallocateMode : unsigned char {
  kAllocate,          // mode 0: allocates blocks for the range; extends the file to the end of the range
  kAllocateKeepSize,  // FALLOC_FL_KEEP_SIZE
  kPunchHole,         // FALLOC_FL_PUNCH_HOLE | KEEP_SIZE
  kZeroRange,         // FALLOC_FL_ZERO_RANGE
  kZeroRangeKeepSize,
};

// The limit of a write: as given, or the current end of the file.
enum class WriteReach : unsigned char { kAnywhere, kWithinFile };

enum class SeekTarget : unsigned char { kData, kHole };

// One extent of a file, for `info`, leases and fiemap-like callers. `device` and `start` are meaningless for a hole.
struct FileExtent {
  FileBlock first;
  BlockCount count;
  DeviceId device;
  DeviceBlock start;
  uint32_t flags = 0;  // ExtentFlags
};

struct SpaceStatistics {
  BlockCount total, free, available;  // free includes blocks that await a commit; available excludes the reserve
  uint64_t inodes = 0;                // in use, approximately
  uint64_t free_inodes = 0;           // empty files for which the catalog has space, approximately
};

// The state of a sequential reader on one open handle. It lets the store recognize a stream.
struct ReadStream {
  Mutex mutex;
  uint64_t next GUARDED_BY(mutex) = 0;  // offset at which the stream would continue
  uint64_t run GUARDED_BY(mutex) = 0;   // bytes read in sequence so far
};

// Limits of the format, with the meaning that POSIX gives them.
inline constexpr size_t kMaximumName = 255;
inline constexpr size_t kMaximumSymlink = 4095;
inline constexpr size_t kMaximumAttributeName = 255;
inline constexpr size_t kMaximumAttributeValue = 65536;
// The limits of one inode: of the list of its names, each with a zero byte (XATTR_LIST_MAX of Linux: a longer list
// could be stored but not listed), and of its names and values together. Inodes of older versions may exceed the second
// one.
inline constexpr size_t kMaximumAttributeList = 65536;
inline constexpr size_t kMaximumAttributeBytes = 256 * kKiB;
inline constexpr uint32_t kMaximumLinks = 65000;
inline constexpr uint64_t kMaximumFileSize = uint64_t{1} << 60;

}  // namespace weightfs

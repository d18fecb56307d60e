// SPDX-License-Identifier: Apache-2.0
// What the store speaks of with its callers (fs/, cli/, tests): attributes, requests, views of data.
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

// What stat(2) shows of an inode.
struct Attributes {
  InodeId ino;
  uint64_t generation = 0;
  uint32_t mode = 0, uid = 0, gid = 0, links = 0;
  uint32_t device_major = 0, device_minor = 0;
  uint64_t size = 0;
  uint64_t blocks_512 = 0;  // st_blocks: allocated space, data still in memory included
  Timestamp accessed, modified, changed, created;
};

// setattr(2)-like: each member that has a value is set. `changed` becomes now unless given.
struct AttributeChange {
  std::optional<uint32_t> mode;  // permission bits only
  std::optional<uint32_t> uid, gid;
  std::optional<uint64_t> size;
  std::optional<Timestamp> accessed, modified, changed;
};

// A new inode. `mode` holds the type and the permissions asked for; `umask` is applied unless the parent has a
// default ACL (which takes its place).
struct CreateRequest {
  uint32_t mode = 0, uid = 0, gid = 0, umask = 0;
  uint32_t device_major = 0, device_minor = 0;
  std::string_view symlink;  // the target, for S_IFLNK
};

// Whose permissions count where the kernel does not look. User 0 has no right by its number: its capabilities give it.
struct Credentials {
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups = {};  // supplementary
  uint64_t capabilities = 0;          // effective; bit CAP_… of linux/capability.h
  bool Can(unsigned capability) const { return (capabilities >> capability & 1) != 0; }
  bool Has(uint32_t group) const {
    return group == gid || std::find(groups.begin(), groups.end(), group) != groups.end();
  }
};

// A new file whose content lies on the devices already.
struct DirectFile {
  std::string_view name;
  uint64_t size = 0;  // bytes
};

struct DirectoryEntry {
  std::string name;
  InodeId ino;
  uint32_t type = 0;  // S_IFMT bits
};

enum class RenameMode : unsigned char { kReplace, kNoReplace, kExchange };

enum class AttributeWrite : unsigned char { kAny, kCreate, kReplace };  // XATTR_CREATE, XATTR_REPLACE

// Bytes of a file as they lie in memory: pieces in order, kept alive by `holds`. Valid as long as the view lives.
struct ReadView {
  std::vector<iovec> pieces;
  std::vector<Buffer> holds;
  ByteCount size;
};
using ReadDone = std::function<void(Result<ReadView>)>;
using Done = std::function<void(Result<void>)>;

enum class FallocateMode : unsigned char {
  kAllocate,          // mode 0: blocks for the range, the size grows to its end
  kAllocateKeepSize,  // FALLOC_FL_KEEP_SIZE
  kPunchHole,         // FALLOC_FL_PUNCH_HOLE | KEEP_SIZE
  kZeroRange,         // FALLOC_FL_ZERO_RANGE
  kZeroRangeKeepSize,
};

// How far a write goes: as far as it says, or to the end of the file as it is.
enum class WriteReach : unsigned char { kAnywhere, kWithinFile };

enum class SeekTarget : unsigned char { kData, kHole };

// One run of a file, for `info`, leases and fiemap-like callers. `device` and `start` mean nothing for a hole.
struct FileExtent {
  FileBlock first;
  BlockCount count;
  DeviceId device;
  DeviceBlock start;
  uint32_t flags = 0;  // ExtentFlags
};

struct SpaceStatistics {
  BlockCount total, free, available;  // free counts space whose release waits for a commit; available less the reserve
  uint64_t inodes = 0;                // in use, about
};

// The sequential reader behind one open handle: lets reads of one handle be recognised as a stream.
struct ReadStream {
  Mutex mutex;
  uint64_t next GUARDED_BY(mutex) = 0;  // where the stream would go on
  uint64_t run GUARDED_BY(mutex) = 0;   // bytes read in sequence so far
};

// Limits of the format, as POSIX names them.
inline constexpr size_t kMaximumName = 255;
inline constexpr size_t kMaximumSymlink = 4095;
inline constexpr size_t kMaximumAttributeName = 255;
inline constexpr size_t kMaximumAttributeValue = 65536;
inline constexpr uint32_t kMaximumLinks = 65000;
inline constexpr uint64_t kMaximumFileSize = uint64_t{1} << 60;

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The protocol between a mount and the holders of leases. A program opens a file of the mount, requests a ticket by
// ioctl (WEIGHTFS_IOC_LEASE in ioctl.h), connects to the socket that the ticket names, and presents the ticket there.
// So open(2) decides who may read and write what. Through the socket the program receives descriptors of the devices
// and the locations of the file's bytes, and it transfers the bytes itself.
//
// Messages are datagrams of a SOCK_SEQPACKET socket in the abstract namespace, and where the mount could create it also
// at /run/weightfs/NAME (mounts of root) or $XDG_RUNTIME_DIR/weightfs/NAME, because each network namespace has an
// abstract namespace of its own: a Header, then the body. A body larger than kInlineBody travels in a memfd, which is
// the first descriptor of the message and is sealed against every change (shrink, grow, write); device descriptors
// follow it. A connection holds at most one lease and carries one request at a time; when it ends, its lease ends. A
// program may send a kRelease and read its answer later, before its next request. Numbers are in native byte order,
// without padding.
#pragma once

#include <array>
#include <cstdint>

namespace weightfs::lease {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint64_t kBlock = 4096;              // unit of locations, lengths and checksums
inline constexpr uint64_t kInlineBody = 32 << 10;     // bytes
inline constexpr uint64_t kMaximumBody = 1ULL << 30;  // bytes, in a memfd
inline constexpr uint32_t kMaximumDevices = 64;
inline constexpr uint64_t kMaximumFiles = 1 << 17;  // per kReadMany or kCommitMany
inline constexpr uint64_t kToEnd = UINT64_MAX;
inline constexpr uint64_t kNoEntry = UINT64_MAX;

// Random. Valid while the descriptor that it was requested with is open, for the process that requested it. Nobody else
// can use it: the mount compares the process with the sender of the message (SCM_CREDENTIALS).
using Token = std::array<uint8_t, 16>;

enum class Kind : uint32_t {
  kRead = 1,        // ReadRequest → ReadAnswer, Extent[], checksums; one read-only descriptor per device, and perhaps
                    // another of memory that has blocks
  kReserve = 2,     // ReserveRequest → ReserveAnswer, Extent[]; one read-write descriptor per device
  kCommit = 3,      // CommitRequest, checksums → nothing
  kRelease = 4,     // nothing → nothing; ends the connection's lease, no transfer of which is under way
  kReadMany = 5,    // ReadManyRequest, names → ReadManyAnswer, FileAnswer[], Extent[], checksums; descriptors as for
                    // kRead
  kCommitMany = 6,  // CommitManyRequest, FileEntry[], names, checksums → CommitManyAnswer
  kIdentify = 7,    // IdentifyRequest → Identity
  kReserveInPlace = 8,  // as kReserve, for the whole content of a file
  kMap = 9,             // ReadRequest → MapAnswer; begins no lease
  kMapLoaded = 10,      // as kMap
};

struct Header {
  uint32_t version = kProtocolVersion;
  uint32_t kind = 0;      // Kind; an answer repeats that of the request
  int32_t error = 0;      // in an answer: 0, or an errno; the body is then an error message
  uint32_t in_memfd = 0;  // 1: the first descriptor is the body
  uint64_t body = 0;      // bytes
};
static_assert(sizeof(Header) == 24);

// Blocks of the file that are contiguous on a device.
struct Extent {
  uint64_t file_block = 0;    // first block; for kReserve, relative to the start of the reservation
  uint64_t count = 0;         // at least 1
  uint64_t device_block = 0;  // location of the first block
  uint32_t device = 0;        // index of the device's descriptor in the message
  uint32_t verified = 0;      // 1: the blocks are in memory, and the mount has verified them, so the program need not
};
static_assert(sizeof(Extent) == 32);

// Binds the connection to the process of the ticket, which must be the sender.
struct IdentifyRequest {
  Token token{};
};
// What WEIGHTFS_IOC_LEASE_REQUEST calls the connection. With that ioctl a kRead, kReserve or kReserveInPlace needs no
// ticket before it and no message: its answer arrives here as if the request had been sent here.
//
// The ioctl accepts the number for this process alone, and nobody else learns it. So a program knows by the ioctl (of
// kind kIdentify) that the mount itself has the other end of the connection. Any process may listen at a name that the
// mount does not use in this network namespace, and answer as it likes; it then cannot know a number that the ioctl
// accepts. A program believes nothing that it receives before that.
struct Identity {
  uint64_t connection = 0;  // random, never 0
};

// Requests the current bytes, including those that others wrote and did not sync. While the lease lasts, the blocks of
// the extents keep their content, whatever happens to the file. EFBIG: the range exceeds what one answer can describe
// (512 GiB). EAGAIN: other answers use all memory available for answers, or the range is being written continuously.
struct ReadRequest {
  Token token{};        // of a descriptor open for reading
  uint64_t offset = 0;  // bytes
  uint64_t length = 0;  // bytes; kToEnd: up to the end of the file
};

// The blocks [first_block, first_block + blocks) cover the range, up to the end of the file. The extents, in file
// order, are followed by one CRC-32C (uint32_t) per block. Blocks in no extent read as zeros; their checksum is 0 and
// must not be verified.
struct ReadAnswer {
  uint64_t file_size = 0;  // bytes
  uint64_t first_block = 0;
  uint64_t blocks = 0;
  uint64_t extents = 0;  // number of extents that follow
};

// Loads bytes of the file into memory that programs share, as many as the mount likes to load at once. The answer has a
// read-only descriptor of a file with these bytes, at the same offsets (none if the range is empty); other bytes of it
// are undefined. The program keeps it while it asks for the rest of its range. The memory keeps the content of one
// moment, whatever happens to the file or the mount, for as long as a program has it open or mapped. ENOMEM: there is
// no room. EIO: damage, which a read locates. EINVAL: the mount is of an older version. Otherwise as kRead.
//
// kMapLoaded loads nothing: ENOMEM unless the memory has the whole range. `content` is then 0.
struct MapAnswer {
  uint64_t file_size = 0;  // bytes
  uint64_t content = 0;    // never 0. A request that is answered with another one is of a later content of the file
  uint64_t end = 0;        // offset in bytes of the end of what was loaded: continue there
};

// Reserves space for a write by this holder alone. ENOSPC if there is not enough; EROFS, for a directory also without
// WEIGHTFS_CHANGE_ATTRIBUTE (ioctl.h) set to the token just before; EBADF without the right to write. The descriptors
// belong to this lease alone and are closed with it. As long as any copy of them exists, or a transfer on them is under
// way, a later mount of the store is refused. If the connection ends without a commit or a release, the blocks are not
// reused until then.
//
// kReserveInPlace takes the space of the file's old content where there is too little beside it. The file is then a
// hole of its size, durably, before the answer. ENOSPC: blocks that are free and the file's own blocks, without those
// that read leases hold, are too few; nothing was changed. EINVAL: `file_offset` is not 0, or the mount is of an older
// version.
struct ReserveRequest {
  Token token{};             // of a descriptor open for writing, or of a directory (for kCommitMany)
  uint64_t file_offset = 0;  // bytes, a multiple of kBlock: the position in the file
  uint64_t blocks = 0;       // at least 1
};
struct ReserveAnswer {
  uint64_t extents = 0;  // number of extents that follow; they have `blocks` blocks in total
};

// Commits a reservation; no transfer may be under way. The first blocks of the reservation become the bytes
// [file_offset, file_offset + length), for all readers at once. The rest of the reservation is freed and the lease
// ends, even if the commit fails. Until then, and after a crash before a durable commit, the file is unchanged. Earlier
// changes through shared mappings of the file are ordered before the commit. `length` is a multiple of kBlock unless
// the file ends there; the last block is then padded with zeros. One CRC-32C per block follows. The kernel learns of a
// new size when it next asks for it: the program that commits a new size must call fstat(2), or an O_APPEND write of
// another program would go to the old end.
struct CommitRequest {
  Token token{};
  uint64_t file_offset = 0;  // bytes, a multiple of kBlock
  uint64_t length = 0;       // bytes, at least 1
  uint64_t new_size = 0;     // bytes; anything beyond it is removed. kToEnd: keep what lies beyond the range
  uint32_t durable = 0;      // 1: answer when the commit survives a power loss
  uint32_t reserved = 0;
};

// Requests several files of one directory. The NUL-terminated names follow; none contains a '/'.
struct ReadManyRequest {
  Token token{};  // of the directory
  uint64_t files = 0;
};
struct ReadManyAnswer {
  uint64_t extents = 0;    // of all files together, in file order
  uint64_t checksums = 0;  // likewise
};
struct FileAnswer {
  int32_t error = 0;  // an errno: only this file cannot be read, and all other fields are 0
  uint32_t reserved = 0;
  uint64_t file_size = 0;  // bytes
  uint64_t extents = 0;    // number of its extents
  uint64_t checksums = 0;  // number of its checksums: one per block of the file
};

// Creates a file for every entry, replacing existing files of the same names. EROFS as for a reservation. All files
// appear at once, to other programs and after a crash. The blocks of the reservation are assigned to the entries in
// order, ceil(size / kBlock) per entry; an empty entry has none. One CRC-32C per block follows the names.
struct CommitManyRequest {
  Token token{};
  uint64_t files = 0;
  uint16_t mode = 0;        // permission bits of new files
  uint16_t masked = 0;      // bits that the umask has removed from `mode`; a default ACL of the directory restores them
  uint16_t durable = 0;     // 1: answer when the commit survives a power loss
  uint16_t keep_modes = 0;  // 1: a file that replaces a regular file has its mode, and its owner and group as far as the
                            // holder may set them
};
struct FileEntry {
  uint64_t size = 0;  // bytes
};
// Size of the body of a kCommitMany, in bytes. `names` includes the NULs; `blocks` is the total of all files.
constexpr uint64_t CommitManyBody(uint64_t files, uint64_t names, uint64_t blocks) {
  return sizeof(CommitManyRequest) + files * sizeof(FileEntry) + names + blocks * sizeof(uint32_t);
}
struct CommitManyAnswer {
  uint64_t failed = 0;  // in an error: index of the entry that caused it, or kNoEntry
};                      // in an error, the message follows

}  // namespace weightfs::lease

// SPDX-License-Identifier: Apache-2.0
// What a holder of leases and a mount say to each other. A program opens a file of the mount, asks the mount by ioctl
// for a ticket (WEIGHTFS_IOC_LEASE of ioctl.h), connects to the socket that the ticket names, and shows the ticket
// there: so open(2) decides who may read and write what. Through the socket it gets descriptors of the devices and the
// places of the file's bytes, and moves the bytes itself.
//
// Messages are datagrams of a SOCK_SEQPACKET socket of the abstract namespace: a Header, then the body. A body that is
// larger than kInlineBody travels in a memfd, the first descriptor of the message, sealed against every change (shrink,
// grow, write); device descriptors come after it. A connection holds one lease at most, carries one request at a time,
// and its end is the end of its lease. All numbers are the machine's own; nothing is padded.
#pragma once

#include <array>
#include <cstdint>

namespace weightfs::lease {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr uint64_t kBlock = 4096;              // the unit of places, lengths and checksums
inline constexpr uint64_t kInlineBody = 32 << 10;     // bytes
inline constexpr uint64_t kMaximumBody = 1ULL << 30;  // bytes, of a memfd
inline constexpr uint32_t kMaximumDevices = 64;
inline constexpr uint64_t kMaximumFiles = 1 << 17;  // of one kReadMany or kCommitMany
inline constexpr uint64_t kToEnd = UINT64_MAX;
inline constexpr uint64_t kNoEntry = UINT64_MAX;

// Random; good for as long as the descriptor it was asked by is open, for the user who asked.
using Token = std::array<uint8_t, 16>;

enum class Kind : uint32_t {
  kRead = 1,        // ReadRequest → ReadAnswer, Extent[], checksums; one read-only descriptor a device
  kReserve = 2,     // ReserveRequest → ReserveAnswer, Extent[]; one descriptor a device, for reading and writing
  kCommit = 3,      // CommitRequest, checksums → nothing
  kRelease = 4,     // nothing → nothing; the lease of the connection has ended, and no transfer of it is under way
  kReadMany = 5,    // ReadManyRequest, names → ReadManyAnswer, FileAnswer[], Extent[], checksums; as kRead
  kCommitMany = 6,  // CommitManyRequest, FileEntry[], names, checksums → CommitManyAnswer
};

struct Header {
  uint32_t version = kProtocolVersion;
  uint32_t kind = 0;      // Kind; an answer repeats that of its request
  int32_t error = 0;      // of an answer: an errno, and then the body is a text that says what and why; otherwise 0
  uint32_t in_memfd = 0;  // 1: the body is in the first descriptor
  uint64_t body = 0;      // bytes
};
static_assert(sizeof(Header) == 24);

// Blocks of the file that lie together on a device.
struct Extent {
  uint64_t file_block = 0;    // the first; in kReserve counted from the start of the reservation
  uint64_t count = 0;         // at least 1
  uint64_t device_block = 0;  // where the first lies
  uint32_t device = 0;        // index of its descriptor in the message
  uint32_t reserved = 0;
};
static_assert(sizeof(Extent) == 32);

// The bytes as they are now, what others wrote and did not sync included. While the lease lasts, the blocks of the
// extents keep what they hold, whatever happens to the file. EFBIG: the range is more than an answer takes (512 GiB).
// EAGAIN: other answers take the memory that there is for them, or somebody writes the range all the time.
struct ReadRequest {
  Token token{};        // of a descriptor open for reading
  uint64_t offset = 0;  // bytes
  uint64_t length = 0;  // bytes; kToEnd: all from the offset on
};

// The blocks [first_block, first_block + blocks) cover the range, as far as the file reaches. One CRC-32C (uint32_t)
// for each follows the extents; those of blocks in no extent, which read as zeros, are 0 and are not to be checked.
// Extents are in the order of the file.
struct ReadAnswer {
  uint64_t file_size = 0;  // bytes
  uint64_t first_block = 0;
  uint64_t blocks = 0;
  uint64_t extents = 0;  // how many follow
};

// Space for a write, the holder's alone. ENOSPC when there is not so much; EROFS; EBADF without the right to write. The
// descriptors are this lease's alone and are closed with it: as long as anybody has a copy of them, or a transfer of
// them is under way, a later mount of the store is refused, and where the connection ends without a commit or a
// release, the blocks are given to nobody.
struct ReserveRequest {
  Token token{};             // of a descriptor open for writing, or of a directory (for kCommitMany)
  uint64_t file_offset = 0;  // bytes, a multiple of kBlock: where it will be in the file
  uint64_t blocks = 0;       // at least 1
};
struct ReserveAnswer {
  uint64_t extents = 0;  // how many follow; together `blocks`
};

// Nothing is written any more. The first blocks of the reservation become the bytes [file_offset, file_offset +
// length), at once for everybody; the rest of the reservation is free again, and the lease has ended, also when it
// fails. Until then, and after a crash before a durable commit, the file is as it was. What shared mappings of the file
// had changed before comes before it. `length` is a multiple of kBlock unless the file ends with it; behind its last
// byte the block is filled with zeros. One CRC-32C for each block follows. The kernel learns of a new size when
// somebody next asks for it: whoever commits one calls fstat(2), or an O_APPEND write of others goes to the old end.
struct CommitRequest {
  Token token{};
  uint64_t file_offset = 0;  // bytes, a multiple of kBlock
  uint64_t length = 0;       // bytes, at least 1
  uint64_t new_size = 0;     // bytes; what the file had behind it goes. kToEnd: the file keeps what reaches further
  uint32_t durable = 0;      // 1: the answer comes when it will survive a loss of power
  uint32_t reserved = 0;
};

// Several files of one directory. Names follow as bytes, each ended by a NUL; none holds a '/'.
struct ReadManyRequest {
  Token token{};  // of the directory
  uint64_t files = 0;
};
struct ReadManyAnswer {
  uint64_t extents = 0;    // of all files together, file by file
  uint64_t checksums = 0;  // likewise
};
struct FileAnswer {
  int32_t error = 0;  // an errno: this file alone cannot be read; the rest is 0
  uint32_t reserved = 0;
  uint64_t file_size = 0;  // bytes
  uint64_t extents = 0;    // how many are its
  uint64_t checksums = 0;  // likewise: one for each block of the file
};

// Every entry becomes a file of that name, in the place of one that has it, all of them at once, for everybody and
// after a crash. The blocks of the reservation belong to the entries in their order, each its ceil(size / kBlock); an
// entry of no bytes has none. One CRC-32C for each block follows the names.
struct CommitManyRequest {
  Token token{};
  uint64_t files = 0;
  uint32_t mode = 0;  // permission bits of new files
  uint32_t durable = 0;
};
struct FileEntry {
  uint64_t size = 0;  // bytes
};
// The bytes of a kCommitMany's body; `names` with their NULs, `blocks` of all files together.
constexpr uint64_t CommitManyBody(uint64_t files, uint64_t names, uint64_t blocks) {
  return sizeof(CommitManyRequest) + files * sizeof(FileEntry) + names + blocks * sizeof(uint32_t);
}
struct CommitManyAnswer {
  uint64_t failed = 0;  // with an error: the index of the entry that caused it; kNoEntry: none of them did
};                      // with an error the text follows it

}  // namespace weightfs::lease

// SPDX-License-Identifier: Apache-2.0
// A file as HDF5's driver has it open, without HDF5: reads and writes of every size at any offset.
//
// Large requests go straight between the caller's memory and the file, by a handle (a lease on a weightfs mount,
// libaio and O_DIRECT elsewhere). Small writes are buffered, and those that follow each other become large ones; small
// reads are cached, and sequential ones are read ahead. What was written is seen by every later read of this File.
//
// With one writer and readers beside it (SWMR) both sides need the file itself to be right at any time, and in the
// order of the writes: then nothing is buffered, and a reader caches nothing.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "client/handle.h"
#include "common/unique_fd.h"
#include "hdf5/memory_pool.h"
#include "hdf5/read_cache.h"
#include "hdf5/settings.h"
#include "hdf5/write_buffer.h"

namespace weightfs::hdf5 {

// Metadata stays in memory until a flush as far as it has room there; raw is the data of datasets.
enum class Content : unsigned char { kMetadata, kRaw };

// Externally synchronized, as HDF5 calls its drivers. All errors carry a full line that names the file. A write may
// report the error of an earlier one; what could not be written stays buffered and is tried again by the next flush.
class File {
 public:
  struct OpenOptions {
    bool write = false;
    bool create = false;
    bool exclusive = false;  // with create: EEXIST when there is one
    bool truncate = false;
    bool shared_reader = false;  // somebody writes it meanwhile (SWMR)
  };
  static Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options,
                                            const Settings& settings);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Bytes behind the end are zeros. `out` may be memory of a GPU.
  Result<void> Read(Content content, uint64_t offset, std::span<std::byte> out);
  Result<void> Write(Content content, uint64_t offset, std::span<const std::byte> bytes);

  // Several requests in any order, as one call each. Those that overlap are carried out in the order given.
  struct ReadRequest {
    Content content = Content::kRaw;
    uint64_t offset = 0;
    std::span<std::byte> memory;
  };
  struct WriteRequest {
    Content content = Content::kRaw;
    uint64_t offset = 0;
    std::span<const std::byte> memory;
  };
  Result<void> ReadMany(std::span<const ReadRequest> requests);
  Result<void> WriteMany(std::span<const WriteRequest> requests);

  // Hands all to the filesystem: other programs see it from then on. With `durable` it survives a loss of power too.
  Result<void> Flush(bool durable);
  // Makes the file this long.
  Result<void> Truncate(uint64_t size);
  // flock(2), without waiting. EAGAIN: another program has it.
  Result<void> Lock(bool exclusive);
  // Flushes, so that those who take the lock next see everything.
  Result<void> Unlock();
  // Flushes and closes. The File is closed afterwards also when that failed.
  Result<void> Close();

  uint64_t size() const { return size_; }  // bytes, of buffered writes too
  int descriptor() const { return descriptor_.get(); }
  bool IsSame(const File& other) const { return device_ == other.device_ && inode_ == other.inode_; }
  // Any order of files; the same file is before none.
  bool IsBefore(const File& other) const { return std::pair(device_, inode_) < std::pair(other.device_, other.inode_); }
  const std::string& path() const { return path_; }
  const Settings& settings() const { return settings_; }

 private:
  File(std::string path, const OpenOptions& options, const Settings& settings);

  Error Failed(const char* action, uint64_t offset, uint64_t size, int error_number) const;
  // Handles know a descriptor; the error gets the file's name.
  Error Named(Error error) const;
  Result<void> Named(Result<void> result) const;
  Result<void> CheckRange(const char* action, uint64_t offset, uint64_t size) const;
  int FastDescriptor();

  // --- reads (file_read.cc)
  struct Stream {
    uint64_t next = UINT64_MAX;  // where a request is sequential
    uint64_t ahead = 0;          // behind the last byte that was read ahead
    uint64_t window = 0;         // bytes of the next window of read-ahead; 0 while nothing is sequential
  };
  Result<void> ReadThrough(uint64_t offset, std::span<std::byte> out);
  Result<void> ReadLarge(uint64_t offset, std::span<std::byte> out);
  Result<void> ReadCached(Content content, uint64_t offset, std::span<std::byte> out, bool sequential);
  Result<void> ReadExactly(uint64_t offset, std::span<std::byte> out);
  Result<void> ReadDevice(uint64_t offset, std::span<std::byte> out);
  Result<bool> Load(uint64_t begin, uint64_t end, uint64_t offset);
  bool Await(ReadCache::Extents::iterator extent);
  void ReadAhead();
  Result<void> PositionalRead(uint64_t offset, std::span<std::byte> out);
  bool IsInPageCache(uint64_t offset, uint64_t size) const;

  // --- writes (file_write.cc)
  Result<void> WriteLarge(uint64_t offset, const client::MemoryView& memory);
  Result<void> WriteBuffered(Content content, uint64_t offset, std::span<const std::byte> bytes);
  Result<void> PositionalWrite(uint64_t offset, std::span<const std::byte> bytes);
  Result<void> Replace(uint64_t begin, uint64_t end);
  void NoteWritten(uint64_t end);
  void UpdateCache(uint64_t offset, std::span<const std::byte> bytes);
  Result<void> AwaitWrites(uint64_t begin, uint64_t end);
  Result<void> SendFull();
  Result<void> MakeRoom();
  Result<void> WriteOut(bool raw_only);
  using Run = std::span<WriteBuffer::Segments::iterator>;
  Result<void> WriteRun(Run run);
  Result<void> WriteRunByCalls(Run run);
  Result<void> MakeDurable();

  const std::string path_;
  const OpenOptions options_;
  const Settings settings_;
  UniqueFd descriptor_;
  UniqueFd direct_descriptor_;  // of O_DIRECT; none before it is needed, and where the filesystem has none
  bool tried_direct_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t size_ = 0;           // with what is buffered
  uint64_t file_size_ = 0;      // of the file itself
  bool write_through_ = false;  // others read while this program writes
  bool name_is_new_ = false;    // its directory was not synced since it was created
  bool unsynced_ = false;
  Stream reads_;
  uint64_t next_write_ = UINT64_MAX;  // where a write is sequential
  MemoryPool pool_;
  WriteBuffer writes_;
  ReadCache cache_;
};

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// An open file of HDF5's driver, independent of HDF5: reads and writes of any size at any offset.
//
// A handle transfers large requests directly between the caller's memory and the file (by a lease on a weightfs mount,
// by libaio and O_DIRECT elsewhere). Small writes are buffered, and contiguous ones are merged. Small reads of metadata
// are cached, and sequential reads of data are read ahead. A read sees all earlier writes of this File.
//
// With one writer and concurrent readers (SWMR), the file itself must be consistent at any time, so the writes must
// reach it in order. The writer then buffers nothing, and a reader caches nothing.
//
// A file belongs to the process that opened it. A forked child can read it. What HDF5 flushes in the child, at the latest
// at exit, is the parent's: there, all writes succeed without effect, because HDF5 would crash at exit after an error.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "client/handle.h"
#include "common/unique_fd.h"
#include "hdf5/memory_pool.h"
#include "hdf5/read_cache.h"
#include "hdf5/settings.h"
#include "hdf5/write_buffer.h"

namespace weightfs::hdf5 {

// Metadata stays in memory until a flush or until the buffer is full. kRaw is the data of datasets.
enum class Content : unsigned char { kMetadata, kRaw };

// Externally synchronized: HDF5 serializes its calls. Errors are full lines; those of I/O name the file. A write may
// report the error of an earlier buffered write, whose bytes stay buffered; the next flush retries it.
class File {
 public:
  struct OpenOptions {
    bool write = false;
    bool create = false;
    bool exclusive = false;  // with create: EEXIST if the file exists
    bool truncate = false;
    bool shared_reader = false;  // another program writes the file (SWMR)
  };
  static Result<std::unique_ptr<File>> Open(const std::string& path, const OpenOptions& options,
                                            const Settings& settings);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Bytes beyond the end of the file are zeros. `out` may be GPU memory. A read beyond the end into GPU memory extends
  // a writable file; otherwise it fails.
  Result<void> Read(Content content, uint64_t offset, std::span<std::byte> out);
  Result<void> Write(Content content, uint64_t offset, std::span<const std::byte> bytes);

  // Several requests per call, in any order. Overlapping requests take effect in the order given.
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

  // Writes all buffered bytes to the file, where other programs see them. `durable`: they also survive a power loss,
  // with two exceptions. HDF5 flushes the superblock when it opens a file for writing, so a change of that alone is
  // synced only by a durable Close. And a new file cannot be read before HDF5 has flushed it as a whole, which begins
  // with Truncate; until then it is not synced, because it would replace an old file.
  Result<void> Flush(bool durable);
  // Sets the size of the file. HDF5 does so in each flush of a whole file, but not in one of a dataset.
  Result<void> Truncate(uint64_t size);
  // flock(2) without waiting. EAGAIN: another program has the lock.
  Result<void> Lock(bool exclusive);
  // Flushes first, so that the next holder of the lock sees all writes.
  Result<void> Unlock();
  // Flushes and closes. The File is closed even if this fails.
  Result<void> Close();

  uint64_t size() const { return size_; }  // bytes, including buffered writes
  int descriptor() const { return descriptor_.get(); }
  bool IsSame(const File& other) const { return device_ == other.device_ && inode_ == other.inode_; }
  // A strict order of files.
  bool IsBefore(const File& other) const { return std::pair(device_, inode_) < std::pair(other.device_, other.inode_); }
  const std::string& path() const { return path_; }
  const Settings& settings() const { return settings_; }

 private:
  File(std::string path, const OpenOptions& options, const Settings& settings);

  bool IsForked() const { return process_ != getpid(); }
  Error Failed(const char* action, uint64_t offset, uint64_t size, int error_number) const;
  // Adds the path to an error of a handle, which knows only the descriptor, or of a buffer.
  Error WithPath(Error error) const;
  template <typename T>
  Result<T> WithPath(Result<T> result) const {
    if (result.has_value()) return result;
    return WithPath(std::move(result).error());
  }
  Result<void> CheckRange(const char* action, uint64_t offset, uint64_t size) const;
  template <typename Request>
  Result<void> CheckRanges(const char* action, std::span<const Request> requests) const;
  Result<std::shared_ptr<client::Handle>> GetHandle() const;
  int TransferDescriptor();

  // --- reads (file_read.cc)
  Result<void> ReadCached(Content content, uint64_t offset, std::span<std::byte> out, bool sequential);
  Result<void> ReadExactly(uint64_t offset, std::span<std::byte> out);
  Result<void> ReadDevice(uint64_t offset, std::span<std::byte> out);
  Result<void> ReadByHandle(uint64_t offset, std::span<std::byte> out);
  Result<bool> Load(uint64_t begin, uint64_t end, uint64_t offset);
  Result<void> PositionalRead(uint64_t offset, std::span<std::byte> out);
  bool IsInPageCache(uint64_t offset, uint64_t size) const;

  // --- writes (file_write.cc)
  static bool StartsSwmr(Content content, std::span<const std::byte> bytes);
  Result<void> NoteChange(Content content, std::span<const std::byte> bytes);
  Result<void> WriteLarge(uint64_t offset, const client::MemoryView& memory);
  Result<void> WriteBuffered(Content content, uint64_t offset, std::span<const std::byte> bytes);
  Result<void> PositionalWrite(uint64_t offset, std::span<const std::byte> bytes);
  Result<void> DiscardBuffered(uint64_t begin, uint64_t end);
  Result<void> NoteWrite(Result<void> written, uint64_t end);
  Result<void> AwaitWrites(uint64_t begin, uint64_t end);
  Result<void> StartWriteBack();
  Result<void> LimitBufferedBytes();
  Result<void> WriteOut(bool raw_only);
  using Run = std::span<WriteBuffer::Segments::iterator>;
  Result<void> WriteRun(Run run);
  Result<void> WriteRunByHandle(Run run);
  Result<void> WriteRunByCalls(Run run);
  Result<void> MakeDurable();

  const std::string path_;
  const OpenOptions options_;
  const Settings settings_;
  const pid_t process_ = getpid();
  UniqueFd descriptor_;
  UniqueFd direct_descriptor_;  // O_DIRECT; unset until needed, and on filesystems without O_DIRECT
  bool tried_direct_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  uint64_t size_ = 0;           // including buffered writes
  uint64_t file_size_ = 0;      // of the file itself
  bool write_through_ = false;  // SWMR: other programs read meanwhile
  bool name_is_new_ = false;    // the directory was not synced since the file was created
  bool incomplete_ = false;     // a new file that HDF5 has not flushed as a whole yet
  bool unsynced_ = false;       // something but the superblock has changed since the last sync
  bool superblock_unsynced_ = false;  // the superblock has changed since then
  uint64_t next_read_ = UINT64_MAX;   // offset of a sequential raw read
  uint64_t next_write_ = UINT64_MAX;  // and of a write
  MemoryPool& pool_ = MemoryPool::Shared();
  // No cached extent lacks the bytes of a segment, so a segment may be written and removed at any time.
  WriteBuffer writes_;
  ReadCache cache_;
};

}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// What programs do with one file, in the way that they do it: open, calls, (fsync,) close. Each of these is timed from
// outside.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace weightfs::bench {

// The bytes that a file holds: `data` over and over.
struct Content {
  const std::byte* data = nullptr;
  uint64_t period = 0;  // bytes at `data`; a multiple of every call's size, or larger than the file
  const std::byte* At(uint64_t offset) const { return data + offset % period; }
};

struct FileJob {
  std::string path;
  uint64_t size = 0;
  uint64_t call = 0;  // bytes of each call
  Content content;
  std::byte* into = nullptr;                      // of a read: `call` bytes
  const std::vector<uint64_t>* places = nullptr;  // by libaio on a device: where each MiB of the file lies
  bool check = false;                             // of a read: whether to compare, which must not be timed
  bool over_existing = false;                     // of a write: keep the file's blocks
  const std::atomic<bool>* cancel = nullptr;
};

// read(2) from the first byte to the last. kCorrupt where the bytes are not the content's.
Result<void> ReadFile(const FileJob& job);

// A new file, or an old one cut off (unless `over_existing`): write(2), fsync, close.
Result<void> WriteFile(const FileJob& job);

// mmap, and a look at every word in order.
Result<void> MapFile(const FileJob& job);

// libaio with O_DIRECT where the filesystem has it: the whole file in order, `depth` requests of `call` bytes in
// flight. A read goes into `into`, which has `depth` times `call` bytes. A write goes over an existing file, and fsyncs
// it.
Result<void> ReadByAio(const FileJob& job, unsigned depth);
Result<void> WriteByAio(const FileJob& job, unsigned depth);

struct RandomJob {
  FileJob file;  // `into` has `depth` times `call` bytes
  unsigned depth = 1;
  double seconds = 1;  // how long
  uint64_t seed = 0;
  bool buffered = false;  // pread through the page cache instead of libaio and O_DIRECT
};

// Aligned reads at random places. Returns how many were done.
Result<uint64_t> ReadRandomly(const RandomJob& job);

// The file with all of its blocks written, so that what is measured on it is the disk and not the filesystem's
// allocation: reserved, and written once without the page cache.
Result<void> PrepareRawFile(const FileJob& job);

// A directory of many small files.
struct SmallFiles {
  std::string directory;  // made by Create, removed by Remove
  unsigned count = 0;
  Content content;
  uint64_t size = 0;  // of each
  const std::atomic<bool>* cancel = nullptr;
  bool durable = false;  // an fsync for each
};

// Each has other bytes than its neighbour: a mix-up would show.
std::string NameOf(unsigned index);
const std::byte* BytesOf(const SmallFiles& files, unsigned index);

Result<void> CreateAll(const SmallFiles& files);  // create, write, close
Result<void> StatAll(const SmallFiles& files);    // and compares the sizes
Result<void> ListAll(const SmallFiles& files);    // readdir, and compares the number
Result<void> ReadAll(const SmallFiles& files);    // and compares the bytes
Result<void> RemoveAll(const SmallFiles& files);  // the files; the directory stays

}  // namespace weightfs::bench

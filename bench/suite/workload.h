// SPDX-License-Identifier: Apache-2.0
// What programs do with files: each function opens, works and closes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"

namespace weightfs::bench {

// The bytes of a file: `data` over and over.
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
  std::byte* into = nullptr;             // destination of reads: `call` bytes, and so much for each request in flight
  std::vector<uint64_t> device_offsets;  // where `path` is a device: where each MiB of the file lies
  bool check = false;                    // compare what is read; never while it is timed
  bool over_existing = false;            // of a write: keep the file's blocks
  unsigned depth = 1;                    // requests in flight, of libaio
  double seconds = 1;                    // of random reads
  uint64_t seed = 0;
  bool buffered = false;  // random reads by pread through the page cache
};

// What a program does with a file. Returns the amount done: bytes, reads or files. kCorrupt where the bytes are not the
// content's.
using Amount = Result<uint64_t>;
Amount ReadFile(const FileJob& job);      // read(2) from the first byte to the last
Amount WriteFile(const FileJob& job);     // write(2), fsync, close; the file is new or truncated, or `over_existing`
Amount MapFile(const FileJob& job);       // mmap, and an access to every word in order
Amount ReadByAio(const FileJob& job);     // libaio, with O_DIRECT where the filesystem has it: the file in order
Amount WriteByAio(const FileJob& job);    // the same over an existing file, and fsync
Amount ReadRandomly(const FileJob& job);  // aligned reads at random offsets, by libaio with O_DIRECT or `buffered`

// Allocates and writes all blocks of a file, so that later writes measure the disk and not the filesystem's allocation.
Amount PrepareRawFile(const FileJob& job);

// Many small files in one directory; each has other bytes than its neighbour.
struct SmallFiles {
  std::string directory;  // made by CreateAll, and never removed
  unsigned count = 0;
  Content content;
  uint64_t size = 0;     // of each
  bool durable = false;  // fsync each
  bool check = false;    // compare what is read; never while it is timed

  static std::string Name(unsigned index);
  std::string Path(unsigned index) const { return directory + "/" + Name(index); }
  const std::byte* Bytes(unsigned index) const { return content.At(index % (content.period / size) * size); }
};
Amount CreateAll(const SmallFiles& files);
Amount StatAll(const SmallFiles& files);  // checks the sizes
Amount ListAll(const SmallFiles& files);  // readdir; checks the number
Amount ReadAll(const SmallFiles& files);
Amount RemoveAll(const SmallFiles& files);

}  // namespace weightfs::bench

// SPDX-License-Identifier: Apache-2.0
// File operations of typical programs. Each function opens, works and closes. Nothing here uses the engine: the reference
// shares no code with the code that it is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "common/units.h"

namespace weightfs::bench {

Result<UniqueFd> OpenFile(const std::string& path, int flags);  // with O_CLOEXEC and mode 0644
Result<void> Sync(const UniqueFd& file, std::string_view path);

// Memory that begins on a huge page. All its pages have been touched, because in a virtual machine the first touch
// takes four times as long as later ones and must not be timed.
struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, Free>;
enum class PageSize : unsigned char { kHuge, kSmall };  // kSmall: 4 KiB pages only
Result<Memory> AllocateTouched(uint64_t size, PageSize pages = PageSize::kHuge);

double Now();            // CLOCK_MONOTONIC, seconds
double OwnCpuSeconds();  // user and system time of this process

// The bytes of a file: `data`, repeated.
struct Content {
  const std::byte* data = nullptr;
  uint64_t period = 0;  // bytes at `data`; a multiple of every call's size, or larger than the file
  const std::byte* At(uint64_t offset) const { return data + offset % period; }
};

struct FileJob {
  std::string path;
  uint64_t size = 0;
  uint64_t call = 0;  // bytes per call
  Content content;
  std::byte* into = nullptr;             // destination of reads: `call` bytes per request in flight
  std::vector<uint64_t> device_offsets;  // if `path` is a device: the location of each MiB of the file
  bool check = false;                    // verify the data read; never set while timed
  bool over_existing = false;            // write: keep the file's blocks
  bool sync = true;                      // write: fsync before the close; random writes: after each write
  unsigned depth = 1;                    // libaio requests in flight
  double seconds = 1;                    // duration of random reads and writes
  uint64_t seed = 0;
  bool buffered = false;  // random reads by pread through the page cache
};

// The amount of work done: bytes, reads, writes or files. kCorrupt if the bytes differ from the content.
using Amount = Result<uint64_t>;
Amount ReadFile(const FileJob& job);      // read(2) from the first byte to the last
Amount WriteFile(const FileJob& job);     // write(2), `sync`, close; the file is new or truncated, or `over_existing`
Amount MapFile(const FileJob& job);       // mmap, and access every word in order
Amount ReadByAio(const FileJob& job);     // read the file in order by libaio, with O_DIRECT if the filesystem supports
                                          // it
Amount WriteByAio(const FileJob& job);    // like ReadByAio, but overwrites an existing file; then fsync
Amount ReadRandomly(const FileJob& job);  // aligned reads at random offsets, by libaio with O_DIRECT, or `buffered`
Amount WriteRandomly(const FileJob& job);  // pwrite(2) at aligned random offsets of an existing file of `content`

// Allocates and writes all blocks of a file, so that later writes measure the disk rather than the filesystem's
// allocation.
Amount PrepareRawFile(const FileJob& job);

// Many small files in one directory. Each has different content from its neighbors.
struct SmallFiles {
  std::string directory;  // created by CreateAll, and never removed
  unsigned count = 0;
  Content content;
  uint64_t size = 0;     // of each
  bool durable = false;  // fsync each file
  bool check = false;    // verify the data read; never set while timed

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

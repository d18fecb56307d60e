// SPDX-License-Identifier: Apache-2.0
// File operations of typical programs. Each function opens, works and closes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "common/unique_fd.h"

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
  std::byte* into = nullptr;  // destination of reads: `call` bytes
  bool check = false;         // verify the data read; never set while timed
  bool sync = true;           // write: fsync before the close
};

// The amount of work done: bytes or files. kCorrupt if the bytes differ from the content.
using Amount = Result<uint64_t>;
Amount ReadFile(const FileJob& job);   // read(2) from the first byte to the last
Amount WriteFile(const FileJob& job);  // write(2) of a new or truncated file, `sync`, close
Amount MapFile(const FileJob& job);    // mmap, and access every word in order

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

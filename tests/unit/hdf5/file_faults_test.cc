// SPDX-License-Identifier: Apache-2.0
// Files whose transfers fail, or end at a chosen time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/files.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kStep = 128 << 10;
// Segments of 1 MiB, and read-ahead windows of up to 1 MiB.
constexpr Settings kSettings{.direct_size = kMiB, .cache = 8 * kMiB, .read_ahead = kMiB};

class FileFaultsTest : public KernelHooksTest {
 protected:
  // Opens a file with this content, of which no page is in the page cache.
  std::unique_ptr<File> OpenWith(const Bytes& bytes, const Settings& settings = kSettings) {
    client::WriteFile(path_, bytes);
    const int descriptor = open(path_.c_str(), O_RDONLY);
    EXPECT_EQ(fdatasync(descriptor), 0);
    EXPECT_EQ(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(descriptor);
    auto file = File::Open(path_, {.write = true}, settings);
    EXPECT_TRUE(file.has_value()) << file.error().what;
    // Otherwise the kernel may read ahead first.
    EXPECT_EQ(posix_fadvise((*file)->descriptor(), 0, 0, POSIX_FADV_RANDOM), 0);
    return *std::move(file);
  }
  // Reads sequentially until read-ahead is in the cache from kReadAheadBegin to kReadAheadEnd, and waits for it.
  // Returns false if the kernel has the file in its page cache.
  static constexpr size_t kReadAheadBegin = 5 * kStep;
  static constexpr size_t kReadAheadEnd = kReadAheadBegin + kMiB;
  static bool ReadUntilReadAhead(File& file) {
    std::atomic<bool> submitted{false};
    OnSubmit([&](Controls controls) {
      submitted = true;
      return static_cast<long>(controls.size());
    });
    for (size_t at = 0; at < kReadAheadBegin; at += kStep) Read(file, at, kStep);
    (*Engine::Shared().Get(file.settings()))->Wait();
    OnSubmit(nullptr);
    return submitted;
  }
  static void Write(File& file, uint64_t offset, std::span<const std::byte> bytes, Content content = Content::kRaw) {
    const auto written = file.Write(content, offset, bytes);
    EXPECT_TRUE(written.has_value()) << written.error().what;
  }
  static Bytes Read(File& file, uint64_t offset, size_t size) {
    Bytes out(size, std::byte{0xEE});
    const auto read = file.Read(Content::kRaw, offset, out);
    EXPECT_TRUE(read.has_value()) << read.error().what;
    return out;
  }
  static Bytes Part(const Bytes& bytes, size_t begin, size_t end) { return {&bytes[begin], &bytes[end - 1] + 1}; }

  client::Folder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(FileFaultsTest, ReadAheadStopsBeforeADirtySegmentThatAFlushRemoves) {
  Bytes bytes = RandomBytes(4 * kMiB);
  auto file = OpenWith(bytes);
  const Bytes change = RandomBytes(1000, 2);
  Write(*file, kMiB + 77, change, Content::kMetadata);
  if (!ReadUntilReadAhead(*file)) GTEST_SKIP() << "no read-ahead: the folder's pages cannot be dropped";
  ASSERT_TRUE(file->Flush(false).has_value());
  bytes = client::AfterWrite(std::move(bytes), kMiB + 77, change);
  for (size_t at = kReadAheadBegin; at < bytes.size(); at += kStep) {
    ASSERT_EQ(Read(*file, at, kStep), Part(bytes, at, at + kStep)) << at;
  }
}

TEST_F(FileFaultsTest, ReadAheadStopsBeforeADirtySegmentThatAWriteBackRemoves) {
  Bytes bytes = RandomBytes(4 * kMiB);
  auto file = OpenWith(bytes);
  const Bytes change = RandomBytes(kMiB, 2);
  const auto write = [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += kStep) {
      Write(*file, at, std::span(change).subspan(at - kMiB, std::min(kStep, end - at)));
    }
  };
  write(kMiB, kReadAheadEnd);
  if (!ReadUntilReadAhead(*file)) GTEST_SKIP() << "no read-ahead: the folder's pages cannot be dropped";
  // The segment is full, and then a write into it waits for its write-back.
  write(kReadAheadEnd, 2 * kMiB);
  Write(*file, 2 * kMiB - 10, std::span(change).last(10));
  bytes = client::AfterWrite(std::move(bytes), kMiB, change);
  for (size_t at = kReadAheadBegin; at < bytes.size(); at += kStep) {
    ASSERT_EQ(Read(*file, at, kStep), Part(bytes, at, at + kStep)) << at;
  }
}

}  // namespace
}  // namespace weightfs::hdf5

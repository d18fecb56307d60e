// SPDX-License-Identifier: Apache-2.0
// Files whose transfers fail, or end at a chosen time.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "tests/support/kernel_hooks.h"
#include "tests/unit/client/files.h"
#include "tests/unit/hdf5/sync_count.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;
using testing::HasSubstr;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kStep = 64 << 10;  // short enough for windows
// Segments of 1 MiB, and read-ahead windows of up to 1 MiB.
constexpr Settings kSettings{.direct_size = kMiB, .cache = 8 * kMiB, .read_ahead = kMiB};

// Restores a resource limit at the end.
class ScopedLimit {
 public:
  ScopedLimit(__rlimit_resource resource, rlim_t value) : resource_(resource) {
    getrlimit(resource_, &old_);
    const rlimit lower{.rlim_cur = value, .rlim_max = old_.rlim_max};
    setrlimit(resource_, &lower);
  }
  ~ScopedLimit() { setrlimit(resource_, &old_); }
  ScopedLimit(const ScopedLimit&) = delete;
  ScopedLimit& operator=(const ScopedLimit&) = delete;

 private:
  const __rlimit_resource resource_;
  rlimit old_{};
};

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
  // Reads sequentially up to kReadAheadBegin. Windows behind it are then in the cache.
  static constexpr size_t kReadAheadBegin = 10 * kStep;
  static constexpr size_t kReadAheadEnd = kReadAheadBegin + kMiB;
  static void ReadSequentially(File& file) {
    for (size_t at = 0; at < kReadAheadBegin; at += kStep) Read(file, at, kStep);
  }
  // Transfers of bytes at or after the offset are reported as failed.
  static void FailFrom(int64_t offset) {
    OnEvent([offset](KernelEvent& event) {
      if (event.control->offset >= offset) event.result = -EIO;
    });
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
  uint64_t SizeOnDisk() const {
    struct stat status {};
    EXPECT_EQ(stat(path_.c_str(), &status), 0);
    return static_cast<uint64_t>(status.st_size);
  }
  static Bytes Part(const Bytes& bytes, size_t begin, size_t end) { return {&bytes[begin], &bytes[end - 1] + 1}; }

  client::Folder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(FileFaultsTest, WindowsHaveTheBytesOfASegmentThatAFlushRemoves) {
  Bytes bytes = RandomBytes(4 * kMiB);
  auto file = OpenWith(bytes);
  const Bytes change = RandomBytes(1000, 2);
  Write(*file, kMiB + 77, change, Content::kMetadata);
  ReadSequentially(*file);
  ASSERT_TRUE(file->Flush(false).has_value());
  bytes = client::AfterWrite(std::move(bytes), kMiB + 77, change);
  for (size_t at = kReadAheadBegin; at < bytes.size(); at += kStep) {
    ASSERT_EQ(Read(*file, at, kStep), Part(bytes, at, at + kStep)) << at;
  }
}

TEST_F(FileFaultsTest, WindowsHaveTheBytesOfASegmentThatAWriteBackRemoves) {
  Bytes bytes = RandomBytes(4 * kMiB);
  auto file = OpenWith(bytes);
  const Bytes change = RandomBytes(kMiB, 2);
  const auto write = [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += kStep) {
      Write(*file, at, std::span(change).subspan(at - kMiB, std::min(kStep, end - at)));
    }
  };
  write(kMiB, kReadAheadEnd);
  ReadSequentially(*file);
  // The segment is full, and then a write into it waits for its write-back.
  write(kReadAheadEnd, 2 * kMiB);
  Write(*file, 2 * kMiB - 10, std::span(change).last(10));
  bytes = client::AfterWrite(std::move(bytes), kMiB, change);
  for (size_t at = kReadAheadBegin; at < bytes.size(); at += kStep) {
    ASSERT_EQ(Read(*file, at, kStep), Part(bytes, at, at + kStep)) << at;
  }
}

TEST_F(FileFaultsTest, AFailedLargeWriteUpdatesTheSizeAndIsSynced) {
  auto file = OpenWith(RandomBytes(100));
  FailFrom(2 * kMiB);
  const auto written = file->Write(Content::kRaw, 0, RandomBytes(4 * kMiB));
  OnEvent(nullptr);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().error_number(), EIO);
  EXPECT_THAT(written.error().what, HasSubstr(path_));
  EXPECT_GT(SizeOnDisk(), 100U);
  EXPECT_EQ(file->size(), SizeOnDisk());
  const int before = SyncCalls();
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_GT(SyncCalls(), before);
}

TEST_F(FileFaultsTest, AFailedVectorUpdatesTheSizeAndIsSynced) {
  auto file = OpenWith(RandomBytes(100));
  FailFrom(8 * kMiB);
  const Bytes bytes = RandomBytes(2 * kMiB);
  const std::vector<File::WriteRequest> requests{{.offset = kMiB, .memory = bytes},
                                                 {.offset = 8 * kMiB, .memory = bytes}};
  const auto written = file->WriteMany(requests);
  OnEvent(nullptr);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().error_number(), EIO);
  EXPECT_GE(SizeOnDisk(), 3 * kMiB);
  EXPECT_EQ(file->size(), SizeOnDisk());
  EXPECT_EQ(Read(*file, kMiB, bytes.size()), bytes) << "the request that succeeded";
  const int before = SyncCalls();
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_GT(SyncCalls(), before);
}

TEST_F(FileFaultsTest, TruncationRemovesTheBytesOfAFailedFlush) {
  auto file = OpenWith({});
  Write(*file, 0, RandomBytes(20'000), Content::kMetadata);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    const ScopedLimit limit(RLIMIT_FSIZE, 4096);
    EXPECT_EQ(file->Flush(true).error().error_number(), EFBIG);
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(SizeOnDisk(), 4096U);
  ASSERT_TRUE(file->Truncate(0).has_value());
  EXPECT_EQ(SizeOnDisk(), 0U);
}

TEST_F(FileFaultsTest, MetadataIsNotWrittenIfTheDataBeforeItFails) {
  const Bytes old(kStep);
  auto file = OpenWith(old);
  const auto metadata = RandomBytes(100), data = RandomBytes(4096);
  ASSERT_TRUE(file->Write(Content::kRaw, kMiB, data).has_value());
  ASSERT_TRUE(file->Write(Content::kMetadata, 0, metadata).has_value());
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  {
    const ScopedLimit limit(RLIMIT_FSIZE, kStep);
    EXPECT_FALSE(file->Flush(false).has_value());
  }
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(client::ReadFile(path_), old);
  EXPECT_TRUE(file->Flush(false).has_value());
}

TEST_F(FileFaultsTest, AnErrorOfTheEngineNamesTheFile) {
  OnSetup([](int) { return -EAGAIN; });
  auto file = OpenWith(RandomBytes(4 * kMiB));
  Engine::Shared().Clear();
  Write(*file, 0, RandomBytes(1000, 2));
  Bytes out(3 * kMiB);
  const auto written = file->Write(Content::kRaw, 0, out);
  ASSERT_FALSE(written.has_value());
  EXPECT_THAT(written.error().what, HasSubstr(path_));
  EXPECT_EQ(Read(*file, 0, 1000), RandomBytes(1000, 2)) << "an earlier write stays buffered";
  const auto read = file->Read(Content::kRaw, 0, out);
  ASSERT_FALSE(read.has_value());
  EXPECT_THAT(read.error().what, HasSubstr(path_));
}

TEST_F(FileFaultsTest, AWriteWithoutMemoryNamesTheFile) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizers need more address space than the limit";
#endif
  auto file = OpenWith({}, {.cache = 1024 * kMiB});
  const Bytes bytes = RandomBytes(kStep);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  Result<void> written;
  {
    // Each of the writes begins a segment of 8 MiB. The first ones may fit into freed memory.
    const ScopedLimit limit(RLIMIT_AS, pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + kMiB);
    for (uint64_t i = 0; i < 50 && written.has_value(); ++i) written = file->Write(Content::kRaw, i * 16 * kMiB, bytes);
  }
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().error_number(), ENOMEM);
  EXPECT_THAT(written.error().what, HasSubstr(path_));
}

}  // namespace
}  // namespace weightfs::hdf5

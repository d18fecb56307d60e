// SPDX-License-Identifier: Apache-2.0
#include "hdf5/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/unit/client/files.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;
using testing::HasSubstr;

constexpr File::OpenOptions kNew{.write = true, .create = true, .truncate = true};
constexpr File::OpenOptions kChange{.write = true};

class FileTest : public testing::Test {
 protected:
  std::unique_ptr<File> Open(const File::OpenOptions& options, const Settings& settings = {}) {
    auto file = File::Open(path_, options, settings);
    EXPECT_TRUE(file.has_value()) << file.error().what;
    return file.has_value() ? *std::move(file) : nullptr;
  }
  static void Write(File& file, uint64_t offset, const Bytes& bytes, Content content = Content::kRaw) {
    const auto written = file.Write(content, offset, bytes);
    EXPECT_TRUE(written.has_value()) << written.error().what;
  }
  static Bytes Read(File& file, uint64_t offset, size_t size, Content content = Content::kRaw) {
    Bytes out(size, std::byte{0xEE});
    const auto read = file.Read(content, offset, out);
    EXPECT_TRUE(read.has_value()) << read.error().what;
    return out;
  }

  client::Folder folder_;
  const std::string path_ = folder_ / "file";
};

TEST_F(FileTest, ReadsBackWritesOfEverySize) {
  const Settings settings{.direct_size = 1 << 20, .cache = 8 << 20};
  for (const size_t size : {1, 511, 4096, 65'537, 262'144, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5'000'003}) {
    const Bytes bytes = RandomBytes(size, static_cast<unsigned>(size));
    auto file = Open(kNew, settings);
    Write(*file, 100, bytes);
    EXPECT_EQ(file->size(), 100 + size);
    EXPECT_EQ(Read(*file, 100, size), bytes) << size;
    EXPECT_EQ(Read(*file, 0, 100), Bytes(100)) << "a hole";
    ASSERT_TRUE(file->Close().has_value());
    file = Open({}, settings);
    EXPECT_EQ(Read(*file, 100, size), bytes) << size << " after a reopen";
    EXPECT_EQ(Read(*file, 90 + size, 100, Content::kMetadata).at(99), std::byte{0}) << "beyond the end";
  }
}

TEST_F(FileTest, FlushWritesSmallWritesToTheFile) {
  auto file = Open(kNew);
  Write(*file, 0, RandomBytes(1000), Content::kMetadata);
  EXPECT_EQ(client::ReadFile(path_).size(), 0U);
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_EQ(client::ReadFile(path_), RandomBytes(1000));
}

TEST_F(FileTest, SwmrSuperblockDisablesBuffering) {
  Bytes superblock = RandomBytes(48);
  const char head[] = "\x89HDF\r\n\x1a\n\x03\x08\x08\x05";
  std::memcpy(superblock.data(), head, 12);
  auto file = Open(kNew);
  Write(*file, 48, RandomBytes(500), Content::kMetadata);
  EXPECT_EQ(client::ReadFile(path_).size(), 0U);
  Write(*file, 0, superblock, Content::kMetadata);
  EXPECT_EQ(client::ReadFile(path_).size(), 548U);
  Write(*file, 548, RandomBytes(10), Content::kMetadata);
  Write(*file, 558, RandomBytes(10));
  EXPECT_EQ(client::ReadFile(path_).size(), 568U);
  superblock[11] = std::byte{1};
  Write(*file, 0, superblock, Content::kMetadata);
  Write(*file, 568, RandomBytes(10));
  EXPECT_EQ(client::ReadFile(path_).size(), 568U) << "without readers, writes are buffered again";
}

TEST_F(FileTest, SharedReaderSeesWritesOfAnotherProgram) {
  client::WriteFile(path_, Bytes(100'000, std::byte{1}));
  auto reader = Open({.shared_reader = true});
  EXPECT_EQ(Read(*reader, 10, 10, Content::kMetadata), Bytes(10, std::byte{1}));
  client::WriteFile(path_, Bytes(9'000'000, std::byte{2}));
  EXPECT_EQ(Read(*reader, 10, 10, Content::kMetadata), Bytes(10, std::byte{2}));
  EXPECT_EQ(Read(*reader, 0, 8'000'000), Bytes(8'000'000, std::byte{2})) << "the file grew";
}

TEST_F(FileTest, TruncationDiscardsBytesBeyondTheNewEnd) {
  auto file = Open(kNew);
  const Bytes bytes = RandomBytes(6 << 20);
  Write(*file, 0, bytes);
  Write(*file, bytes.size(), RandomBytes(5000, 2), Content::kMetadata);
  ASSERT_TRUE(file->Truncate(1000).has_value());
  EXPECT_EQ(file->size(), 1000U);
  ASSERT_TRUE(file->Truncate(2000).has_value());
  EXPECT_EQ(Read(*file, 999, 2).at(1), std::byte{0});
  ASSERT_TRUE(file->Close().has_value());
  Bytes expected(bytes.begin(), bytes.begin() + 1000);
  expected.resize(2000);
  EXPECT_EQ(client::ReadFile(path_), expected);
}

TEST_F(FileTest, CachedReadsSeeOwnWrites) {
  client::WriteFile(path_, RandomBytes(1 << 20));
  Bytes model = RandomBytes(1 << 20);
  auto file = Open(kChange);
  EXPECT_EQ(Read(*file, 5000, 100, Content::kMetadata), Bytes(model.begin() + 5000, model.begin() + 5100));
  const Bytes bytes = RandomBytes(50, 3);
  Write(*file, 5020, bytes, Content::kMetadata);
  model = client::AfterWrite(model, 5020, bytes);
  EXPECT_EQ(Read(*file, 5000, 100, Content::kMetadata), Bytes(model.begin() + 5000, model.begin() + 5100));
  ASSERT_TRUE(file->Flush(false).has_value());
  EXPECT_EQ(Read(*file, 5000, 100, Content::kMetadata), Bytes(model.begin() + 5000, model.begin() + 5100));
}

TEST_F(FileTest, SequentialReadsAreReadAhead) {
  const Bytes bytes = RandomBytes(20 << 20);
  client::WriteFile(path_, bytes);
  // Reads prefer the page cache, so it must be empty.
  const int descriptor = open(path_.c_str(), O_RDONLY);
  ASSERT_EQ(fdatasync(descriptor), 0);
  ASSERT_EQ(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(descriptor);
  auto file = Open({}, {.direct_size = 1 << 20});
  posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_RANDOM);  // otherwise the kernel may read ahead first
  for (const size_t step : {10'000, 100'000, 300'000}) {
    for (size_t at = 0; at < bytes.size(); at += step) {
      const size_t size = std::min(step, bytes.size() - at);
      const Bytes expected(bytes.begin() + static_cast<long>(at), bytes.begin() + static_cast<long>(at + size));
      ASSERT_EQ(Read(*file, at, size), expected) << "offset " << at << " of steps of " << step;
    }
  }
}

TEST_F(FileTest, ReadsSeeAWriteIntoAWindow) {
  Bytes bytes = RandomBytes(16 << 20);
  client::WriteFile(path_, bytes);
  const int descriptor = open(path_.c_str(), O_RDONLY);
  ASSERT_EQ(fdatasync(descriptor), 0);
  ASSERT_EQ(posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(descriptor);
  auto file = Open(kChange, {.direct_size = 1 << 20});
  posix_fadvise(file->descriptor(), 0, 0, POSIX_FADV_RANDOM);
  constexpr size_t kStep = 64 << 10;
  for (size_t at = 0; at < bytes.size(); at += kStep) {
    ASSERT_EQ(Read(*file, at, kStep), Bytes(&bytes[at], &bytes[at] + kStep)) << at;
    if (at + 2 * kStep > bytes.size()) break;
    const Bytes change = RandomBytes(1000, static_cast<unsigned>(at));
    Write(*file, at + kStep + 77, change, Content::kMetadata);
    bytes = client::AfterWrite(std::move(bytes), at + kStep + 77, change);
    const bool flushes = at % (4 * kStep) == 0;
    ASSERT_TRUE(!flushes || file->Flush(false).has_value());
  }
}

TEST_F(FileTest, ReportsAndRetriesAFailedWrite) {
  auto file = Open(kNew);
  Write(*file, 0, RandomBytes(20'000), Content::kMetadata);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 4096, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto flushed = file->Flush(true);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().error_number(), EFBIG);
  EXPECT_THAT(flushed.error().what, HasSubstr(path_));
  EXPECT_EQ(Read(*file, 0, 20'000), RandomBytes(20'000)) << "the bytes stay buffered";
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_EQ(client::ReadFile(path_), RandomBytes(20'000));
}

TEST_F(FileTest, RejectsInvalidOpensAndRequests) {
  EXPECT_EQ(File::Open(path_, kChange, {}).error().error_number(), ENOENT);
  EXPECT_EQ(File::Open(folder_ / ".", {}, {}).error().error_number(), EISDIR);
  client::WriteFile(path_, RandomBytes(10));
  EXPECT_EQ(File::Open(path_, {.write = true, .create = true, .exclusive = true}, {}).error().error_number(), EEXIST);
  EXPECT_EQ(File::Open(path_, {}, {.num_threads = 0}).error().error_number(), EINVAL);
  const auto file = Open({});
  EXPECT_EQ(file->Write(Content::kRaw, 0, RandomBytes(10)).error().error_number(), EBADF);
  Bytes out(10);
  EXPECT_EQ(file->Read(Content::kRaw, UINT64_MAX - 3, out).error().error_number(), EFBIG);
}

TEST_F(FileTest, ExclusiveLockExcludesOthers) {
  client::WriteFile(path_, RandomBytes(10));
  auto one = Open(kChange);
  auto other = Open({});
  EXPECT_TRUE(one->IsSame(*other));
  ASSERT_TRUE(one->Lock(true).has_value());
  const auto locked = other->Lock(false);
  ASSERT_FALSE(locked.has_value());
  EXPECT_EQ(locked.error().error_number(), EAGAIN);
  EXPECT_THAT(locked.error().what, HasSubstr("lock"));
  ASSERT_TRUE(one->Unlock().has_value());
  EXPECT_TRUE(other->Lock(false).has_value());
}

TEST_F(FileTest, UnlockFlushes) {
  auto file = Open(kNew);
  ASSERT_TRUE(file->Lock(true).has_value());
  Write(*file, 0, RandomBytes(1000), Content::kMetadata);
  ASSERT_TRUE(file->Unlock().has_value());
  EXPECT_EQ(client::ReadFile(path_), RandomBytes(1000));
}

TEST_F(FileTest, OneCallTransfersSeveralRequests) {
  const Settings settings{.direct_size = 1 << 20, .cache = 8 << 20};
  auto file = Open(kNew, settings);
  const Bytes bytes = RandomBytes(4'000'000);
  std::vector<File::WriteRequest> writes;
  std::vector<size_t> order{3, 0, 2, 1, 5, 4};
  constexpr size_t kPiece = 600'000;
  for (const size_t i : order) {
    writes.push_back({.offset = 512 + i * kPiece, .memory = std::span(bytes).subspan(i * kPiece, kPiece)});
  }
  writes.push_back({.content = Content::kMetadata, .offset = 5'000'000, .memory = std::span(bytes).first(100)});
  writes.push_back({.offset = 6'000'000, .memory = {}});
  ASSERT_TRUE(file->WriteMany(writes).has_value());
  EXPECT_EQ(Read(*file, 512, 6 * kPiece), Bytes(bytes.begin(), bytes.begin() + 6 * kPiece));
  ASSERT_TRUE(file->Flush(false).has_value());
  Bytes out(6 * kPiece + 200);
  std::vector<File::ReadRequest> reads;
  for (const size_t i : order) {
    reads.push_back({.offset = 512 + i * kPiece, .memory = std::span(out).subspan(i * kPiece, kPiece)});
  }
  reads.push_back({.content = Content::kMetadata, .offset = 5'000'000, .memory = std::span(out).last(200)});
  ASSERT_TRUE(file->ReadMany(reads).has_value());
  Bytes expected(bytes.begin(), bytes.begin() + 6 * kPiece);
  expected.insert(expected.end(), bytes.begin(), bytes.begin() + 100);
  expected.resize(expected.size() + 100);
  EXPECT_EQ(out, expected);
}

TEST_F(FileTest, RequestBeyondTheLargestOffsetFailsItsWholeCall) {
  auto file = Open(kNew);
  Write(*file, 0, RandomBytes(5 << 20));
  ASSERT_TRUE(file->Flush(false).has_value());
  const Bytes bytes = RandomBytes(4 << 20, 2);
  const std::vector<File::WriteRequest> writes{{.offset = 0, .memory = std::span(bytes).first(100)},
                                               {.offset = UINT64_MAX - 9, .memory = bytes}};
  EXPECT_EQ(file->WriteMany(writes).error().error_number(), EFBIG);
  EXPECT_EQ(Read(*file, 0, 100), RandomBytes(100)) << "the valid request has no effect";
  Bytes out(4 << 20);
  const std::vector<File::ReadRequest> reads{{.offset = UINT64_MAX - 9, .memory = out}};
  EXPECT_EQ(file->ReadMany(reads).error().error_number(), EFBIG);
}

// A child that fork() made during a write-back ends, and leaves the file to its parent.
TEST_F(FileTest, ForkedChildOfAWriterWritesAndAwaitsNothing) {
  const Bytes bytes = RandomBytes(16 << 20);
  auto file = Open(kNew, {.direct_size = 1 << 20, .cache = 32 << 20});
  for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
    ASSERT_TRUE(file->Write(Content::kRaw, at, std::span(bytes).subspan(at, 1 << 20)).has_value());
  }
  Write(*file, bytes.size(), RandomBytes(100, 2));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang fails the test
    const Bytes more(2 << 20);
    const std::vector<File::WriteRequest> two{{.offset = 0, .memory = more}, {.offset = 4 << 20, .memory = more}};
    const bool ignored = file->Write(Content::kRaw, 0, more).has_value() && file->WriteMany(two).has_value() &&
                         file->Truncate(1).has_value() && file->Flush(true).has_value() && file->Unlock().has_value();
    _exit(ignored && file->Close().has_value() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  struct stat seen {};
  ASSERT_EQ(stat(path_.c_str(), &seen), 0);
  EXPECT_LE(static_cast<size_t>(seen.st_size), bytes.size()) << "the child has written what its parent buffers";
  ASSERT_TRUE(file->Close().has_value());
  Bytes all = bytes;
  const Bytes last = RandomBytes(100, 2);
  all.insert(all.end(), last.begin(), last.end());
  auto again = Open({});
  EXPECT_EQ(Read(*again, 0, all.size()), all);
}

TEST_F(FileTest, ForkedChildReadsWithItsOwnHandles) {
  const Bytes bytes = RandomBytes(5 << 20);
  client::WriteFile(path_, bytes);
  const int descriptor = open(path_.c_str(), O_RDONLY);
  ASSERT_EQ(fdatasync(descriptor), 0);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
  auto file = Open({}, {.direct_size = 1 << 20});
  EXPECT_EQ(Read(*file, 0, bytes.size()), bytes);
  const pid_t child = fork();
  if (child == 0) {
    Bytes out(bytes.size());
    const bool right = file->Read(Content::kRaw, 0, out).has_value() && out == bytes;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// The leases that requests of a File take, on a mount in the test's own process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "tests/unit/client/fake_lease_mount.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::RandomBytes;
using lease::Kind;

constexpr size_t kMiB = 1 << 20;

class FileLeaseTest : public testing::Test {
 protected:
  std::unique_ptr<File> Open(const File::OpenOptions& options, Settings settings = {}) {
    settings.direct = client::Direct::kRequire;
    auto file = File::Open(mount_ / "file", options, settings);
    EXPECT_TRUE(file.has_value()) << file.error().what;
    return *std::move(file);
  }
  ~FileLeaseTest() override { Engine::Shared().Clear(); }

  client::FakeLeaseMount mount_;
};

TEST_F(FileLeaseTest, LargeRequestTakesOneLease) {
  const Bytes bytes = RandomBytes(17 * kMiB);
  auto file = Open({.write = true, .create = true});
  const auto before = Engine::Shared().direct_operations();
  ASSERT_TRUE(file->Write(Content::kRaw, 2048, bytes).has_value());
  EXPECT_EQ(mount_.requests(Kind::kCommit), 1U);
  Bytes out(bytes.size());
  ASSERT_TRUE(file->Read(Content::kRaw, 2048, out).has_value());
  EXPECT_EQ(out, bytes);
  EXPECT_EQ(Engine::Shared().direct_operations() - before, 1 + mount_.requests(Kind::kRead));
}

TEST_F(FileLeaseTest, ContiguousChunksShareLeases) {
  const Bytes bytes = RandomBytes(24 * kMiB);
  auto file = Open({.write = true, .create = true});
  for (size_t at = 0; at < bytes.size(); at += 100'000) {
    const auto chunk = std::span(bytes).subspan(at, std::min<size_t>(100'000, bytes.size() - at));
    ASSERT_TRUE(file->Write(Content::kRaw, at, chunk).has_value());
  }
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_EQ(mount_.requests(Kind::kCommit), 3U) << "240 chunks, in segments of 8 MiB";
  ASSERT_TRUE(file->Close().has_value());
  EXPECT_EQ(client::ReadFile(mount_ / "file"), bytes);
}

TEST_F(FileLeaseTest, FlushWritesContiguousSegmentsByOneLease) {
  const Bytes bytes = RandomBytes(12 * kMiB);
  auto file = Open({.write = true, .create = true}, {.cache = 64 * kMiB});
  // In descending order, so that no write extends a segment.
  for (size_t at = bytes.size(); at > 0; at -= 128 << 10) {
    const size_t begin = at - (128 << 10);
    ASSERT_TRUE(file->Write(Content::kRaw, begin, std::span(bytes).subspan(begin, 128 << 10)).has_value());
  }
  EXPECT_EQ(mount_.requests(Kind::kCommit), 0U);
  ASSERT_TRUE(file->Flush(true).has_value());
  EXPECT_EQ(mount_.requests(Kind::kCommit), 1U);
  EXPECT_EQ(client::ReadFile(mount_ / "file"), bytes);
}

TEST_F(FileLeaseTest, ContiguousRequestsOfOneCallShareOneLease) {
  const Bytes bytes = RandomBytes(8 * kMiB);
  auto file = Open({.write = true, .create = true});
  std::vector<File::WriteRequest> writes;
  for (size_t at = bytes.size(); at > 0; at -= kMiB) {
    writes.push_back({.offset = at - kMiB, .memory = std::span(bytes).subspan(at - kMiB, kMiB)});
  }
  ASSERT_TRUE(file->WriteMany(writes).has_value());
  EXPECT_EQ(mount_.requests(Kind::kCommit), 1U);
  EXPECT_EQ(client::ReadFile(mount_ / "file"), bytes);
}

TEST_F(FileLeaseTest, RequestsAfterASwmrSuperblockRunInTheOrderGiven) {
  Bytes superblock = RandomBytes(48);
  std::memcpy(superblock.data(), "\x89HDF\r\n\x1a\n\x03\x08\x08\x05", 12);
  const Bytes bytes = RandomBytes(8 * kMiB);
  mount_.on_request = [](Kind kind) { return kind == Kind::kCommit ? ENOSPC : 0; };
  auto file = Open({.write = true, .create = true});
  const std::vector<File::WriteRequest> writes{{.content = Content::kMetadata, .offset = 0, .memory = superblock},
                                               {.offset = 16 * kMiB, .memory = bytes},
                                               {.offset = 8 * kMiB, .memory = bytes}};
  const auto written = file->WriteMany(writes);
  ASSERT_FALSE(written.has_value());
  EXPECT_EQ(written.error().error_number(), ENOSPC);
  EXPECT_EQ(mount_.requests(Kind::kCommit), 1U) << "after a failed request, the next one does not start";
}

TEST_F(FileLeaseTest, ForkedChildHasNoOperationsOfItsParent) {
  auto file = Open({.write = true, .create = true});
  ASSERT_TRUE(file->Write(Content::kRaw, 0, RandomBytes(4 * kMiB)).has_value());
  EXPECT_GT(Engine::Shared().direct_operations(), 0U);
  const pid_t child = fork();
  if (child == 0) _exit(Engine::Shared().direct_operations() == 0 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FileLeaseTest, ReportsAFailedBackgroundWriteAndKeepsItsBytes) {
  const Bytes bytes = RandomBytes(8 * kMiB);
  bool fails = true;
  mount_.on_request = [&](Kind kind) { return kind == Kind::kCommit && fails ? ENOSPC : 0; };
  auto file = Open({.write = true, .create = true});
  for (size_t at = 0; at < bytes.size(); at += 128 << 10) {
    // The error of the full segment may come with any later call.
    [[maybe_unused]] const auto written = file->Write(Content::kRaw, at, std::span(bytes).subspan(at, 128 << 10));
  }
  const auto flushed = file->Flush(true);
  ASSERT_FALSE(flushed.has_value());
  EXPECT_EQ(flushed.error().error_number(), ENOSPC);
  fails = false;
  const auto again = file->Flush(true);
  ASSERT_TRUE(again.has_value()) << again.error().what;
  EXPECT_EQ(client::ReadFile(mount_ / "file"), bytes);
}

}  // namespace
}  // namespace weightfs::hdf5

// SPDX-License-Identifier: Apache-2.0
// Requests with GPU memory, on a simulated GPU: an access to it as host memory crashes.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <span>

#include "hdf5/engine.h"
#include "hdf5/file.h"
#include "hdf5/gpu_memory.h"
#include "tests/unit/client/device_bytes.h"
#include "tests/unit/client/files.h"
#include "tests/unit/hdf5/sync_count.h"

namespace weightfs::hdf5 {
namespace {

using client::Bytes;
using client::DeviceBytes;
using client::RandomBytes;

class FileGpuTest : public client::GpuTest {
 protected:
  ~FileGpuTest() override { Engine::Shared().Clear(); }
  static std::span<std::byte> SpanOf(const DeviceBytes& memory, size_t size) {
    return {reinterpret_cast<std::byte*>(memory.address()), size};
  }
  client::Folder folder_;
};

TEST_F(FileGpuTest, TransfersRequestsOfEverySize) {
  for (const size_t size : {100, 100'000, 5'000'000}) {
    const Bytes bytes = RandomBytes(size, 3);
    DeviceBytes source(bytes);
    DeviceBytes target(size);
    EXPECT_TRUE(IsGpuMemory(SpanOf(source, size).data()));
    EXPECT_FALSE(IsGpuMemory(bytes.data()));
    auto file = File::Open(folder_ / "file", {.write = true, .create = true, .truncate = true}, {});
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE((*file)->Write(Content::kRaw, 10, SpanOf(source, size)).has_value());
    // The read also returns bytes that are still buffered.
    ASSERT_TRUE((*file)->Write(Content::kRaw, 20, RandomBytes(30, 9)).has_value());
    const auto read = (*file)->Read(Content::kRaw, 10, SpanOf(target, size));
    ASSERT_TRUE(read.has_value()) << read.error().what;
    EXPECT_EQ(target.Get(), client::AfterWrite(bytes, 10, RandomBytes(30, 9)));
  }
}

TEST_F(FileGpuTest, WaitsForEarlierWorkOfTheDefaultStream) {
  const size_t size = 300'000;
  const Bytes later = RandomBytes(size, 2);
  auto file = File::Open(folder_ / "file", {.write = true, .create = true, .truncate = true}, {});
  ASSERT_TRUE(file.has_value());
  for (const bool reads : {false, true}) {
    DeviceBytes memory(RandomBytes(size, 1));
    const Bytes work = reads ? RandomBytes(size, 3) : later;
    fake_gpu_hold_default_stream(0, memory.address(), work.data(), work.size());
    auto transfer = std::async(std::launch::async, [&] {
      return reads ? (*file)->Read(Content::kRaw, 0, SpanOf(memory, size))
                   : (*file)->Write(Content::kRaw, 0, SpanOf(memory, size));
    });
    EXPECT_EQ(transfer.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
    fake_gpu_release();
    const auto done = transfer.get();
    ASSERT_TRUE(done.has_value()) << done.error().what;
    if (reads) {
      EXPECT_EQ(memory.Get(), later);
    } else {
      ASSERT_TRUE((*file)->Flush(false).has_value());
      EXPECT_EQ(client::ReadFile(folder_ / "file"), later);
    }
  }
}

TEST_F(FileGpuTest, AReadThatExtendsTheFileIsSynced) {
  client::WriteFile(folder_ / "file", RandomBytes(100));
  auto file = File::Open(folder_ / "file", {.write = true}, {});
  ASSERT_TRUE(file.has_value());
  DeviceBytes target(1000);
  const auto read = (*file)->Read(Content::kRaw, 0, SpanOf(target, 1000));
  ASSERT_TRUE(read.has_value()) << read.error().what;
  EXPECT_EQ((*file)->size(), 1000U);
  const int before = SyncCalls();
  ASSERT_TRUE((*file)->Flush(true).has_value());
  EXPECT_GT(SyncCalls(), before);
}

}  // namespace
}  // namespace weightfs::hdf5

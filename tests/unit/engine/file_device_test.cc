// SPDX-License-Identifier: Apache-2.0
#include "engine/file_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/recording_request.h"
#include "tests/support/scratch_file.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kFileSize = 32 * kMiB;

std::unique_ptr<FileDevice> OpenDevice(const std::string& path, FileDevice::Options options = {}) {
  auto device = FileDevice::Open(path, options);
  if (!device.has_value()) ADD_FAILURE() << ToString(device.error());
  return std::move(device.value());
}

// Bytes that differ from block to block and from seed to seed.
void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

bool Same(const AlignedMemory& a, const AlignedMemory& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

TEST(FileDeviceTest, ReadsBackWhatWasWritten) {
  const ScratchFile file(kFileSize);
  const AlignedMemory out(12 * kKiB);
  const AlignedMemory in(12 * kKiB);
  FillPattern(out.bytes(), 1);
  const auto device = OpenDevice(file.path());
  EXPECT_EQ(device->size(), ByteCount{kFileSize});
  EXPECT_EQ(device->path(), file.path());
  EXPECT_FALSE(device->is_block_device());
  ASSERT_TRUE(device->Write(ByteOffset{8 * kKiB}, out.bytes()).has_value());
  ASSERT_TRUE(device->Flush().has_value());
  ASSERT_TRUE(device->Read(ByteOffset{8 * kKiB}, in.bytes()).has_value());
  EXPECT_TRUE(Same(in, out));
}

TEST(FileDeviceTest, TheSizeIsRoundedDownToBlocks) {
  const ScratchFile file(3 * kBlockSize + 100);
  EXPECT_EQ(OpenDevice(file.path())->size(), ByteCount{3 * kBlockSize});
}

TEST(FileDeviceTest, BytesPersistAcrossOpens) {
  const ScratchFile file(kFileSize);
  const AlignedMemory out(kMiB);
  const AlignedMemory in(kMiB);
  FillPattern(out.bytes(), 2);
  ASSERT_TRUE(OpenDevice(file.path())->Write(ByteOffset{kMiB}, out.bytes()).has_value());
  ASSERT_TRUE(OpenDevice(file.path(), {.read_only = true})->Read(ByteOffset{kMiB}, in.bytes()).has_value());
  EXPECT_TRUE(Same(in, out));
}

// Pieces and batches: every byte is transferred once, to its own location.
class FileDeviceShapeTest : public testing::TestWithParam<std::tuple<unsigned, uint64_t>> {};

TEST_P(FileDeviceShapeTest, ManyRequestsAtOnceAllArriveOnce) {
  const auto [depth, size] = GetParam();
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.queue_depth = depth});
  const AlignedMemory out(kFileSize);
  const AlignedMemory in(kFileSize);
  FillPattern(out.bytes(), depth);
  for (const auto operation : {IoRequest::Operation::kWrite, IoRequest::Operation::kRead}) {
    const AlignedMemory& memory = operation == IoRequest::Operation::kWrite ? out : in;
    std::vector<std::unique_ptr<RecordingRequest>> requests;
    std::vector<IoRequest*> pointers;
    for (uint64_t at = 0; at < kFileSize; at += size) {
      const auto part = memory.bytes().subspan(at, std::min(size, kFileSize - at));
      requests.push_back(std::make_unique<RecordingRequest>(operation, ByteOffset{at}, part));
      pointers.push_back(requests.back().get());
    }
    device->Submit(pointers);
    for (auto& request : requests) ASSERT_TRUE(request->Wait().has_value());
    for (auto& request : requests) EXPECT_EQ(request->completions(), 1);
  }
  EXPECT_TRUE(Same(in, out));
}

INSTANTIATE_TEST_SUITE_P(Shapes, FileDeviceShapeTest,
                         testing::Values(std::tuple(1U, 64 * kKiB), std::tuple(4U, kBlockSize), std::tuple(256U, kMiB),
                                         std::tuple(256U, 2 * kMiB), std::tuple(8U, 3 * kMiB + kBlockSize),
                                         std::tuple(2U, 32 * kMiB)));

TEST(FileDeviceTest, OnCompleteNeverRunsInsideSubmit) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.queue_depth = 2});
  const AlignedMemory memory(64 * kBlockSize);
  Mutex held;  // held by the submitter, and taken by every completion
  std::vector<std::unique_ptr<RecordingRequest>> requests;
  std::vector<IoRequest*> pointers;
  for (uint64_t i = 0; i < 64; ++i) {
    const auto part = memory.bytes().subspan(i * kBlockSize, kBlockSize);
    // Some of them are invalid; these also complete outside Submit.
    const ByteOffset offset{i % 8 == 7 ? kFileSize : i * kBlockSize};
    requests.push_back(std::make_unique<RecordingRequest>(IoRequest::Operation::kWrite, offset, part));
    requests.back()->on_complete = [&held] { const MutexLock lock(held); };
    pointers.push_back(requests.back().get());
  }
  {
    const MutexLock lock(held);
    device->Submit(pointers);
    for (auto& request : requests) EXPECT_EQ(request->completions(), 0);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i]->Wait().has_value(), i % 8 != 7);
    EXPECT_NE(requests[i]->thread(), std::this_thread::get_id());
  }
}

TEST(FileDeviceTest, OnCompleteMaySubmitAndDestructionWaitsForAllOfIt) {
  const ScratchFile file(kFileSize);
  const AlignedMemory memory(kBlockSize);
  std::vector<std::unique_ptr<RecordingRequest>> chain;
  for (uint64_t i = 0; i < 100; ++i) {
    chain.push_back(
        std::make_unique<RecordingRequest>(IoRequest::Operation::kRead, ByteOffset{i * kBlockSize}, memory.bytes()));
  }
  {
    const auto device = OpenDevice(file.path(), {.queue_depth = 1});
    FileDevice* target = device.get();
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      chain[i]->on_complete = [&chain, target, i] { chain[i + 1]->SubmitTo(*target); };
    }
    chain[0]->SubmitTo(*device);
  }
  for (auto& request : chain) EXPECT_EQ(request->completions(), 1);
}

TEST(FileDeviceTest, ManyThreadsShareOneSmallRing) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.queue_depth = 3});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&device, t] {
      const AlignedMemory out(2 * kBlockSize);
      const AlignedMemory in(2 * kBlockSize);
      for (uint64_t i = 0; i < 50; ++i) {
        const ByteOffset offset{t * 4 * kMiB + i * 2 * kBlockSize};
        FillPattern(out.bytes(), t * 1000 + i);
        ASSERT_TRUE(device->Write(offset, out.bytes()).has_value());
        ASSERT_TRUE(device->Read(offset, in.bytes()).has_value());
        ASSERT_TRUE(Same(in, out));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(FileDeviceTest, AFileThatShrankIsAnIoErrorReportedOnce) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path());
  ASSERT_EQ(truncate(file.path().c_str(), 3 * kMiB + kMiB / 2), 0);
  const AlignedMemory memory(6 * kMiB);
  // Pieces before the end, across it (short) and behind it (0 bytes): one completion with kIo.
  RecordingRequest request(IoRequest::Operation::kRead, ByteOffset{0}, memory.bytes());
  request.SubmitTo(*device);
  const auto result = request.Wait();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kIo);
  RecordingRequest inside(IoRequest::Operation::kRead, ByteOffset{0}, memory.bytes().first(3 * kMiB));
  inside.SubmitTo(*device);
  EXPECT_TRUE(inside.Wait().has_value()) << "the ring lives on";
  EXPECT_EQ(request.completions(), 1);
}

TEST(FileDeviceTest, RequestsPastTheEndOrMisalignedAreRefusedAndChangeNothing) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path());
  const AlignedMemory memory(2 * kBlockSize, 'x');
  EXPECT_EQ(device->Write(ByteOffset{kFileSize - kBlockSize}, memory.bytes()).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(device->Write(ByteOffset{~0ULL - 4095}, memory.bytes()).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(device->Write(ByteOffset{512}, memory.bytes()).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(device->Write(ByteOffset{0}, memory.bytes().first(100)).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(device->Read(ByteOffset{0}, memory.bytes().subspan(8, kBlockSize)).error().code, ErrorCode::kInvalid);
  EXPECT_EQ(std::filesystem::file_size(file.path()), kFileSize);
  EXPECT_TRUE(device->Read(ByteOffset{kFileSize}, memory.bytes().first(0)).has_value()) << "nothing, at the end";
}

TEST(FileDeviceTest, AReadOnlyDeviceRefusesWrites) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.read_only = true});
  const AlignedMemory memory(kBlockSize);
  EXPECT_EQ(device->Write(ByteOffset{0}, memory.bytes()).error().code, ErrorCode::kReadOnly);
  EXPECT_TRUE(device->Read(ByteOffset{0}, memory.bytes()).has_value());
}

TEST(FileDeviceTest, AWriteOfTheCallersThreadIsCompleteAtOnce) {
  struct Request final : IoRequest {
    using IoRequest::IoRequest;
    void OnComplete(Result<void> result) override { results.push_back(std::move(result)); }
    std::vector<Result<void>> results;
  };
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path());
  const AlignedMemory out(kBlockSize), in(kBlockSize);
  FillPattern(out.bytes(), 5);
  Request request(IoRequest::Operation::kWrite, ByteOffset{3 * kBlockSize}, out.bytes());
  device->Perform(request);
  ASSERT_EQ(request.results.size(), 1U);
  EXPECT_TRUE(request.results[0].has_value());
  ASSERT_TRUE(device->Read(ByteOffset{3 * kBlockSize}, in.bytes()).has_value());
  EXPECT_TRUE(Same(in, out));
  request.offset = ByteOffset{kFileSize};
  device->Perform(request);
  ASSERT_EQ(request.results.size(), 2U);
  EXPECT_EQ(request.results[1].error().code, ErrorCode::kInvalid);
}

TEST(FileDeviceTest, WithoutODirectTheSameBytesArrive) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.direct = false});
  const AlignedMemory out(3 * kMiB);
  const AlignedMemory in(3 * kMiB);
  FillPattern(out.bytes(), 5);
  ASSERT_TRUE(device->Write(ByteOffset{0}, out.bytes()).has_value());
  ASSERT_TRUE(device->Read(ByteOffset{0}, in.bytes()).has_value());
  EXPECT_TRUE(Same(in, out));
}

TEST(FileDeviceOpenTest, AMissingFileIsNotFound) {
  const auto device = FileDevice::Open("./no-such-pool", {});
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(device.error().what, HasSubstr("./no-such-pool"));
}

TEST(FileDeviceOpenTest, ADirectoryOrACharacterDeviceIsNoPool) {
  EXPECT_EQ(FileDevice::Open(".", {}).error().code, ErrorCode::kIo);
  EXPECT_EQ(FileDevice::Open("/dev/null", {}).error().code, ErrorCode::kIo);
}

TEST(FileDeviceOpenTest, ASecondExclusiveOpenIsBusyUntilTheFirstCloses) {
  const ScratchFile file(kFileSize);
  {
    const auto first = OpenDevice(file.path());
    const auto second = FileDevice::Open(file.path(), {});
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kBusy);
    EXPECT_THAT(second.error().what, HasSubstr(file.path()));
    EXPECT_TRUE(FileDevice::Open(file.path(), {.read_only = true, .exclusive = false}).has_value());
  }
  EXPECT_TRUE(FileDevice::Open(file.path(), {}).has_value());
}

TEST(FileDeviceOpenTest, ImpossibleOptionsAreRefused) {
  const ScratchFile file(kFileSize);
  EXPECT_EQ(FileDevice::Open(file.path(), {.queue_depth = 0}).error().code, ErrorCode::kInvalid);
}

TEST(FileDeviceOpenTest, AnExhaustedAioLimitNamesTheSysctlAndItsValue) {
  uint64_t limit = 0;
  std::ifstream("/proc/sys/fs/aio-max-nr") >> limit;
  if (limit == 0 || limit > 4'000'000) GTEST_SKIP() << "fs.aio-max-nr is " << limit << ": cannot be exceeded here";
  const ScratchFile file(kFileSize);
  const auto device = FileDevice::Open(file.path(), {.queue_depth = static_cast<unsigned>(limit + 1)});
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code, ErrorCode::kAgain);
  EXPECT_THAT(device.error().what, HasSubstr("/fs/aio-max-nr is " + std::to_string(limit)));
  EXPECT_THAT(device.error().what, HasSubstr("sysctl -w"));
  EXPECT_TRUE(FileDevice::Open(file.path(), {}).has_value()) << "the failed one left nothing behind";
}

// Returns a command's output, or nothing if it failed.
std::optional<std::string> Capture(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  std::array<char, 256> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  if (pclose(pipe) != 0) return std::nullopt;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// A loop device on a scratch file, detached at the end.
class LoopDevice {
 public:
  explicit LoopDevice(const std::string& file) {
    path_ = Capture("PATH=$PATH:/sbin:/usr/sbin losetup --find --show '" + file + "' 2>/dev/null").value_or("");
  }
  ~LoopDevice() {
    if (!path_.empty() && !Capture("PATH=$PATH:/sbin:/usr/sbin losetup --detach " + path_)) {
      ADD_FAILURE() << path_ << " is still attached";
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FileDeviceBlockDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to attach a loop device";
    loop_.emplace(file_.path());
    if (path().empty()) GTEST_SKIP() << "SKIPPED LOUDLY: losetup is missing or no loop device is to be had";
  }
  const std::string& path() const { return loop_->path(); }

  const ScratchFile file_{kFileSize};

 private:
  std::optional<LoopDevice> loop_;
};

TEST_F(FileDeviceBlockDeviceTest, ALoopDeviceIsReadWrittenAndTakenExclusively) {
  const AlignedMemory out(5 * kMiB);
  const AlignedMemory in(5 * kMiB);
  FillPattern(out.bytes(), 9);
  {
    const auto device = OpenDevice(path());
    EXPECT_TRUE(device->is_block_device());
    EXPECT_EQ(device->size(), ByteCount{kFileSize});
    ASSERT_TRUE(device->Write(ByteOffset{kMiB}, out.bytes()).has_value());
    ASSERT_TRUE(device->Flush().has_value());
    ASSERT_TRUE(device->Read(ByteOffset{kMiB}, in.bytes()).has_value());
    EXPECT_TRUE(Same(in, out));
    EXPECT_EQ(device->Write(ByteOffset{kFileSize}, out.bytes()).error().code, ErrorCode::kInvalid);
    const auto second = FileDevice::Open(path(), {});
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code, ErrorCode::kBusy);
  }
  EXPECT_TRUE(FileDevice::Open(path(), {}).has_value());
}

TEST_F(FileDeviceBlockDeviceTest, OpenWaitsWhileAProbeSharesTheLock) {
  const int looks = open(path().c_str(), O_RDONLY | O_CLOEXEC);  // like udevd
  ASSERT_EQ(flock(looks, LOCK_SH), 0);
  std::promise<pid_t> started;
  auto opened = std::async(std::launch::async, [&] {
    started.set_value(gettid());
    return FileDevice::Open(path(), {});
  });
  WaitUntilAsleep(started.get_future().get());
  EXPECT_FALSE(HasEnded(opened));
  EXPECT_EQ(close(looks), 0);
  EXPECT_TRUE(opened.get().has_value());
}

TEST_F(FileDeviceBlockDeviceTest, AFailingDeviceGivesIoErrorsAndTheRingLivesOn) {
  // Reads beyond the end of the backing file fail in the device rather than in the kernel's checks of a file.
  ASSERT_EQ(truncate(file_.path().c_str(), kMiB), 0);
  const auto device = OpenDevice(path());
  const AlignedMemory memory(kMiB);
  EXPECT_TRUE(device->Read(ByteOffset{0}, memory.bytes()).has_value());
  EXPECT_EQ(device->Read(ByteOffset{8 * kMiB}, memory.bytes()).error().code, ErrorCode::kIo);
  EXPECT_TRUE(device->Read(ByteOffset{0}, memory.bytes()).has_value());
}

// Opens a device once more, as for leases, and closes it at the end.
class Again {
 public:
  Again(const FileDevice& device, bool write, uint64_t writer = 0) : opened_(device.OpenAgain(write, writer).value()) {}
  int get() const { return opened_.get(); }

 private:
  UniqueFd opened_;
};

void ExpectWritersKeepTheNextOpenOut(const std::string& path) {
  auto device = OpenDevice(path);
  const AlignedMemory memory(kBlockSize);
  {
    const Again reads(*device, false), writes(*device, true);
    EXPECT_EQ(fcntl(reads.get(), F_GETFL) & O_ACCMODE, O_RDONLY);
    EXPECT_EQ(fcntl(writes.get(), F_GETFL) & O_ACCMODE, O_RDWR);
    EXPECT_EQ(fcntl(writes.get(), F_GETFL) & O_DIRECT, fcntl(reads.get(), F_GETFL) & O_DIRECT);
    EXPECT_EQ(fcntl(writes.get(), F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(pwrite(writes.get(), memory.data(), kBlockSize, kMiB), static_cast<ssize_t>(kBlockSize));
    EXPECT_EQ(pread(reads.get(), memory.data(), kBlockSize, kMiB), static_cast<ssize_t>(kBlockSize));
    EXPECT_EQ(pwrite(reads.get(), memory.data(), kBlockSize, kMiB), -1);
    const Again second(*device, true);  // Two writers do not exclude each other.
    device.reset();
    const auto refused = FileDevice::Open(path, {});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
    EXPECT_THAT(refused.error().what, AllOf(HasSubstr(path), HasSubstr("leases for writing")));
    EXPECT_TRUE(FileDevice::Open(path, {.read_only = true}).has_value()) << "a look disturbs nobody";
  }
  device = OpenDevice(path);
  const Again reads(*device, false);
  device.reset();
  EXPECT_NE(OpenDevice(path), nullptr) << "readers keep nobody out";
}

TEST(FileDeviceTest, WriterDescriptorsBlockTheNextOpen) {
  const ScratchFile file(kFileSize);
  ExpectWritersKeepTheNextOpenOut(file.path());
}

TEST(FileDeviceTest, AWriterExistsAsLongAsACopyOfItsDescriptor) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path());
  const Again other(*device, true, 8);
  int copy = -1;
  {
    const Again writes(*device, true, 7);
    copy = dup(writes.get());
  }
  EXPECT_TRUE(device->HasWriter(7).value());
  EXPECT_EQ(close(copy), 0);
  EXPECT_FALSE(device->HasWriter(7).value());
  EXPECT_TRUE(device->HasWriter(8).value());
  EXPECT_FALSE(device->HasWriter(9).value());
}

TEST(FileDeviceTest, AReadOnlyDeviceHasNoDescriptorForWriters) {
  const ScratchFile file(kFileSize);
  const auto device = OpenDevice(file.path(), {.read_only = true});
  EXPECT_EQ(device->OpenAgain(true).error().code, ErrorCode::kReadOnly);
  const Again reads(*device, false);
}

TEST_F(FileDeviceBlockDeviceTest, WriterDescriptorsBlockTheNextOpen) { ExpectWritersKeepTheNextOpenOut(path()); }

}  // namespace
}  // namespace weightfs

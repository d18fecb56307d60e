// SPDX-License-Identifier: Apache-2.0
// GPU memory, on machines without a GPU (tests/support/fake_gpu): accessing it as host memory crashes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "client/gpu/gpu.h"
#include "client/handle.h"
#include "common/unique_fd.h"
#include "common/units.h"
#include "tests/unit/client/device_bytes.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using std::chrono_literals::operator""ms;
using testing::HasSubstr;

struct Way {
  std::string name;
  GpuMode mode;
  unsigned kinds;
  HandleOptions options;
  bool by_cufile;
};

class GpuWayTest : public GpuTest, public testing::WithParamInterface<Way> {
 protected:
  GpuWayTest() { fake_gpu_set_kinds(GetParam().kinds); }
  static std::unique_ptr<Handle> Make() {
    HandleOptions options = GetParam().options;
    options.gpu = GetParam().mode;
    return std::move(Handle::Create(options).value());
  }
};

std::string NameOf(const testing::TestParamInfo<Way>& info) { return info.param.name; }

const HandleOptions kSmallBlocks{65536, 8, false, true, 1};
const HandleOptions kThreads{65536, 8, false, false, 3};
const HandleOptions kTiny{4096, 2, true, false, 2};

INSTANTIATE_TEST_SUITE_P(Ways, GpuWayTest,
                         testing::Values(Way{"OnDemand", GpuMode::kOnDemand, 0, {}, false},
                                         Way{"Bounce", GpuMode::kBounce, 0, kSmallBlocks, false},
                                         Way{"BounceThreads", GpuMode::kBounce, 0, kThreads, false},
                                         Way{"BounceTiny", GpuMode::kBounce, 0, kTiny, false},
                                         Way{"AutoBounce", GpuMode::kAuto, 0, kSmallBlocks, false},
                                         Way{"AutoCufile", GpuMode::kAuto, kEverywhere, kSmallBlocks, true},
                                         Way{"Cufile", GpuMode::kCufile, 0, kThreads, true},
                                         Way{"CufileTiny", GpuMode::kCufile, 0, kTiny, true}),
                         NameOf);

TEST_P(GpuWayTest, AReadStartedDuringAnAtomicWriteReadsItsFile) {
  const auto handle = Make();
  Bytes bytes = RandomBytes(300'000, 1);
  const DeviceBytes target(bytes.size());
  StandingWrite standing(*handle, folder_ / "new", bytes, std::nullopt, true);
  const auto read = handle->StartRead(folder_ / "new", target.View());
  ASSERT_TRUE(read.has_value()) << read.error().what;
  standing.LetGo();
  EXPECT_EQ(handle->Wait().count, 2U);
  EXPECT_TRUE(target.Get() == bytes);
}

TEST_P(GpuWayTest, EverySizeAndOffsetArrivesToTheLastByteAndNoFurther) {
  const auto handle = Make();
  unsigned seed = 0;
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{4096}, size_t{65536}, size_t{65537}, size_t{300'001},
                            size_t{1 << 20}, size_t{2'500'000}}) {
    for (const size_t lead : {size_t{0}, size_t{3}, size_t{512}}) {
      for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{70'000}}) {
        SCOPED_TRACE(fmt::format("size {} memory +{} offset {}", size, lead, offset));
        const Bytes before = RandomBytes(offset + size + 5000, 7);
        WriteFile(folder_ / "file", before);
        const Bytes bytes = RandomBytes(lead + size + 10, ++seed);
        const DeviceBytes memory(bytes);
        ASSERT_TRUE(handle->Write(folder_ / "file", memory.Part(lead, size), {.offset = offset}).has_value());
        Bytes expected = before;
        std::copy_n(bytes.begin() + static_cast<long>(lead), size, expected.begin() + static_cast<long>(offset));
        ASSERT_EQ(ReadFile(folder_ / "file"), expected);

        const Bytes other = RandomBytes(bytes.size(), ++seed);
        memory.Set(other);
        ASSERT_TRUE(handle->Read(folder_ / "file", memory.Part(lead, size), {.offset = offset}).has_value());
        Bytes read = other;
        std::copy_n(bytes.begin() + static_cast<long>(lead), size, read.begin() + static_cast<long>(lead));
        ASSERT_EQ(memory.Get(), read);
      }
    }
  }
  const auto counts = Counts();
  const bool fake_used = GetParam().by_cufile && RealCufile() == nullptr;
  EXPECT_EQ(counts.cufile_reads > 0 && counts.cufile_writes > 0, fake_used);
  const auto facts = handle->gpu().value();
  EXPECT_EQ(facts.mode, GetParam().by_cufile ? GpuMode::kCufile : GpuMode::kBounce);
  EXPECT_EQ(facts.cufile_bytes > 0, GetParam().by_cufile);
  EXPECT_GT(facts.bounce_bytes, 0U);  // at least the partial blocks
  EXPECT_EQ(facts.name, "Fake GPU 0");
  EXPECT_EQ(facts.cuda, "13.0");
}

TEST_P(GpuWayTest, AsynchronousOperationsAllArriveAndAreCounted) {
  const auto handle = Make();
  std::vector<std::unique_ptr<DeviceBytes>> memories;
  for (unsigned i = 0; i < 6; ++i) {
    memories.push_back(std::make_unique<DeviceBytes>(RandomBytes(400'000 + i, i)));
    ASSERT_TRUE(handle->StartWrite(folder_ / std::to_string(i), memories[i]->View(), {.durable = i == 0}).has_value());
  }
  EXPECT_EQ(handle->Wait().count, 6U);
  for (const auto& memory : memories) memory->Set(Bytes(400'000));
  std::vector<std::shared_ptr<Operation>> kept;
  for (unsigned i = 0; i < 6; ++i) {
    kept.push_back(handle->StartRead(folder_ / std::to_string(i), memories[i]->View()).value());
  }
  EXPECT_EQ(handle->Wait().count, 6U);
  for (unsigned i = 0; i < 6; ++i) {
    EXPECT_EQ(memories[i]->Get(), RandomBytes(400'000 + i, i));
    EXPECT_EQ(kept[i]->transferred(), 400'000U + i);
  }
}

TEST_P(GpuWayTest, HostMemoryIsTransferredWithoutTheGpu) {
  const auto handle = Make();
  Bytes bytes = RandomBytes(300'000);
  ASSERT_TRUE(handle->Write(folder_ / "file", MemoryView(std::span<std::byte>(bytes))).has_value());
  EXPECT_EQ(ReadFile(folder_ / "file"), bytes);
  const auto counts = Counts();
  EXPECT_EQ(counts.copies_to_host + counts.copies_to_gpu + counts.cufile_writes, 0U);
}

TEST_P(GpuWayTest, AWriteWaitsForEarlierWorkOfTheStream) {
  const auto handle = Make();
  const DeviceBytes memory(RandomBytes(300'001, 1));
  const Bytes later = RandomBytes(300'001, 2);
  fake_gpu_hold_default_stream(0, memory.address(), later.data(), later.size());
  const auto write = handle->StartWrite(folder_ / "file", memory.View()).value();
  // Other operations do not wait for it.
  Bytes host = RandomBytes(100'000, 3);
  EXPECT_TRUE(handle->StartWrite(folder_ / "host", MemoryView(std::span<std::byte>(host))).value()->Wait(60'000ms));
  const DeviceBytes other(RandomBytes(100'000, 4));
  EXPECT_TRUE(handle->StartWrite(folder_ / "other", other.View({})).value()->Wait(60'000ms));
  EXPECT_EQ(ReadFile(folder_ / "other"), other.Get());
  EXPECT_FALSE(write->done());
  fake_gpu_release();
  ASSERT_TRUE(write->Wait());
  ASSERT_FALSE(write->error());
  EXPECT_EQ(ReadFile(folder_ / "file"), later);
}

TEST_P(GpuWayTest, AReadWaitsForEarlierWorkOfTheStream) {
  const auto handle = Make();
  WriteFile(folder_ / "file", RandomBytes(300'001, 1));
  const DeviceBytes memory(300'001);
  const Bytes earlier = RandomBytes(300'001, 2);
  fake_gpu_hold_default_stream(0, memory.address(), earlier.data(), earlier.size());
  const auto read = handle->StartRead(folder_ / "file", memory.View()).value();
  fake_gpu_release();
  ASSERT_TRUE(read->Wait());
  ASSERT_FALSE(read->error());
  EXPECT_EQ(memory.Get(), RandomBytes(300'001, 1));
}

TEST_P(GpuWayTest, AHandleMayBeDestroyedWithOperationsUnderWay) {
  const DeviceBytes memory(RandomBytes(2'000'000));
  const DeviceBytes target(2'000'000);
  WriteFile(folder_ / "source", RandomBytes(2'000'000, 5));
  for (int i = 0; i < 5; ++i) {
    const auto handle = Make();
    for (int j = 0; j < 3; ++j) {
      ASSERT_TRUE(handle->StartWrite(folder_ / std::to_string(j), memory.View()).has_value());
      ASSERT_TRUE(handle->StartRead(folder_ / "source", target.View()).has_value());
    }
  }
}

TEST_P(GpuWayTest, ACanceledOperationEndsAndLeavesNoFile) {
  const auto handle = Make();
  const DeviceBytes memory(RandomBytes(3'000'000));
  const Bytes later(10);
  fake_gpu_hold_default_stream(0, memory.address(), later.data(), later.size());
  const auto write = handle->StartWrite(folder_ / "file", memory.View()).value();
  EXPECT_TRUE(write->Cancel());
  EXPECT_TRUE(write->Wait(60'000ms));
  EXPECT_TRUE(write->cancelled());
  EXPECT_EQ(folder_.entries(), 0U);
  fake_gpu_release();
}

TEST_P(GpuWayTest, AReadPastTheEndFails) {
  const auto handle = Make();
  WriteFile(folder_ / "file", RandomBytes(100'000));
  const DeviceBytes memory(100'001);
  EXPECT_EQ(handle->Read(folder_ / "file", memory.View()).error().error_number(), ENODATA);
}

TEST_P(GpuWayTest, AnEmptyTensorIsAnEmptyFile) {
  const auto handle = Make();
  ASSERT_TRUE(handle->Write(folder_ / "file", MemoryView::OnDevice(0, 0, kDefaultStream)).has_value());
  EXPECT_EQ(ReadFile(folder_ / "file").size(), 0U);
  EXPECT_TRUE(handle->Read(folder_ / "file", MemoryView::OnDevice(0, 0, kDefaultStream)).has_value());
}

TEST_P(GpuWayTest, MemoryOfNoGpuIsRefusedBeforeAnyFileChanges) {
  const auto handle = Make();
  Bytes host(100'000);
  const auto view = MemoryView::OnDevice(reinterpret_cast<uintptr_t>(host.data()), host.size(), kDefaultStream);
  const auto refused = handle->Write(folder_ / "file", view);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EINVAL);
  EXPECT_THAT(refused.error().what, HasSubstr("no memory of a GPU"));
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_P(GpuWayTest, TwoGpusTransferTheirOwnMemory) {
  fake_gpu_set_devices(2);
  const auto handle = Make();
  const DeviceBytes first(RandomBytes(200'000, 1), 0);
  const DeviceBytes second(RandomBytes(200'000, 2), 1);
  ASSERT_TRUE(handle->StartWrite(folder_ / "first", first.View()).has_value());
  ASSERT_TRUE(handle->StartWrite(folder_ / "second", second.View()).has_value());
  EXPECT_EQ(handle->Wait().count, 2U);
  EXPECT_EQ(ReadFile(folder_ / "first"), first.Get());
  EXPECT_EQ(ReadFile(folder_ / "second"), second.Get());
}

TEST_P(GpuWayTest, PinnedMemoryIsTransferredByItsBase) {
  const auto handle = Make();
  const DeviceBytes memory(RandomBytes(600'000));
  ASSERT_TRUE(handle->PinDevice(memory.View()).has_value());
  EXPECT_EQ(handle->PinDevice(memory.View()).error().error_number(), EEXIST);
  EXPECT_TRUE(handle->IsDevicePinned(memory.Part(1000, 599'000)));
  EXPECT_FALSE(handle->IsDevicePinned(memory.Part(1000, 599'001)));
  const bool fake_used = GetParam().by_cufile && RealCufile() == nullptr;
  EXPECT_EQ(Counts().pins, fake_used ? 1U : 0U);
  ASSERT_TRUE(handle->Write(folder_ / "file", memory.Part(4096, 500'000)).has_value());
  const Bytes all = memory.Get();
  EXPECT_EQ(ReadFile(folder_ / "file"), Bytes(all.begin() + 4096, all.begin() + 504'096));
  EXPECT_EQ(Counts().pinned_transfers > 0, fake_used);
  EXPECT_TRUE(handle->UnpinDevice(memory.address()));
  EXPECT_FALSE(handle->UnpinDevice(memory.address()));
  EXPECT_FALSE(handle->IsDevicePinned(memory.View()));
  EXPECT_EQ(Counts().pins, 0U);
  ASSERT_TRUE(handle->PinDevice(memory.View()).has_value());  // and the destructor of the handle unpins it
}

TEST_P(GpuWayTest, CopyOutGivesTheHostTheBytes) {
  const auto handle = Make();
  const DeviceBytes memory(RandomBytes(100'000));
  Bytes host(100'000);
  ASSERT_TRUE(handle->CopyOut(memory.View(), host).has_value());
  EXPECT_EQ(host, memory.Get());
}

// --- The choice of the transfer path, and its report ---

TEST_F(GpuTest, WithoutAGpuTheHandleIsRefusedWithTheReason) {
  for (const GpuMode mode : {GpuMode::kAuto, GpuMode::kCufile, GpuMode::kBounce}) {
    fake_gpu_set_devices(0);
    auto refused = Handle::Create({.gpu = mode});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().error_number(), ENODEV);
    EXPECT_THAT(refused.error().what, HasSubstr("no GPU to use"));
    fake_gpu_set_devices(1);
    fake_gpu_fail("cuInit", 0, 1, 100);
    EXPECT_EQ(Handle::Create({.gpu = mode}).error().error_number(), ENODEV);
    setenv("WEIGHTFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
    refused = Handle::Create({.gpu = mode});
    EXPECT_EQ(refused.error().error_number(), ENODEV);
    EXPECT_THAT(refused.error().what, HasSubstr("/nowhere/libcuda.so.1"));
    setenv("WEIGHTFS_CUDA_LIBRARY", FAKE_CUDA, 1);
  }
  setenv("WEIGHTFS_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
  const auto handle = Make(GpuMode::kOnDemand);
  EXPECT_FALSE(handle->gpu());
  EXPECT_EQ(handle->Write(folder_ / "file", MemoryView::OnDevice(4096, 10, {})).error().error_number(), ENODEV);
  EXPECT_EQ(folder_.entries(), 0U);
}

TEST_F(GpuTest, AutoReportsWhyItUsesBounceBuffers) {
  EXPECT_THAT(Make(GpuMode::kAuto)->gpu()->why, HasSubstr("cuFile 1.20 would work in compatibility mode"));
  setenv("WEIGHTFS_CUFILE_LIBRARY", "/nowhere/libcufile.so.0", 1);
  EXPECT_THAT(Make(GpuMode::kAuto)->gpu()->why, HasSubstr("/nowhere/libcufile.so.0"));
  const auto refused = Handle::Create({.gpu = GpuMode::kCufile});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), ENOENT);
  setenv("WEIGHTFS_CUFILE_LIBRARY", FAKE_CUFILE, 1);
  fake_gpu_fail("cuFileDriverOpen", 0, 1, 5007);
  EXPECT_THAT(Make(GpuMode::kAuto)->gpu()->why, HasSubstr("not supported on this platform"));
  fake_gpu_fail("cuFileDriverOpen", 0, 1, 5007);
  EXPECT_EQ(Handle::Create({.gpu = GpuMode::kCufile}).error().error_number(), EOPNOTSUPP);
  // Another part of the program has opened the driver.
  fake_gpu_set_kinds(kNvme);
  fake_gpu_fail("cuFileDriverOpen", 0, 1, 5026);
  EXPECT_EQ(Make(GpuMode::kAuto)->gpu()->mode, GpuMode::kCufile);
}

TEST_F(GpuTest, CufileIsNotOpenedWhereItWouldNotReturn) {
  fake_gpu_set_kinds(kEverywhere);
  std::ofstream(folder_ / "modules") << "ext4 1 0 - Live\nnvidia_fs 262144 0 - Live 0x0000000000000000 (OE)\n";
  const std::vector<std::pair<std::string, std::string>> states{
      {folder_ / "missing", folder_ / "missing"}, {folder_ / "modules", "/dev/nvidia-fs* is missing"}};
  for (const auto& [modules, reason] : states) {
    setenv("WEIGHTFS_PROC_MODULES", modules.c_str(), 1);
    const auto refused = Handle::Create({.gpu = GpuMode::kCufile});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().error_number(), EOPNOTSUPP);
    EXPECT_THAT(refused.error().what, HasSubstr(reason));
    const auto handle = Make(GpuMode::kAuto);
    EXPECT_EQ(handle->gpu()->mode, GpuMode::kBounce);
    EXPECT_THAT(handle->gpu()->why, HasSubstr(reason));
  }
}

TEST_F(GpuTest, ARefusedFileIsNamedWithItsCause) {
  const DeviceBytes memory(RandomBytes(300'000));
  const auto handle = Make(GpuMode::kCufile);
  const Folder in_memory("/dev/shm");
  // The fake is of version 1.20, which takes every filesystem.
  fake_gpu_fail("cuFileHandleRegister", 0, 1, 5030);
  auto refused = handle->Write(in_memory / "file", memory.View());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EOPNOTSUPP);
  const bool udev = std::filesystem::exists("/run/udev/data");
  EXPECT_THAT(refused.error().what, HasSubstr(udev ? "cufile.log" : "/run/udev is missing"));
  EXPECT_THAT(refused.error().what, HasSubstr("cuFile error 5030"));
}

TEST_F(GpuTest, CufileTakesFilesThatExistAndDescriptorsWithAnyFlags) {
  const auto handle = Make(GpuMode::kCufile);
  const DeviceBytes memory(RandomBytes(300'000, 1));
  WriteFile(folder_ / "file", RandomBytes(300'000, 2));
  ASSERT_TRUE(handle->Write(folder_ / "file", memory.View()).has_value());
  for (const int flags : {0, O_APPEND, O_NONBLOCK, O_NOFOLLOW, O_NONBLOCK | O_APPEND | O_NOFOLLOW}) {
    SCOPED_TRACE(flags);
    const UniqueFd descriptor(open((folder_ / "file").c_str(), O_RDWR | O_DIRECT | flags));
    const DeviceBytes target(300'000);
    // Two at once have different descriptors of their own.
    const DeviceBytes other(300'000);
    const auto second = handle->StartRead(descriptor.get(), other.View());
    const auto read = handle->Read(descriptor.get(), target.View());
    ASSERT_TRUE(read.has_value()) << read.error().what;
    EXPECT_EQ(handle->Wait().errors.size(), 0U);
    EXPECT_TRUE(target.Get() == memory.Get() && other.Get() == memory.Get());
    EXPECT_EQ(fcntl(descriptor.get(), F_GETFL) & (O_APPEND | O_NONBLOCK), flags & (O_APPEND | O_NONBLOCK));
  }
  const UniqueFd unnamed(open((folder_ / ".").c_str(), O_RDWR | O_DIRECT | O_TMPFILE, 0600));
  ASSERT_TRUE(unnamed) << std::strerror(errno);
  ASSERT_TRUE(handle->Write(unnamed.get(), memory.View()).has_value());
  const DeviceBytes target(300'000);
  ASSERT_TRUE(handle->Read(unnamed.get(), target.View()).has_value());
  EXPECT_TRUE(target.Get() == memory.Get());
}

TEST_P(GpuWayTest, TransfersGoOnWhileAnotherThreadCapturesAGraph) {
  const auto handle = Make();
  const DeviceBytes memory(RandomBytes(1'000'000));
  fake_gpu_capture(77);
  ASSERT_TRUE(handle->Write(folder_ / "file", memory.View()).has_value());
  const DeviceBytes target(1'000'000);
  ASSERT_TRUE(handle->Read(folder_ / "file", target.View()).has_value());
  EXPECT_TRUE(target.Get() == memory.Get());
  // The tensor's own stream is captured.
  fake_gpu_capture(kDefaultStream);
  const auto refused = handle->Write(folder_ / "other", memory.View());
  fake_gpu_end_capture();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EINVAL);
  EXPECT_THAT(refused.error().what, HasSubstr("CUDA graph"));
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(GpuTest, AutoReportsTheFirstFileThatCufileRefuses) {
  const DeviceBytes memory(RandomBytes(300'000));
  fake_gpu_set_kinds(kEverywhere);
  std::vector<std::string> told;
  const auto handle = std::move(
      Handle::Create({.gpu = GpuMode::kAuto, .on_gpu_refusal = [&](const std::string& why) { told.push_back(why); }})
          .value());
  ASSERT_TRUE(handle->Write(folder_ / "taken", memory.View()).has_value());
  EXPECT_EQ(handle->gpu()->refusal, "");
  fake_gpu_fail("cuFileHandleRegister", 0, 2, 5018);
  ASSERT_TRUE(handle->Write(folder_ / "first", memory.View()).has_value());
  ASSERT_TRUE(handle->Write(folder_ / "second", memory.View()).has_value());
  EXPECT_THAT(handle->gpu()->refusal, HasSubstr(folder_ / "first: "));
  EXPECT_THAT(handle->gpu()->refusal, HasSubstr("cuFile error 5018"));
  EXPECT_EQ(told, std::vector{handle->gpu()->refusal});
}

TEST_F(GpuTest, AutoUsesBounceBuffersForFilesThatCufileRefuses) {
  const DeviceBytes memory(RandomBytes(300'000));
  fake_gpu_set_kinds(kEverywhere);
  fake_gpu_fail("cuFileHandleRegister", 0, 1, 5018);
  ASSERT_TRUE(Make(GpuMode::kAuto)->Write(folder_ / "file", memory.View()).has_value());
  EXPECT_EQ(ReadFile(folder_ / "file"), memory.Get());
  // A filesystem of a kind without direct access.
  fake_gpu_set_kinds(kNvme);
  const auto handle = Make(GpuMode::kAuto);
  EXPECT_EQ(handle->gpu()->mode, GpuMode::kCufile);
  const Folder in_memory("/dev/shm");
  ASSERT_TRUE(handle->Write(in_memory / "file", memory.View()).has_value());
  EXPECT_EQ(ReadFile(in_memory / "file"), memory.Get());
  EXPECT_EQ(Counts().cufile_writes, 0U);
  EXPECT_THAT(handle->gpu()->refusal, HasSubstr("only through host memory"));
}

TEST_F(GpuTest, ForcingAnUnavailableCufileIsAnError) {
  const auto handle = Make(GpuMode::kCufile);
  const DeviceBytes memory(RandomBytes(300'000));
  fake_gpu_fail("cuFileHandleRegister", 0, 1, 5018);
  const auto refused = handle->Write(folder_ / "file", memory.View());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().error_number(), EOPNOTSUPP);
  EXPECT_THAT(refused.error().what, HasSubstr("cuFile error 5018"));
  // A descriptor without O_DIRECT.
  const int buffered = open((folder_ / "buffered").c_str(), O_RDWR | O_CREAT, 0600);
  const auto not_direct = handle->Write(buffered, memory.View());
  close(buffered);
  ASSERT_FALSE(not_direct.has_value());
  EXPECT_EQ(not_direct.error().error_number(), EOPNOTSUPP);
  EXPECT_THAT(not_direct.error().what, HasSubstr("direct I/O"));
}

// --- Failures during transfers ---

TEST_F(GpuTest, ShortTransfersOfCufileAreContinued) {
  const auto handle = Make(GpuMode::kCufile);
  const DeviceBytes memory(RandomBytes(500'000));
  fake_gpu_limit_transfers(10'000);
  ASSERT_TRUE(handle->Write(folder_ / "file", memory.View()).has_value());
  EXPECT_EQ(ReadFile(folder_ / "file"), memory.Get());
  const DeviceBytes target(500'000);
  ASSERT_TRUE(handle->Read(folder_ / "file", target.View()).has_value());
  EXPECT_EQ(target.Get(), memory.Get());
}

struct Fault {
  std::string function;
  GpuMode mode;
  bool read;
  int status;
  int error_number;
  std::string said;
};

TEST_F(GpuTest, EachFailureIsReportedOnceWithItsReason) {
  const std::vector<Fault> faults{
      {"cuFileRead", GpuMode::kCufile, true, 5008, EOPNOTSUPP, "cuFile error 5008"},
      {"cuFileRead", GpuMode::kCufile, true, -1, EIO, "cuFileRead: Input/output error"},
      {"cuFileRead", GpuMode::kCufile, true, -ENOSPC, ENOSPC, "No space left"},
      {"cuFileWrite", GpuMode::kCufile, false, 5030, EIO, "cuFile error 5030"},
      {"cuFileWrite", GpuMode::kCufile, false, -1, EIO, "cuFileWrite: Input/output error"},
      {"cuFileHandleRegister", GpuMode::kCufile, false, 5025, EACCES, "permission denied"},
      {"cuMemcpyHtoDAsync", GpuMode::kBounce, true, 700, EIO, "cannot copy to the GPU"},
      {"cuMemcpyDtoHAsync", GpuMode::kBounce, false, 700, EIO, "CUDA error 700"},
      {"cuMemHostRegister", GpuMode::kBounce, true, 2, ENOMEM, "cannot lock bounce buffers"},
      {"cuMemHostRegister", GpuMode::kBounce, false, 2, ENOMEM, "cannot lock bounce buffers"},
      {"cuEventQuery", GpuMode::kBounce, true, 700, EIO, "work of the GPU failed"},
      {"cuEventQuery", GpuMode::kBounce, false, 700, EIO, "work of the GPU failed"},
      {"cuStreamCreate", GpuMode::kBounce, true, 2, ENOMEM, "cannot make a stream"},
      {"cuEventCreate", GpuMode::kBounce, true, 2, ENOMEM, "cannot make an event"},
      {"cuEventRecord", GpuMode::kBounce, true, 400, EIO, "cannot follow the tensor's stream"},
      {"cuDevicePrimaryCtxRetain", GpuMode::kBounce, true, 2, ENOMEM, "cannot use the GPU's context"},
      {"cuCtxPushCurrent", GpuMode::kBounce, true, 201, EIO, "cannot use the GPU's context"},
  };
  for (const Fault& fault : faults) {
    for (const int after : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} {} after {}", fault.function, fault.status, after));
      fake_gpu_reset();
      const auto handle = Make(fault.mode);
      const DeviceBytes memory(RandomBytes(1'000'000));
      WriteFile(folder_ / "source", RandomBytes(1'000'000));
      fake_gpu_fail(fault.function.c_str(), after, 1, fault.status);
      const auto result =
          fault.read ? handle->Read(folder_ / "source", memory.View()) : handle->Write(folder_ / "new", memory.View());
      // A function that is called only once per process fails only the first time.
      if (after == 0 || !result.has_value()) {
        ASSERT_FALSE(result.has_value());
        if (after == 0) {
          EXPECT_THAT(result.error().what, HasSubstr(fault.said));
          EXPECT_EQ(result.error().error_number(), fault.error_number);
        }
        EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
      }
      std::filesystem::remove(folder_ / "new");
      // The handle stays usable.
      fake_gpu_fail(fault.function.c_str(), 0, 0, 0);
      ASSERT_TRUE(handle->Write(folder_ / "new", memory.View()).has_value());
      EXPECT_EQ(ReadFile(folder_ / "new"), memory.Get());
      std::filesystem::remove(folder_ / "new");
    }
  }
}

TEST_F(GpuTest, AFailedCopyFailsItsOperation) {
  for (const bool read : {true, false}) {
    const auto handle = Make(GpuMode::kBounce, 2);
    const DeviceBytes memory(RandomBytes(1'000'000));
    WriteFile(folder_ / "source", RandomBytes(1'000'000));
    fake_gpu_fail_copy(3, 719);
    const auto result =
        read ? handle->Read(folder_ / "source", memory.View()) : handle->Write(folder_ / "new", memory.View());
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().error_number(), EIO);
    EXPECT_THAT(result.error().what, HasSubstr("CUDA error 719"));
  }
  EXPECT_EQ(folder_.entries(), 1U);
}

TEST_F(GpuTest, CopiesUseLockedMemoryAndOverlap) {
  const auto handle = Make(GpuMode::kBounce);
  const DeviceBytes memory(RandomBytes(4 << 20));
  fake_gpu_await_copies(2);
  ASSERT_TRUE(handle->Write(folder_ / "file", memory.View()).has_value());
  const auto counts = Counts();
  EXPECT_EQ(counts.copies_to_host, 64U);
  EXPECT_EQ(counts.copies_of_unlocked_memory, 0U);
  EXPECT_GT(counts.most_copies_at_once, 1U);
}

}  // namespace
}  // namespace weightfs::client

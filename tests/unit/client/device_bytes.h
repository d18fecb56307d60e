// SPDX-License-Identifier: Apache-2.0
// The fake GPU (tests/support/fake_gpu) for tests of the client: its memory, and a fixture that checks for leaks.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "client/handle.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {

constexpr unsigned kNvme = 1U << 4;  // the bit that cuFile reports for NVMe through nvidia-fs
// Bits for every filesystem that tests may run on: NVMe, SCSI, and those for which the real cuFile has no bit.
constexpr unsigned kEverywhere = kNvme | 1U << 6 | 1U << 31;
constexpr uintptr_t kDefaultStream = 0;

inline FakeGpuCounts Counts() {
  FakeGpuCounts counts{};
  fake_gpu_count(&counts);
  return counts;
}

// Path of NVIDIA's cuFile, which the tests then use instead of the fake; null: not given.
inline const char* RealCufile() { return std::getenv("WEIGHTFS_TEST_CUFILE"); }

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size, int ordinal = 0) : size_(size), address_(fake_gpu_allocate(size, ordinal)) {}
  explicit DeviceBytes(const Bytes& bytes, int ordinal = 0) : DeviceBytes(bytes.size(), ordinal) { Set(bytes); }
  ~DeviceBytes() { fake_gpu_free(address_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint64_t address() const { return address_; }
  void Set(const Bytes& bytes) const { fake_gpu_poke(address_, bytes.data(), bytes.size()); }
  Bytes Get() const {
    Bytes bytes(size_);
    fake_gpu_peek(address_, bytes.data(), size_);
    return bytes;
  }
  MemoryView View(std::optional<uintptr_t> stream = kDefaultStream) const {
    return MemoryView::OnDevice(address_, size_, stream);
  }
  MemoryView Part(size_t at, size_t size) const { return MemoryView::OnDevice(address_ + at, size, kDefaultStream); }

 private:
  const size_t size_;
  const uint64_t address_;
};

// Uses the fake GPU, and checks at the end that none of its objects are left.
class GpuTest : public testing::Test {
 protected:
  GpuTest() {
    setenv("WEIGHTFS_CUDA_LIBRARY", FAKE_CUDA, 1);
    setenv("WEIGHTFS_CUFILE_LIBRARY", RealCufile() != nullptr ? RealCufile() : FAKE_CUFILE, 1);
    if (RealCufile() == nullptr) setenv("WEIGHTFS_PROC_MODULES", "/dev/null", 1);
    fake_gpu_reset();
    // NVIDIA's cuFile looks for GPUs once, when its driver is opened.
    if (RealCufile() != nullptr) fake_gpu_set_devices(2);
  }
  ~GpuTest() override {
    // After every test nothing was misused, and all objects were destroyed with the handles.
    const auto counts = Counts();
    EXPECT_EQ(counts.mistakes, 0U);
    EXPECT_EQ(fake_gpu_context_depth(), 0);
    // NVIDIA's cuFile keeps a context and streams of its own.
    if (RealCufile() != nullptr) return;
    EXPECT_EQ(counts.contexts + counts.streams + counts.events + counts.page_locks + counts.files + counts.pins, 0U);
    fake_gpu_reset();
  }

  static std::unique_ptr<Handle> Make(GpuMode mode, unsigned parallelism = 1) {
    return std::move(
        Handle::Create({.block_size = 65536, .queue_depth = 8, .intra_op_parallelism = parallelism, .gpu = mode})
            .value());
  }

  const Folder folder_;
};

}  // namespace weightfs::client

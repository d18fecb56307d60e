// SPDX-License-Identifier: Apache-2.0
// A target on a file in memory whose behavior the test controls.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/operation_plan.h"
#include "client/target.h"
#include "common/unique_fd.h"
#include "tests/unit/client/files.h"

namespace weightfs::client {

// The test's settings, and a record of the calls. It outlives the target.
struct TargetFacts {
  UniqueFd file{memfd_create("target", MFD_CLOEXEC)};
  DirectAlignment alignment = {.offset = 4096, .memory = 1};
  bool leased = false;
  bool checksums = false;
  uint64_t shift = 0;          // difference between the run's offset on its descriptor and in the file
  uint64_t run = UINT64_MAX;   // maximum length
  int descriptor = -2;         // descriptor of runs; -2: the file's
  bool is_memory = false;      // of runs
  unsigned damaged_reads = 0;  // number of CheckRead calls that still fail

  std::map<uint64_t, Bytes> noted;  // by offset
  std::vector<uint64_t> checked;    // offsets
  std::vector<bool> finished;

  void Fill(const Bytes& bytes) const {
    if (pwrite(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  Bytes Content(size_t size) const {
    Bytes bytes(size);
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(pread(file.get(), bytes.data(), size, 0), 0)));
    return bytes;
  }
};

class FakeTarget final : public Access, public Layout {
 public:
  explicit FakeTarget(TargetFacts& facts) : facts_(facts) {}

  const std::string& path() const override { return path_; }
  const Layout& layout() const override { return *this; }
  Run Locate(uint64_t offset, uint64_t length) const override {
    const int descriptor = facts_.descriptor == -2 ? facts_.file.get() : facts_.descriptor;
    return {descriptor, offset + facts_.shift, std::min(length, facts_.run), facts_.is_memory};
  }
  DirectAlignment alignment() const override { return facts_.alignment; }
  int Buffered(int* error_number) const override {
    if (!facts_.leased) return facts_.file.get();
    *error_number = EOPNOTSUPP;
    return -1;
  }
  Result<uint64_t> Size() const override { return uint64_t{100}; }
  bool leased() const override { return facts_.leased; }
  bool needs_checksums() const override { return facts_.leased || facts_.checksums; }
  void NoteWritten(uint64_t offset, std::span<const std::byte> bytes) const override {
    EXPECT_TRUE(facts_.noted.emplace(offset, Bytes(bytes.begin(), bytes.end())).second) << offset << " came twice";
  }
  Result<void> CheckRead(uint64_t offset, std::span<const std::byte> /*blocks*/, bool /*last*/) const override {
    facts_.checked.push_back(offset);
    if (facts_.damaged_reads == 0) return {};
    --facts_.damaged_reads;
    return Error{ErrorCode::kIo, "damaged"};
  }
  Result<void> Finish(bool success) override {
    facts_.finished.push_back(success);
    return {};
  }

 private:
  TargetFacts& facts_;
  const std::string path_ = "the-file";
};

inline std::shared_ptr<Operation> MakeOperation(TargetFacts& facts, Operation::Direction direction, MemoryView memory,
                                                uint64_t offset = 0, std::shared_ptr<DeviceMemory> device = nullptr) {
  return std::make_shared<Operation>(Operation::Plan{.direction = direction,
                                                     .target = {.access = std::make_unique<FakeTarget>(facts)},
                                                     .memory = std::move(memory),
                                                     .device = std::move(device),
                                                     .offset = offset});
}

}  // namespace weightfs::client

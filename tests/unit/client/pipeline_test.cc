// SPDX-License-Identifier: Apache-2.0
#include "client/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "common/checksum.h"
#include "common/units.h"
#include "tests/unit/client/fake_target.h"
#include "tests/unit/client/operations.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;
using testing::ElementsAre;

constexpr uint64_t kBlock = 4096;

// Device memory that is really host memory, and a lane that ends each phase when it is polled.
class FakeDevice final : public DeviceMemory {
 public:
  explicit FakeDevice(Bytes& bytes) : bytes_(bytes) {}
  Result<bool> Ready() override { return ready; }
  bool direct() const override { return by_cufile; }
  void CountTraffic(bool cufile, uint64_t bytes) const override { (cufile ? cufile_bytes : bounce_bytes) += bytes; }
  void CloseFiles() override { closed = true; }
  std::unique_ptr<DeviceLane> MakeLane(const LaneOptions& options) const override;

  Bytes& bytes_;
  bool ready = true;
  bool by_cufile = false;
  bool closed = false;
  int error_number = 0;  // the result of each phase
  mutable uint64_t cufile_bytes = 0;
  mutable uint64_t bounce_bytes = 0;
  mutable std::vector<Piece::Phase> phases;
};

class FakeLane final : public DeviceLane {
 public:
  FakeLane(const FakeDevice& device, size_t bounces)
      : device_(device), bounces_(BufferPool::Create({.buffer_size = {kBounceSize}, .count = bounces}).value()) {}
  void Start(Piece& piece) override { started_.push_back(&piece); }
  void Poll(std::chrono::microseconds /*wait*/) override {
    for (Piece* piece : std::exchange(started_, {})) {
      device_.phases.push_back(piece->phase);
      std::byte* memory = device_.bytes_.data() + piece->at;
      switch (piece->phase) {
        case Piece::Phase::kCopyOut: std::copy_n(memory, piece->size, piece->bytes().data()); break;
        case Piece::Phase::kCopyIn: std::copy_n(piece->bytes().data(), piece->size, memory); break;
        case Piece::Phase::kTransfer:
          EXPECT_EQ(pread(piece->descriptor, memory, piece->size, static_cast<off_t>(piece->offset)),
                    static_cast<ssize_t>(piece->size));
      }
      ended_.push_back({piece});
      if (device_.error_number != 0) ended_.back().error = Error{ErrorCode{device_.error_number}, "the device"};
    }
  }
  std::optional<Ended> Next() override {
    if (ended_.empty()) return std::nullopt;
    Ended ended = ended_.front();
    ended_.pop_front();
    return ended;
  }
  bool idle() const override { return started_.empty() && ended_.empty(); }
  Result<Buffer> TryBounce(const DeviceMemory&) override { return bounces_->TryAllocate(); }
  Result<void> CopyInNow(const DeviceMemory&, uint64_t at, std::span<const std::byte> host) override {
    std::copy(host.begin(), host.end(), device_.bytes_.begin() + static_cast<long>(at));
    return {};
  }
  Result<void> CopyOutNow(const DeviceMemory&, uint64_t at, std::span<std::byte> host) override {
    std::copy_n(device_.bytes_.begin() + static_cast<long>(at), host.size(), host.begin());
    return {};
  }

 private:
  const FakeDevice& device_;
  const std::unique_ptr<BufferPool> bounces_;
  std::vector<Piece*> started_;
  std::deque<Ended> ended_;
};

std::unique_ptr<DeviceLane> FakeDevice::MakeLane(const LaneOptions& options) const {
  return std::make_unique<FakeLane>(*this, options.bounces);
}

class PipelineTest : public testing::Test {
 protected:
  void Add(const std::shared_ptr<Operation>& operation) {
    operation->SetSlices(1);
    pipeline_->Add(operation, 0, operation->size());
  }
  // What is due runs on this thread.
  void Fill() {
    pipeline_->Fill();
    const auto due = pipeline_->TakeDue();
    for (const auto& operation : due.reports) EXPECT_FALSE(operation->Report());
    for (const auto& operation : due.ends) {
      if (WriteEdges(*operation)) {
        EXPECT_FALSE(operation->Report());
      }
      if (operation->Complete()) operation->RunCallbacks();
    }
  }
  void Drive() {
    for (Fill(); pipeline_->busy(); Fill()) pipeline_->AwaitProgress(std::nullopt);
  }
  std::shared_ptr<Operation> RunToEnd(const std::shared_ptr<Operation>& operation) {
    Add(operation);
    Drive();
    EXPECT_TRUE(operation->done());
    return operation;
  }

  TargetFacts facts_;
  const std::unique_ptr<Pipeline> pipeline_ =
      Pipeline::Create({.handle = {.block_size = 2 * kBlock, .queue_depth = 4}, .bounces = 2, .device = {.bounces = 2}})
          .value();
};

TEST_F(PipelineTest, ManyPiecesMakeOneOperation) {
  Bytes out = RandomBytes(33 * kBlock + 77);
  EXPECT_FALSE(RunToEnd(MakeOperation(facts_, Direction::kWrite, View(out)))->error());
  EXPECT_EQ(facts_.Content(out.size() + 1), out);
  Bytes in(out.size() - 100);
  EXPECT_FALSE(RunToEnd(MakeOperation(facts_, Direction::kRead, View(in), 100))->error());
  EXPECT_TRUE(std::equal(in.begin(), in.end(), out.begin() + 100));
  EXPECT_THAT(facts_.finished, ElementsAre(true, true));
}

TEST_F(PipelineTest, MoreMemoryThanBounceBuffersIsCopiedInTurn) {
  facts_.checksums = true;  // so that each piece is copied
  Bytes out = RandomBytes(33 * kBlock);
  EXPECT_FALSE(RunToEnd(MakeOperation(facts_, Direction::kWrite, View(out)))->error());
  EXPECT_EQ(facts_.Content(out.size()), out);
}

TEST_F(PipelineTest, AnOperationOfNoBytesIsCompleted) {
  Bytes none;
  EXPECT_FALSE(RunToEnd(MakeOperation(facts_, Direction::kRead, View(none)))->error());
}

TEST_F(PipelineTest, CancelDropsPiecesThatAreNotInTheKernel) {
  Bytes out = RandomBytes(64 * kBlock);
  const auto operation = MakeOperation(facts_, Direction::kWrite, View(out));
  Add(operation);
  pipeline_->Cancel();
  Drive();
  EXPECT_TRUE(operation->cancelled());
  EXPECT_EQ(operation->transferred(), 0U);
  EXPECT_THAT(facts_.finished, ElementsAre(false));
}

TEST_F(PipelineTest, ACancelThatIsAcceptedIsTheOutcome) {
  Bytes out = RandomBytes(2 * kBlock);
  const auto operation = MakeOperation(facts_, Direction::kWrite, View(out));
  Add(operation);
  pipeline_->Fill();  // all of it is in the kernel
  EXPECT_TRUE(operation->Cancel());
  Drive();
  EXPECT_TRUE(operation->cancelled());
  EXPECT_THAT(facts_.finished, ElementsAre(false));
}

TEST_F(PipelineTest, DamagedBlocksAreReadAgain) {
  facts_.leased = true;
  facts_.Fill(RandomBytes(kBlock));
  for (const unsigned damaged : {ReadAttempts::kMost - 1, ReadAttempts::kMost}) {
    Bytes in(kBlock);
    facts_.damaged_reads = damaged;
    facts_.checked.clear();
    const auto operation = RunToEnd(MakeOperation(facts_, Direction::kRead, View(in)));
    EXPECT_EQ(facts_.checked, std::vector<uint64_t>(ReadAttempts::kMost, 0));
    EXPECT_EQ(operation->error().has_value(), damaged == ReadAttempts::kMost);
  }
}

TEST_F(PipelineTest, HolesOfALeaseAreZeros) {
  facts_.leased = true;
  facts_.descriptor = -1;
  Bytes in = RandomBytes(40 * kBlock + 3);
  EXPECT_FALSE(RunToEnd(MakeOperation(facts_, Direction::kRead, View(in)))->error());
  EXPECT_EQ(in, Bytes(in.size()));
  EXPECT_TRUE(facts_.checked.empty());
}

TEST_F(PipelineTest, AnOperationCanBeCanceledInTheMiddleOfAHole) {
  facts_.leased = true;
  facts_.descriptor = -1;
  const Bytes before = RandomBytes(size_t{40} << 20);
  Bytes in = before;
  const auto operation = MakeOperation(facts_, Direction::kRead, View(in));
  Add(operation);
  pipeline_->Fill();
  EXPECT_FALSE(operation->done());
  EXPECT_TRUE(operation->Cancel());
  Drive();
  EXPECT_TRUE(operation->cancelled());
  EXPECT_EQ(in.back(), before.back());
}

class DevicePipelineTest : public PipelineTest {
 protected:
  std::shared_ptr<Operation> Make(Direction direction, uint64_t offset = 0) {
    return MakeOperation(facts_, direction, MemoryView::OnDevice(0, bytes_.size(), std::nullopt), offset, device_);
  }
  Bytes bytes_ = RandomBytes(2 * kBlock, 5);
  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>(bytes_);
};

TEST_F(DevicePipelineTest, AWriteIsCopiedOutBeforeItIsTransferred) {
  EXPECT_FALSE(RunToEnd(Make(Direction::kWrite))->error());
  EXPECT_EQ(facts_.Content(bytes_.size()), bytes_);
  EXPECT_THAT(device_->phases, ElementsAre(Piece::Phase::kCopyOut));
  EXPECT_EQ(device_->bounce_bytes, bytes_.size());
  EXPECT_TRUE(device_->closed);
}

TEST_F(DevicePipelineTest, AReadIsCopiedInAfterItWasTransferred) {
  const Bytes content = RandomBytes(2 * kBlock, 6);
  facts_.Fill(content);
  EXPECT_FALSE(RunToEnd(Make(Direction::kRead))->error());
  EXPECT_EQ(bytes_, content);
  EXPECT_THAT(device_->phases, ElementsAre(Piece::Phase::kCopyIn));
}

TEST_F(DevicePipelineTest, CufileTransfersAreNotCopied) {
  const Bytes content = RandomBytes(2 * kBlock, 6);
  facts_.Fill(content);
  device_->by_cufile = true;
  EXPECT_FALSE(RunToEnd(Make(Direction::kRead))->error());
  EXPECT_EQ(bytes_, content);
  EXPECT_THAT(device_->phases, ElementsAre(Piece::Phase::kTransfer));
  EXPECT_EQ(device_->cufile_bytes, bytes_.size());
  EXPECT_EQ(device_->bounce_bytes, 0U);
}

TEST_F(DevicePipelineTest, AnErrorOfTheDeviceFailsTheOperation) {
  device_->error_number = ENODEV;
  const auto operation = RunToEnd(Make(Direction::kWrite));
  EXPECT_EQ(operation->error().value().error_number(), ENODEV);
  EXPECT_THAT(operation->error().value().what, testing::HasSubstr("failed at offset 0: the device"));
}

TEST_F(DevicePipelineTest, AnOperationIsHeldUntilItsTensorIsReady) {
  device_->ready = false;
  const auto held = Make(Direction::kWrite);
  Add(held);
  pipeline_->Fill();
  EXPECT_TRUE(pipeline_->busy());
  // Other operations continue meanwhile.
  Bytes out = RandomBytes(kBlock);
  const auto other = MakeOperation(facts_, Direction::kWrite, View(out), 4 * kBlock);
  Add(other);
  while (!other->done()) {
    Fill();
    pipeline_->AwaitProgress(std::nullopt);
  }
  EXPECT_FALSE(held->done());
  device_->ready = true;
  Drive();
  EXPECT_TRUE(held->done());
  EXPECT_EQ(facts_.Content(bytes_.size()), bytes_);
}

}  // namespace
}  // namespace weightfs::client

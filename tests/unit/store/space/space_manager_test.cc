// SPDX-License-Identifier: Apache-2.0
#include "store/space/space_manager.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

constexpr BlockCount kDevice{16 * kMiB / kBlockSize};
constexpr auto kForever = std::chrono::steady_clock::time_point::max();

class SpaceManagerTest : public ::testing::Test {
 protected:
  explicit SpaceManagerTest(size_t devices = 1)
      : space_(
            SpaceManager::Create(std::vector<BlockRun>(devices, {DeviceBlock{256}, kDevice})).value()) {}

  Result<std::vector<DeviceRun>> Allocate(uint64_t ino, uint64_t first, BlockCount count, bool stream = false) {
    SpaceReservation reservation;
    RETURN_IF_ERROR(space_->Reserve(&reservation, count, /*privileged=*/true));
    SpaceManager::Request request;
    request.ino = InodeId{ino};
    request.first = FileBlock{first};
    request.count = count;
    request.stream = stream;
    return space_->Allocate(request, &reservation);
  }
  BlockCount Reservable() {
    uint64_t low = 0, high = kDevice.value;
    while (low < high) {
      const uint64_t middle = (low + high + 1) / 2;
      SpaceReservation trial;
      if (space_->Reserve(&trial, BlockCount{middle}, /*privileged=*/true))
        low = middle;
      else
        high = middle - 1;
    }
    return {low};
  }

  std::unique_ptr<SpaceManager> space_;
};

TEST_F(SpaceManagerTest, ReservationsNeverExceedWhatIsFree) {
  SpaceReservation first, second;
  EXPECT_TRUE(space_->Reserve(&first, kDevice, /*privileged=*/true));
  EXPECT_EQ(space_->Reserve(&second, BlockCount{1}, /*privileged=*/true).error().code, ErrorCode::kNoSpace);
  first.TrimTo(kDevice - BlockCount{5});
  EXPECT_TRUE(space_->Reserve(&second, BlockCount{5}, /*privileged=*/true));
  second.Absorb(first);
  EXPECT_EQ(second.held(), kDevice);
  EXPECT_EQ(first.held().value, 0U);
}

TEST_F(SpaceManagerTest, SomeBlocksAreHeldBackForOperationsThatFreeSpace) {
  SpaceReservation most, rest;
  uint64_t count = kDevice.value;
  while (!space_->Reserve(&most, BlockCount{count})) --count;
  EXPECT_LT(count, kDevice.value);
  EXPECT_TRUE(space_->Reserve(&rest, kDevice - BlockCount{count}, /*privileged=*/true));
}

TEST_F(SpaceManagerTest, AnAllocationIsPaidFromItsReservation) {
  SpaceReservation reservation;
  ASSERT_TRUE(space_->Reserve(&reservation, BlockCount{100}));
  SpaceManager::Request request;
  request.ino = InodeId{1};
  request.count = BlockCount{60};
  ASSERT_TRUE(space_->Allocate(request, &reservation));
  EXPECT_EQ(reservation.held().value, 40U);
}

TEST_F(SpaceManagerTest, FreedBlocksWaitForTheReadersFromBefore) {
  auto runs = Allocate(1, 0, BlockCount{100}).value();
  const uint64_t epoch = space_->EnterRead();
  space_->Retire(std::move(runs));
  const uint64_t later = space_->EnterRead();
  EXPECT_EQ(Reservable(), kDevice - BlockCount{100});
  space_->LeaveRead(epoch);
  EXPECT_EQ(Reservable(), kDevice) << "a reader from after the commit cannot see them";
  space_->LeaveRead(later);
}

TEST_F(SpaceManagerTest, AReservationAheadTakesBlocksBeforeTheyAreFree) {
  auto runs = Allocate(1, 0, BlockCount{3000}).value();
  SpaceReservation ahead, other;
  EXPECT_EQ(space_->ReserveAhead(&ahead, kDevice, BlockCount{3000}).error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(space_->ReserveAhead(&ahead, BlockCount{3500}, BlockCount{3000}));
  EXPECT_EQ(space_->Reserve(&other, BlockCount{1}, /*privileged=*/true).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(space_->ReserveAhead(&other, BlockCount{600}, {}).error().code, ErrorCode::kAgain);
  EXPECT_TRUE(space_->ReserveAhead(&other, BlockCount{100}, BlockCount{2600}));
  auto waiting = StartUntilBlocked([this] {
    space_->WaitForRetired(BlockCount{600}, {}, /*privileged=*/false, kForever);
    return true;
  });
  EXPECT_FALSE(HasEnded(waiting));
  space_->Retire(std::move(runs));
  EXPECT_TRUE(waiting.get());
  EXPECT_EQ(space_->ReserveAhead(&other, BlockCount{600}, {}).error().code, ErrorCode::kNoSpace);
}

TEST_F(SpaceManagerTest, AReservationAheadWaitsForRetiredBlocksToo) {
  const auto dropped = Allocate(1, 0, BlockCount{100}).value();
  auto retired = Allocate(2, 0, BlockCount{50}).value();
  const BlockCount freed = space_->Unpinned(dropped);
  const uint64_t epoch = space_->EnterRead();
  space_->Retire(std::move(retired));
  BlockCount most = kDevice;
  while (!space_->WouldFit(most, freed, /*privileged=*/false)) most = most - BlockCount{1};
  SpaceReservation ahead;
  EXPECT_EQ(space_->ReserveAhead(&ahead, most + BlockCount{1}, freed).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(space_->ReserveAhead(&ahead, most, freed).error().code, ErrorCode::kAgain) << "a reader holds 50 blocks";
  auto waiting = StartUntilBlocked([&] {
    space_->WaitForRetired(most, freed, /*privileged=*/false, kForever);
    return true;
  });
  EXPECT_FALSE(HasEnded(waiting));
  space_->LeaveRead(epoch);
  EXPECT_TRUE(waiting.get());
  EXPECT_TRUE(space_->ReserveAhead(&ahead, most, freed));
}

TEST_F(SpaceManagerTest, AReservationAheadFailsIfItsBlocksNeverComeFree) {
  const auto runs = Allocate(1, 0, kDevice).value();
  auto ahead = std::make_unique<SpaceReservation>(), other = std::make_unique<SpaceReservation>();
  EXPECT_TRUE(space_->ReserveAhead(ahead.get(), BlockCount{100}, kDevice));
  EXPECT_TRUE(space_->ReserveAhead(other.get(), BlockCount{100}, kDevice));
  auto waiting = StartUntilBlocked([&] {
    EXPECT_EQ(space_->WaitUntilBacked(ahead.get()).error().code, ErrorCode::kIo);
    ahead.reset();
    return true;
  });
  EXPECT_FALSE(HasEnded(waiting)) << "the other one may free blocks";
  auto rest = StartUntilBlocked([this] {
    space_->WaitForRetired(BlockCount{1}, {}, /*privileged=*/true, kForever);
    return true;
  });
  EXPECT_EQ(space_->WaitUntilBacked(other.get()).error().code, ErrorCode::kIo);
  EXPECT_TRUE(waiting.get());
  EXPECT_FALSE(HasEnded(rest));
  other.reset();
  EXPECT_TRUE(rest.get());
}

TEST_F(SpaceManagerTest, AReservationAheadThatIsGivenUpLetsOthersGoOn) {
  const auto runs = Allocate(1, 0, kDevice).value();
  SpaceReservation ahead;
  EXPECT_TRUE(space_->ReserveAhead(&ahead, BlockCount{100}, kDevice));
  auto waiting = StartUntilBlocked([this] {
    space_->WaitForRetired(BlockCount{1}, {}, /*privileged=*/true, kForever);
    return true;
  });
  EXPECT_FALSE(HasEnded(waiting));
  ahead.TrimTo({});
  EXPECT_TRUE(waiting.get());
}

TEST_F(SpaceManagerTest, PinnedBlocksWaitForTheirPin) {
  auto runs = Allocate(1, 0, BlockCount{100}).value();
  {
    const SpacePin pin = space_->Pin(runs);
    space_->Retire(std::move(runs));
    EXPECT_EQ(Reservable(), kDevice - BlockCount{100});
  }
  EXPECT_EQ(Reservable(), kDevice);
}

TEST_F(SpaceManagerTest, ManyRunsArePinnedAndRetiredInStepsAndNoneIsLeftOut) {
  std::vector<DeviceRun> runs;
  for (uint64_t block = 0; block < 2500; ++block) {
    runs.push_back(Allocate(1, block, BlockCount{1}).value().front());
  }
  EXPECT_EQ(space_->Unpinned(runs).value, 2500U);
  {
    const SpacePin pin = space_->Pin(runs);
    EXPECT_EQ(space_->pinned().value, 2500U);
    EXPECT_EQ(space_->Unpinned(runs).value, 0U);
    space_->Retire(runs);
    EXPECT_EQ(space_->waiting().value, 0U);
    EXPECT_EQ(Reservable(), kDevice - BlockCount{2500});
  }
  EXPECT_EQ(space_->pinned().value, 0U);
  EXPECT_EQ(Reservable(), kDevice);
}

TEST_F(SpaceManagerTest, BlocksThatLoseTheirPinWaitForTheReadersFromBefore) {
  auto runs = Allocate(1, 0, BlockCount{100}).value();
  std::optional<SpacePin> pin = space_->Pin(runs);
  const uint64_t epoch = space_->EnterRead();
  space_->Retire(std::move(runs));
  pin.reset();
  EXPECT_EQ(Reservable(), kDevice - BlockCount{100});
  space_->LeaveRead(epoch);
  EXPECT_EQ(Reservable(), kDevice);
}

TEST_F(SpaceManagerTest, TheThreadOfAReaderFreesNoBlocks) {
  auto runs = Allocate(1, 0, BlockCount{100}).value();
  const uint64_t epoch = space_->EnterRead();
  space_->Retire(std::move(runs));
  space_->LeaveRead(epoch);
  EXPECT_EQ(space_->waiting().value, 100U);
  SpaceReservation all;
  EXPECT_TRUE(space_->Reserve(&all, kDevice, /*privileged=*/true)) << "a request that lacks them frees them";
  EXPECT_EQ(space_->waiting().value, 0U);
}

TEST_F(SpaceManagerTest, AWaitForRetiredBlocksDoesNotCountThePinnedOnes) {
  auto pinned = Allocate(1, 0, BlockCount{100}).value(), read = Allocate(2, 0, BlockCount{50}).value();
  const SpacePin pin = space_->Pin(pinned);
  const uint64_t epoch = space_->EnterRead();
  space_->Retire(std::move(pinned));
  space_->Retire(std::move(read));
  const BlockCount most = kDevice - BlockCount{100};
  ASSERT_TRUE(space_->WouldFit(most, {}, /*privileged=*/true));
  ASSERT_FALSE(space_->WouldFit(most + BlockCount{1}, {}, /*privileged=*/true));
  const auto wait = [&](BlockCount blocks) {
    space_->WaitForRetired(blocks, {}, /*privileged=*/true, kForever);
  };
  wait(most - BlockCount{50});
  wait(most + BlockCount{1});
  auto waiting = StartUntilBlocked([&] { wait(most); });
  EXPECT_FALSE(HasEnded(waiting));
  space_->LeaveRead(epoch);
  waiting.get();
  wait(most);
}

TEST_F(SpaceManagerTest, AStreamContinuesInItsPreallocation) {
  const auto first = Allocate(1, 0, BlockCount{256}, true).value();
  const auto other = Allocate(2, 0, BlockCount{256}, true).value();
  const auto second = Allocate(1, 256, BlockCount{256}, true).value();
  EXPECT_EQ(second[0].run.start.value, first[0].run.end().value);
  EXPECT_NE(other[0].run.start.value, first[0].run.end().value);
  space_->ReleaseAllPreallocations();
  EXPECT_EQ(Reservable(), kDevice - BlockCount{768});
}

TEST_F(SpaceManagerTest, SpaceOfAnEndedLeaseIsFreeOnceItsWriterIsGone) {
  bool there = true;
  space_->AskForWriters([&](uint64_t writer) { return writer == 9 && there; });
  SpaceManager::Request request;
  request.ino = InodeId{1};
  request.count = BlockCount{50};
  {
    SpaceReservation reservation;
    ASSERT_TRUE(space_->Reserve(&reservation, request.count));
    BlockReservation grant = space_->ReserveBlocks(request, &reservation).value();
    grant.BeginWrites(9);
    EXPECT_EQ(grant.Take(BlockCount{20}).size(), 1U);
  }
  EXPECT_TRUE(space_->CollectOrphanedReservations());
  EXPECT_EQ(Reservable(), kDevice - BlockCount{50});
  there = false;
  EXPECT_FALSE(space_->CollectOrphanedReservations());
  EXPECT_EQ(Reservable(), kDevice - BlockCount{20});
  EXPECT_EQ(space_->granted().value, 0U);
}

TEST_F(SpaceManagerTest, RunsOutsideTheDeviceOrTakenTwiceAreCorrupt) {
  const DeviceRun run{DeviceId{0}, {DeviceBlock{300}, BlockCount{10}}};
  EXPECT_TRUE(space_->MarkUsed(run));
  EXPECT_FALSE(space_->MarkUsed(run));
  EXPECT_FALSE(space_->MarkUsed({DeviceId{3}, {DeviceBlock{300}, BlockCount{10}}}));
  EXPECT_FALSE(space_->MarkUsed({DeviceId{0}, {DeviceBlock{0}, BlockCount{10}}}));
}

class TwoDevices : public SpaceManagerTest {
 protected:
  TwoDevices() : SpaceManagerTest(2) {}
};

TEST_F(TwoDevices, ConsecutiveStripesLieOnConsecutiveDevices) {
  const auto runs = Allocate(1, 0, BlockCount{16 * kMiB / kBlockSize}).value();
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_NE(runs[0].device, runs[1].device);
}

}  // namespace
}  // namespace weightfs

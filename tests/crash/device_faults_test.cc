// SPDX-License-Identifier: Apache-2.0
// Every fault in turn, under each operation of the short histories:
// - a device lies, by name: a write, read or flush succeeds without doing what it says;
// - a device or the index fails: a write, read or flush returns an error, once or from then on;
// - a device decays: a block changes while the store is closed.
// What the store serves then, live, after a clean end and after a power cut, is right, or an error. After an error that
// was returned, nothing acknowledged is lost.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/log.h"
#include "tests/crash/short_history.h"
#include "tests/support/one_processor.h"

namespace weightfs {
namespace {

using Lie = FaultDevice::Lie;

constexpr std::array<std::pair<Lie, std::string_view>, 8> kLies = {{{Lie::kLostWrite, "lost write"},
                                                                    {Lie::kMisdirectedWrite, "misdirected write"},
                                                                    {Lie::kTornWrite, "torn write"},
                                                                    {Lie::kFlippedWrite, "flipped write"},
                                                                    {Lie::kStaleRead, "stale read"},
                                                                    {Lie::kMisdirectedRead, "misdirected read"},
                                                                    {Lie::kFlippedRead, "flipped read"},
                                                                    {Lie::kLostFlush, "lost flush"}}};

// Reads everything past the caches. `last`: nothing may be older than the last state.
void CheckTree(TestStore& store, const History& history, bool last, size_t* damaged) {
  History::Tree tree;
  ShortHistory::ReadTree(store, &tree, damaged);
  if (testing::Test::HasFatalFailure()) return;
  ASSERT_EQ(last ? history.CheckLast(tree) : history.CheckForWrongBytes(tree), "");
}

class DeviceFaults : public testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }  // the damage is wanted

  struct Totals {
    uint64_t faults = 0, refused = 0, damaged = 0, survived = 0;
  };

  void TearDown() override {
    fmt::print("{} faults; then {} stores refused, {} with unreadable files, {} whole\n", totals_.faults,
               totals_.refused, totals_.damaged, totals_.survived);
  }


  // Runs the operation and the end of the store after `arm`. What it returns says whether the fault has occurred.
  std::unique_ptr<ShortHistory> Run(const ShortHistory::Operation& operation,
                                    const std::function<void(TestStore&)>& arm, bool lies) {
    auto history = std::make_unique<ShortHistory>(ShortHistory::Kind());
    history->ExpectErrors();
    arm(history->store());
    history->Run(operation, Persist::kAll);
    if (lies || history->failed()) {
      if (!lies) StopFailing(history->store());
      size_t damaged = 0;
      CheckTree(history->store(), history->history(), !history->failed(), &damaged);
      EXPECT_TRUE(lies || damaged == 0) << "files cannot be read after the failure";
    }
    ended_ = history->TryToEnd();
    StopFailing(history->store());
    return history;
  }
  static void StopFailing(TestStore& store) {
    store.device().StopFailing();
    store.kv().FailGet(0);
    store.kv().FailSync(0);
    store.kv().FailIterator(0);
  }

  // Returns false if the device did not come to the `nth` operation of the kind.
  bool Tell(const ShortHistory::Operation& operation, Lie lie, uint64_t nth, bool and_later) {
    const auto history =
        Run(operation, [&](TestStore& store) { store.device().StartLying(lie, nth, and_later); },
            /*lies=*/true);
    if (HasFatalFailure() || !history->store().device().has_lied()) return false;
    ++totals_.faults;
    const Journal& journal = history->store().journal();
    const size_t end = journal.size();
    const bool clean = ended_ && !history->failed();
    const CrashOptions written{.device_survival = 1, .kv_survival = 0, .torn = false};
    CheckImage(journal.ImageAt(end, written), history->history(), clean);
    CheckImage(journal.ImageAt(end, {.device_survival = 0, .kv_survival = 0}), history->history(), false);
    CheckImage(journal.ImageAt(end - end / 4, {.seed = nth}), history->history(), false);
    return !HasFatalFailure();
  }

  // Returns false if nothing failed.
  bool Fail(const ShortHistory::Operation& operation, const std::function<void(TestStore&)>& arm) {
    const auto history = Run(operation, arm, /*lies=*/false);
    if (HasFatalFailure() || (ended_ && !history->failed())) return false;
    ++totals_.faults;
    const Journal& journal = history->store().journal();
    const size_t end = journal.size();
    for (const size_t cut : {end, end - end / 4, end / 2}) {
      for (const double survival : {0.0, 0.5, 1.0}) {
        TestStore store(journal.ImageAt(cut, {.seed = cut, .device_survival = survival, .kv_survival = 0}),
                        ShortHistory::Options(1));
        EXPECT_TRUE(store.opened().has_value()) << ToString(store.opened().error());
        if (!store.opened()) return false;
        History::Tree tree;
        ShortHistory::ReadTree(store, &tree);
        EXPECT_EQ(history->history().Check(cut, tree), "") << "cut after event " << cut << " of " << end;
        ++totals_.survived;
        if (HasFailure()) return false;
      }
    }
    return true;
  }

  // `last`: nothing acknowledged may be missing without an error.
  void CheckImage(const CrashImage& image, const History& history, bool last) {
    TestStore store(image, ShortHistory::Options(1));
    size_t damaged = 0;
    if (!store.opened()) {
      ++totals_.refused;
      return;
    }
    if (store->read_only() || store.index_was_ahead()) last = false;
    CheckTree(store, history, last, &damaged);
    ++(damaged > 0 ? totals_.damaged : totals_.survived);
  }

  const OneProcessor pinned_;
  bool ended_ = false;  // Run's store without an error
  Totals totals_;
};

class FaultsUnder : public DeviceFaults, public testing::WithParamInterface<size_t> {};

TEST_P(FaultsUnder, LyingDevicesServeNoWrongBytes) {
  const ShortHistory::Operation& operation = ShortHistory::Operations()[GetParam()];
  for (const auto& [lie, name] : kLies) {
    for (const bool and_later : {false, true}) {
      for (uint64_t nth = 1;; ++nth) {
        SCOPED_TRACE(fmt::format("{}; {} {}{}", operation.name, name, nth,
                                 and_later ? " and later" : ""));
        if (!Tell(operation, lie, nth, and_later)) break;
        if (HasFailure()) return;
      }
      if (HasFailure()) return;
    }
  }
}

TEST_P(FaultsUnder, FailingDevicesLoseNothing) {
  const ShortHistory::Operation& operation = ShortHistory::Operations()[GetParam()];
  using Target = FaultDevice::Target;
  const auto fail_device = [](Target target, bool and_later) {
    return [=](TestStore& store, uint64_t nth) { store.device().Fail(target, {nth, and_later}); };
  };
  std::vector<std::pair<std::string, std::function<void(TestStore&, uint64_t)>>> kinds;
  for (const bool and_later : {false, true}) {
    kinds.emplace_back("read", fail_device(Target::kRead, and_later));
    kinds.emplace_back("write", fail_device(Target::kWrite, and_later));
    kinds.emplace_back("flush", fail_device(Target::kFlush, and_later));
    kinds.emplace_back("synchronous write", fail_device(Target::kSynchronousWrite, and_later));
  }
  kinds.emplace_back("sync of the index", [](TestStore& store, uint64_t nth) { store.kv().FailSync(nth); });
  kinds.emplace_back("read of the index", [](TestStore& store, uint64_t nth) { store.kv().FailGet(nth); });
  kinds.emplace_back("scan of the index", [](TestStore& store, uint64_t nth) { store.kv().FailIterator(nth); });
  for (const auto& [name, arm] : kinds) {
    for (uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(fmt::format("{}; {} {} fails", operation.name, name, nth));
      if (!Fail(operation, [&, &fail = arm](TestStore& store) { fail(store, nth); })) break;
    }
    if (HasFailure()) return;
  }
}

// Each block of the data, the log, its checkpoint and its roots.
class DecayedDevices : public DeviceFaults {
 protected:
  using Change = std::function<void(std::span<std::byte> block, std::span<const std::byte> other)>;

  void CheckEach(const Change& change) {
    ShortHistory history(ShortHistory::Kind{});
    for (const char* name : {"create A/new", "overwrite foo", "setxattr foo", "save_many foo new", "write A/bar",
                             "rename A D", "unlink bar"}) {
      const auto& operations = ShortHistory::Operations();
      history.Run(*std::ranges::find(operations, name, &ShortHistory::Operation::name), Persist::kAll);
    }
    history.End();
    const Journal& journal = history.store().journal();
    const CrashImage whole = journal.ImageAt(journal.size(), {.device_survival = 1, .kv_survival = 0, .torn = false});
    const std::vector<uint64_t> blocks = whole.devices[0].blocks();
    for (size_t index = 0; index < blocks.size() && !HasFailure(); ++index) {
      for (const bool has_index : {true, false}) {
        SCOPED_TRACE(fmt::format("block {}, {} the index", blocks[index], has_index ? "with" : "without"));
        CrashImage image = whole;
        if (!has_index) image.kv.clear();
        std::vector<std::byte> block(kBlockSize), other(kBlockSize);
        image.devices[0].Read(ByteOffset{blocks[index] * kBlockSize}, block);
        image.devices[0].Read(ByteOffset{blocks[(index + 1) % blocks.size()] * kBlockSize}, other);
        change(block, other);
        image.devices[0].Write(ByteOffset{blocks[index] * kBlockSize}, block);
        ++totals_.faults;
        CheckImage(image, history.history(), true);
      }
    }
    EXPECT_GT(totals_.damaged, 0U);
    EXPECT_GT(totals_.survived, 0U);
  }
};

TEST_F(DecayedDevices, WithAFlippedBitServeNoWrongBytes) {
  CheckEach([](auto block, auto) { block[1234] ^= std::byte{1}; });
}
TEST_F(DecayedDevices, WithAnEmptyBlockServeNoWrongBytes) {
  CheckEach([](auto block, auto) { std::ranges::fill(block, std::byte{0}); });
}
TEST_F(DecayedDevices, WithABlockOfElsewhereServeNoWrongBytes) {
  CheckEach([](auto block, auto other) { std::ranges::copy(other, block.begin()); });
}

std::string NameOf(const testing::TestParamInfo<size_t>& parameter) {
  return ShortHistory::Operations()[parameter.param].Word();
}

INSTANTIATE_TEST_SUITE_P(Each, FaultsUnder, testing::Range(size_t{0}, ShortHistory::Operations().size()), NameOf);

}  // namespace
}  // namespace weightfs

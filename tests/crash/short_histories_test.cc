// SPDX-License-Identifier: Apache-2.0
// Runs every history of one and of two operations, followed by every way to make it durable, with files closed and with
// files that stay open. Cuts the power after every event. What is left must be a state that docs/GUARANTEES.md
// allows: tests/crash/history.h has the rules.
//
// WEIGHTFS_OPERATIONS=3 also runs the histories of three operations on names, and more of two (scripts/soak).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/crash/short_history.h"
#include "tests/support/catalog_check.h"
#include "tests/support/one_processor.h"
#include "tests/support/seeds.h"

namespace weightfs {
namespace {

using Operation = ShortHistory::Operation;
struct Plan {
  std::vector<std::pair<const Operation*, Persist>> steps;
  ShortHistory::Kind kind = {};
  bool again = false;  // also the crashes of each recovery
};

constexpr std::array kPersists = {Persist::kNothing, Persist::kFile, Persist::kDirectory, Persist::kAll};

struct Totals {
  std::atomic<uint64_t> histories{0}, cuts{0}, images{0};
};

// What a crash may leave after `cut` events: nothing of what was in flight, all of it, some of it, and what a killed
// process leaves. The index stores nothing that is not durable in the log (wal::FlushGate), so it has more than that only
// where all is there.
std::vector<CrashOptions> Crashes(uint64_t seed) {
  using Kind = CrashOptions::Kind;
  return {{.seed = seed, .device_survival = 0, .kv_survival = 0},
          {.seed = seed, .device_survival = 1, .kv_survival = 1, .torn = false},
          {.seed = seed, .device_survival = 0.5, .kv_survival = 0, .torn = false},
          {.seed = seed + 1, .device_survival = 0.5, .kv_survival = 0},
          {.kind = Kind::kProcessKill, .seed = seed}};
}

// Returns what is wrong with the state that a crash has left, or an empty string.
std::string Wrong(const History& history, size_t cut, TestStore* store) {
  if (!store->opened()) return ToString(store->opened().error());
  if ((*store)->read_only()) return "the recovered store is read-only";
  History::Tree tree;
  ShortHistory::ReadTree(*store, &tree);
  if (testing::Test::HasFatalFailure()) return "the recovered store cannot be read";
  std::string wrong = history.Check(cut, tree);
  if (!wrong.empty()) return wrong;
  const auto broken = CheckCatalog(store->kv().content());
  return broken.empty() ? std::string() : broken.front();
}

bool IsThorough() {
  const char* given = std::getenv("WEIGHTFS_OPERATIONS");
  return given != nullptr && std::string_view(given) == "3";
}

class ShortHistories : public testing::TestWithParam<size_t> {
 protected:
  static const std::vector<Operation>& operations() { return ShortHistory::Operations(); }

  // ctest runs a process for each processor, so each remains on one. scripts/soak runs only one process.
  void CheckAll(const std::vector<Plan>& plans) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    const int count = IsThorough() ? 4 : 1;
    for (int thread = 0; thread < count; ++thread) {
      threads.emplace_back([&, thread] {
        const OneProcessor pinned(count > 1 ? std::optional(thread) : std::nullopt);
        for (size_t index = next++; index < plans.size() && !HasFailure(); index = next++) Check(plans[index]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Runs the steps, and checks every crash from the last one on; shorter histories have the others.
  void Check(const Plan& plan) {
    const ShortHistory::Kind& kind = plan.kind;
    std::string title = fmt::format("{} devices{}, files {}: ", kind.devices, kind.full ? " that are full" : "",
                                    kind.keeps_open ? "stay open" : "are closed");
    for (const auto& [operation, persist] : plan.steps) {
      title += fmt::format("{}{}; ", operation->name, ToText(persist));
    }
    SCOPED_TRACE(title);
    ShortHistory history(plan.kind);
    for (const auto& [operation, persist] : plan.steps) history.Run(*operation, persist);
    const size_t from = history.began() + (plan.steps.size() > 1 ? 1 : 0);
    history.End();
    if (HasFailure()) return;
    ++totals_.histories;
    CheckCuts(history.store().journal(), history.history(), from, plan.again);
  }

  void CheckCuts(const Journal& journal, const History& history, size_t from, bool again) {
    std::set<std::pair<uint64_t, size_t>> seen;  // fingerprints and phases
    for (size_t cut = from; cut <= journal.size(); ++cut) {
      ++totals_.cuts;
      for (const CrashOptions& crash : Crashes(FirstSeed() + cut)) {
        const CrashImage image = journal.ImageAt(cut, crash);
        if (!seen.emplace(image.Fingerprint(), history.Phase(cut)).second) continue;
        ++totals_.images;
        TestStore store(image, ShortHistory::Options(image.devices.size()));
        const std::string wrong = Wrong(history, cut, &store);
        ASSERT_EQ(wrong, "") << "cut after event " << cut << " of " << journal.size();
        if (again) CheckRecovery(store.journal(), history, cut);
        if (HasFailure()) return;
      }
    }
  }

  // The recovery of the crash at `cut` is cut, too.
  void CheckRecovery(const Journal& journal, const History& history, size_t cut) {
    const size_t end = journal.size();
    for (size_t second = 0; second <= end; ++second) {
      ++totals_.cuts;
      for (const double survival : {0.0, 0.5}) {
        const CrashOptions crash{.seed = second, .device_survival = survival, .kv_survival = 0};
        const CrashImage image = journal.ImageAt(second, crash);
        ++totals_.images;
        TestStore store(image, ShortHistory::Options(image.devices.size()));
        const std::string wrong = Wrong(history, cut, &store);
        ASSERT_EQ(wrong, "") << "cut after event " << cut << ", and after event " << second << " of the recovery";
      }
    }
  }

  void TearDown() override {
    fmt::print("{} histories, {} cuts, {} states\n", totals_.histories.load(), totals_.cuts.load(),
               totals_.images.load());
  }

  Totals totals_;
};

// Each number is another kind; eight in a row are all.
ShortHistory::Kind KindOf(size_t number) {
  return {.devices = 1 + number / 2 % 2, .keeps_open = number % 2 == 1, .full = number / 4 % 2 == 1};
}

TEST_P(ShortHistories, OfOneOperationLeaveAGuaranteedState) {
  std::vector<Plan> plans;
  for (size_t number = 0; number < 8; ++number) {
    const ShortHistory::Kind kind = KindOf(number);
    for (const Persist persist : kPersists) {
      plans.push_back({{{&operations()[GetParam()], persist}}, kind, /*again=*/kind.devices == 1 && !kind.full});
    }
  }
  CheckAll(plans);
}

// A pair has four ways to become durable, or eight, each with another kind of store. Its neighbors have the other kinds.
TEST_P(ShortHistories, OfTwoOperationsLeaveAGuaranteedState) {
  std::vector<Plan> plans;
  for (size_t second = 0; second < operations().size(); ++second) {
    for (size_t last = 0; last < kPersists.size(); ++last) {
      for (const size_t persist : {0, 1}) {  // nothing, or fsync
        if (!IsThorough() && (GetParam() + second + last) % 2 != persist) continue;
        const size_t number = GetParam() + plans.size() + plans.size() / 4;
        plans.push_back({{{&operations()[GetParam()], kPersists[persist]}, {&operations()[second], kPersists[last]}},
                         KindOf(number)});
      }
    }
  }
  CheckAll(plans);
}

class LongerHistories : public ShortHistories {};

TEST_P(LongerHistories, OfThreeOperationsOnNamesLeaveAGuaranteedState) {
  std::vector<Plan> plans;
  for (const Operation& second : operations()) {
    for (const Operation& third : operations()) {
      if (!second.of_names || !third.of_names) continue;
      const size_t number = GetParam() + plans.size() + plans.size() / 8;
      plans.push_back({{{&operations()[GetParam()], kPersists[number / 8 % 2]},
                        {&second, kPersists[number / 16 % 2]},
                        {&third, kPersists[number / 32 % 4]}},
                       KindOf(number)});
    }
  }
  CheckAll(plans);
}

TEST_P(ShortHistories, AreDurableInTimeWithoutASync) {
  for (const size_t number : {0, 1}) {
    TestStoreOptions options = ShortHistory::Options(1);
    options.store.commit_interval = options.store.close_delay = std::chrono::milliseconds(10);
    ShortHistory history(KindOf(number), options);
    history.Run(operations()[GetParam()], Persist::kNothing);
    history.ExpectAll();
    const Journal& journal = history.store().journal();
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    std::string wrong = "the deadline has passed";
    size_t checked = 0;
    while (!wrong.empty() && std::chrono::steady_clock::now() < deadline) {
      const size_t now = journal.size();
      if (now == checked) continue;
      checked = now;
      TestStore store(journal.ImageAt(now, {.device_survival = 0, .kv_survival = 0}), ShortHistory::Options(1));
      wrong = Wrong(history.history(), now, &store);
    }
    EXPECT_EQ(wrong, "") << (number == 1 ? "files stay open" : "files are closed");
    history.End();
  }
}

std::string NameOf(const testing::TestParamInfo<size_t>& parameter) {
  return ShortHistory::Operations()[parameter.param].Word();
}

std::vector<size_t> FirstOfThree() {
  std::vector<size_t> first;
  for (size_t index = 0; index < ShortHistory::Operations().size(); ++index) {
    if (IsThorough() && ShortHistory::Operations()[index].of_names) first.push_back(index);
  }
  return first;
}

INSTANTIATE_TEST_SUITE_P(From, ShortHistories, testing::Range(size_t{0}, ShortHistory::Operations().size()), NameOf);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LongerHistories);
INSTANTIATE_TEST_SUITE_P(From, LongerHistories, testing::ValuesIn(FirstOfThree()), NameOf);

}  // namespace
}  // namespace weightfs

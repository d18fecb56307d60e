// SPDX-License-Identifier: Apache-2.0
// Concurrent clients on one store, whose threads run in an order that the seed determines, some with faults, then a
// power cut at a random event. What they read, and what the crash left, must be possible.
//
// WEIGHTFS_SEEDS is the number of seeds, WEIGHTFS_SEED the first one; WEIGHTFS_JOBS the processes at a time. A seed
// that fails is run again with fewer steps, as long as it fails, and its shortest history is printed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>

#include "common/checksum.h"
#include "common/log.h"
#include "tests/crash/random_store.h"
#include "tests/crash/scheduled_clients.h"
#include "tests/schedule/scheduler.h"
#include "tests/support/catalog_check.h"
#include "tests/support/seeds.h"

namespace weightfs {
namespace {

constexpr unsigned kLongestSeed = 60;  // seconds, before it counts as hanging
constexpr uint64_t kSeedsOfProcess = 50;

// Of a process that runs seeds, for the one that waits for it.
struct Report {
  std::atomic<uint64_t> seed, done, steps, switches, cuts, checkpoints, hash;
  char complaint[2000];
};

class SharedReport {
 public:
  SharedReport() {
    void* const memory = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    report_ = new (memory) Report();
  }
  ~SharedReport() { munmap(report_, sizeof(Report)); }
  SharedReport(const SharedReport&) = delete;
  SharedReport& operator=(const SharedReport&) = delete;
  Report* operator->() { return report_; }
  Report& operator*() { return *report_; }

 private:
  Report* report_;
};

// One seed, in the threads of a run.
class Simulation {
 public:
  Simulation(uint64_t seed, const std::vector<ClientStep>& steps, Report& report)
      : seed_(seed), steps_(steps), report_(report), random_(seed) {
    conditions_.faults = random_() % 3 == 0;
    conditions_.full = !conditions_.faults && random_() % 3 == 0;
    conditions_.forgets = random_() % 2 == 0;
  }

  void Run() {
    TestStore store(RandomStoreOptions(seed_));
    ConcurrentHistory history([&] { return store.journal().size(); }, conditions_.faults);
    std::vector<ScheduledClient> clients;
    for (size_t number = 0; number < kScheduledClients; ++number) {
      clients.emplace_back(store, history, conditions_, number);
    }
    CreateRequest directory;
    directory.mode = S_IFDIR | 0755;
    for (const char* name : {"d", "e"}) {
      Require(store->names().Create(kRootInode, name, directory).has_value(), "mkdir");
    }
    clients[0].Take({0, ClientStep::Kind::kSave, 0, 9, 0});
    clients[0].Take({0, ClientStep::Kind::kSave, 1, 5, 0});
    Require(store->SyncAll().has_value(), "sync");
    const size_t start = store.journal().size();
    RunClients(store, clients);
    for (const ScheduledClient& client : clients) Complain(client.complaint());
    if (!conditions_.faults) Require(store->statistics().checksum_errors == 0, "a checksum");
    report_.checkpoints += store->statistics().log.checkpoints;
    Note(store.journal());
    for (int cuts = 0; cuts < 2 && !failed(); ++cuts) CutPower(store, history, start);
    if (!failed() && !conditions_.faults) Remount(store, clients[0]);
  }

 private:
  bool failed() const { return report_.complaint[0] != 0; }
  void Complain(const std::string& text) {
    if (!failed()) std::snprintf(report_.complaint, sizeof(report_.complaint), "%s", text.c_str());
  }
  void Require(bool well, const char* what) {
    if (!well) Complain(fmt::format("{} has failed", what));
  }

  void RunClients(TestStore& store, std::vector<ScheduledClient>& clients) {
    BlockReservation filling;
    if (conditions_.full) {
      const uint64_t free = store->Space().available.value, left = 8 + random_() % 64;
      auto reserved = store->files().Reserve(store->OpenFile(kRootInode, false).value(), FileBlock{0},
                                             BlockCount{free - std::min(free - 1, left)});
      if (reserved) filling = *std::move(reserved);
    }
    if (conditions_.faults) ArmFaults(store, random_());
    std::vector<std::thread> threads;
    for (ScheduledClient& client : clients) threads.emplace_back([&client, this] { client.Run(steps_); });
    for (std::thread& thread : threads) thread.join();
    if (!store->read_only()) clients[0].CheckAll();
    for (ScheduledClient& client : clients) client.Forget();
  }

  static void Note(const Journal& journal) {
    for (const Journal::Event& event : journal.events()) {
      schedule::Note(static_cast<uint64_t>(event.kind) << 32 | event.device);
      schedule::Note(event.offset.value ^ event.subject);
      if (event.bytes != nullptr) schedule::Note(Crc32c(*event.bytes));
    }
  }

  void CheckStore(TestStore& store, const ConcurrentHistory& history, size_t cut) {
    if (!store.opened()) return Complain("recovery: " + ToString(store.opened().error()));
    Require(!store->read_only(), "recovery");
    std::string error;
    const auto tree = ScheduledClient::ReadTree(store, history.Names(), &error);
    Complain(error);
    if (!failed()) Complain(history.CheckCrash(cut, tree));
    const auto broken = CheckCatalog(store.kv().content());
    if (!broken.empty()) Complain(broken.front());
  }

  void CutPower(TestStore& store, const ConcurrentHistory& history, size_t start) {
    const size_t cut = start + random_() % (store.journal().size() - start + 1);
    CrashOptions crash;
    crash.kind = random_() % 4 == 0 ? CrashOptions::Kind::kProcessKill : CrashOptions::Kind::kPowerLoss;
    crash.seed = random_();
    TestStore recovered(store.journal().ImageAt(cut, crash), RandomStoreOptions(seed_));
    CheckStore(recovered, history, cut);
    ++report_.cuts;
    if (failed()) Complain(fmt::format("after event {}: {}", cut, std::string(report_.complaint)));
  }

  // The bytes of files, when what was freed can be used again, and whole segments that the log has reserved. The log
  // counts its space when it writes a change.
  uint64_t UsedBytes(TestStore& store) {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    Require(store->SetAttributes(kRootInode, {.mode = 0755}).has_value() && store->SyncAll().has_value(), "chmod");
    const SpaceStatistics space = store->Space();
    return ToBytes(space.total - space.free).value - store->statistics().log.bytes;
  }

  // Everything is there, and nothing else takes space.
  void Remount(TestStore& store, ScheduledClient& client) {
    const uint64_t used = UsedBytes(store);
    const auto done = store.Remount();
    if (!done) return Complain("remount: " + ToString(done.error()));
    constexpr uint64_t kSegment = 32 * kKiB;
    // On a full pool the log takes less.
    if (const uint64_t now = UsedBytes(store); !conditions_.full && now % kSegment != used % kSegment) {
      Complain(fmt::format("{} bytes are in use before a remount, {} after it", used, now));
    }
    client.CheckAll();
    client.Forget();
    Complain(client.complaint());
    const auto broken = CheckCatalog(store.kv().content());
    if (!broken.empty()) Complain(broken.front());
  }

  const uint64_t seed_;
  const std::vector<ClientStep>& steps_;
  Report& report_;
  std::mt19937_64 random_;
  ScheduledClient::Conditions conditions_;
};

// Returns false if it fails.
bool Simulate(uint64_t seed, uint64_t schedule_seed, const std::vector<ClientStep>& steps, Report& report) {
  report.seed = seed;
  alarm(kLongestSeed);
  const schedule::Trace trace = schedule::RunSeed(schedule_seed, [&] { Simulation(seed, steps, report).Run(); });
  alarm(0);
  report.steps += trace.steps;
  report.switches += trace.switches;
  report.hash = report.hash * 31 + trace.hash;
  return report.complaint[0] == 0;
}

// Starts a process. `run` returns false if something failed.
template <typename Function>
pid_t Start(bool quiet, const Function& run) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  if (quiet) {
    static_cast<void>(std::freopen("/dev/null", "w", stderr));
  }
  spdlog::set_level(spdlog::level::off);  // the failures are wanted
  static_cast<void>(ScheduledClient::SharedNames());
  _exit(run() ? 0 : 1);
}

std::string OutcomeOf(int status, const Report& report) {
  if (report.complaint[0] != 0) return report.complaint;
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGALRM ? "it hangs" : fmt::format("it ends by signal {}", WTERMSIG(status));
  }
  if (WEXITSTATUS(status) == schedule::kDeadlock) return "a deadlock, or no end; see above";
  return WEXITSTATUS(status) == 0 ? "" : fmt::format("it exits with {}", WEXITSTATUS(status));
}

// What is wrong with a history in one of several schedules; empty: nothing.
std::string Try(uint64_t seed, const std::vector<ClientStep>& steps, uint64_t* schedule_seed, bool quiet = true) {
  constexpr uint64_t kSchedules = 10;
  for (uint64_t attempt = 0; attempt < (quiet ? kSchedules : 1); ++attempt) {
    SharedReport report;
    const uint64_t chosen = *schedule_seed + attempt;
    int status = 0;
    waitpid(Start(quiet, [&] { return Simulate(seed, chosen, steps, *report); }), &status, 0);
    std::string outcome = OutcomeOf(status, *report);
    if (outcome.empty()) continue;
    *schedule_seed = chosen;
    return outcome;
  }
  return {};
}

// Leaves out steps, many at a time first, while it still fails.
std::vector<ClientStep> Shrink(uint64_t seed, std::vector<ClientStep> steps, uint64_t* schedule_seed) {
  for (size_t size = std::max<size_t>(steps.size() / 2, 1);; size /= 2) {
    for (size_t at = 0; at < steps.size();) {
      std::vector<ClientStep> fewer = steps;
      fewer.erase(fewer.begin() + at, fewer.begin() + std::min(at + size, steps.size()));
      if (Try(seed, fewer, schedule_seed).empty()) {
        at += size;
      } else {
        steps = std::move(fewer);
      }
    }
    if (size == 1) return steps;
  }
}

void PrintShortest(uint64_t seed) {
  uint64_t schedule_seed = seed;
  const std::vector<ClientStep> shortest = Shrink(seed, RandomSteps(seed), &schedule_seed);
  std::printf("The shortest history of seed %lu, in schedule %lu:\n", seed, schedule_seed);
  for (const ClientStep& step : shortest) std::printf("  %s\n", ToText(step).c_str());
  const std::string outcome = Try(seed, shortest, &schedule_seed, /*quiet=*/false);
  std::printf("  %s\n", outcome.c_str());
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* given = std::getenv(name);
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

bool RunSeeds(uint64_t first, uint64_t count, Report& report) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    if (!Simulate(seed, seed, RandomSteps(seed), report)) return false;
    ++report.done;
  }
  return true;
}

TEST(ScheduleSimulation, EverythingReadAndRecoveredIsPossible) {
  const uint64_t seeds = FromEnvironment("WEIGHTFS_SEEDS", 1000), first = FirstSeed(), end = first + seeds;
  ASSERT_GT(seeds, 0U) << "WEIGHTFS_SEEDS is not a number";
  const uint64_t jobs = FromEnvironment("WEIGHTFS_JOBS", std::max(1U, std::thread::hardware_concurrency()));
  struct Job {
    std::unique_ptr<SharedReport> report;
    pid_t process;
  };
  std::vector<Job> running;
  uint64_t next = first, done = 0, steps = 0, switches = 0, cuts = 0, checkpoints = 0;
  std::optional<uint64_t> failed;
  while (!running.empty() || (next < end && !failed)) {
    if (next < end && !failed && running.size() < jobs) {
      auto report = std::make_unique<SharedReport>();
      const uint64_t from = next, count = std::min(kSeedsOfProcess, end - next);
      next += count;
      const pid_t process = Start(false, [&] { return RunSeeds(from, count, **report); });
      running.push_back({std::move(report), process});
      continue;
    }
    int status = 0;
    const pid_t process = wait(&status);
    const auto job =
        std::find_if(running.begin(), running.end(), [&](const Job& one) { return one.process == process; });
    ASSERT_NE(job, running.end());
    Report& report = **job->report;
    done += report.done;
    steps += report.steps;
    switches += report.switches;
    cuts += report.cuts;
    checkpoints += report.checkpoints;
    if (const std::string outcome = OutcomeOf(status, report); !outcome.empty()) {
      ADD_FAILURE() << "WEIGHTFS_SEED=" << report.seed << ": " << outcome;
      failed = std::min(failed.value_or(report.seed), report.seed.load());
    }
    running.erase(job);
  }
  if (failed) return PrintShortest(*failed);
  std::printf("%lu seeds: %lu power cuts, %lu checkpoints, %lu choices, %lu switches of threads\n", done, cuts,
              checkpoints, steps, switches);
}

TEST(ScheduleSimulation, ASeedRepeatsChoicesAndJournal) {
  std::vector<uint64_t> hashes;
  for (const uint64_t before : {0, 3}) {
    SharedReport report;
    int status = 0;
    const auto run = [&] {
      if (!RunSeeds(1000, before, *report)) return false;
      report->hash = 0;
      return RunSeeds(1, 10, *report);
    };
    waitpid(Start(false, run), &status, 0);
    ASSERT_EQ(OutcomeOf(status, *report), "");
    hashes.push_back(report->hash);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace weightfs

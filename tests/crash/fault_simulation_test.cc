// SPDX-License-Identifier: Apache-2.0
// Concurrent clients on one store, whose devices and catalog fail at random. Then the power is cut at random points,
// and again during the recovery. Each file must hold bytes that its client may expect after such a crash.
//
// WEIGHTFS_SEEDS is the number of simulated stores, WEIGHTFS_SEED the first one. A seed determines every choice; the
// timing of the threads varies.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "common/log.h"
#include "tests/crash/random_store.h"
#include "tests/support/catalog_check.h"
#include "tests/support/seeds.h"
#include "tests/support/test_store.h"

namespace weightfs {
namespace {

constexpr int kClients = 3, kFilesOfClient = 2, kSteps = 12, kCuts = 3;

// What a file may contain. Positions are sizes of the journal. Used by one thread at a time.
class ExpectedFile {
 public:
  explicit ExpectedFile(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }
  const std::string& content() const { return versions_[current_].data; }

  // The bytes may be there after a crash at `began` or later.
  void Wrote(size_t began, std::string data) {
    versions_.push_back({began, std::move(data)});
    current_ = versions_.size() - 1;
  }
  // Same for a change that failed: the catalog may have it although it reported an error.
  void TriedToWrite(size_t began, std::string data) { versions_.push_back({began, std::move(data)}); }
  // The current bytes are there after a crash at `done` or later.
  void Synced(size_t done) { durable_.push_back({done, current_}); }

  // An error made the file return to its last commit, with bytes that were written at or after the last sync.
  bool MayRevertTo(const std::string& found) const { return Matches(UINT64_MAX, found); }
  std::string Describe() const {
    std::string text;
    for (const auto& [began, data] : versions_) text += fmt::format(" {} bytes from event {};", data.size(), began);
    for (const auto& [done, version] : durable_) text += fmt::format(" version {} durable at {};", version, done);
    return text;
  }
  // Whether a crash after `cut` events may leave these bytes.
  bool Matches(size_t cut, const std::string& found) const {
    size_t first = 0;
    for (const auto& [done, version] : durable_) {
      if (done <= cut) first = std::max(first, version);
    }
    for (size_t i = first; i < versions_.size(); ++i) {
      if ((i == first || versions_[i].began <= cut) && versions_[i].data == found) return true;
    }
    return false;
  }

 private:
  struct Version {
    size_t began;
    std::string data;
  };
  const std::string path_;
  std::vector<Version> versions_ = {{0, {}}};
  size_t current_ = 0;
  std::vector<std::pair<size_t, size_t>> durable_ = {{0, 0}};  // position, and index in versions_
};

// One program: works on its own files in random order until the store refuses all changes.
class Client {
 public:
  Client(TestStore& store, uint64_t seed, int number) : store_(store), random_(seed * kClients + number) {
    for (int file = 0; file < kFilesOfClient; ++file) {
      files_.emplace_back("c" + std::to_string(number) + "-f" + std::to_string(file));
    }
  }

  void Run() {
    for (int step = 0; step < kSteps && !store_->read_only() && !lost_track_; ++step) {
      Step(files_[random_() % files_.size()]);
    }
  }
  const std::vector<ExpectedFile>& files() const { return files_; }
  const std::string& complaint() const { return complaint_; }
  uint64_t changes() const { return changes_; }
  uint64_t failures() const { return failures_; }

 private:
  size_t Now() { return store_.journal().size(); }

  void Step(ExpectedFile& file) {
    const auto opened = store_.OpenPath(file.path());
    if (!opened) return;  // the catalog failed
    const InodePtr inode = *opened;
    const Result<void> done = Change(file, inode);
    ++(done ? changes_ : failures_);
    if (done && random_() % 2 == 0) {
      Sync(file, inode);
    } else if (!done && !store_->read_only()) {
      Settle(file);
    }
    if (random_() % 4 == 0) Compare(file, inode);
    store_->CloseFile(inode);
  }

  Result<void> Change(ExpectedFile& file, const InodePtr& inode) {
    const size_t began = Now();
    std::string data = file.content();
    Result<void> done;
    switch (random_() % 5) {
      case 0: {
        data.resize(random_() % (data.size() + 20000), '\0');
        done = store_->files().Truncate(inode, data.size());
        break;
      }
      case 1: return Replace(file);
      default: {
        const size_t at = random_() % (data.size() + 5000);
        const std::string text = Pattern(random_(), 1 + random_() % 60000);
        if (data.size() < at + text.size()) data.resize(at + text.size(), '\0');
        data.replace(at, text.size(), text);
        done = store_.WriteAt(inode, at, text);
      }
    }
    if (done) {
      file.Wrote(began, std::move(data));
    } else {
      file.TriedToWrite(began, std::move(data));
    }
    return done;
  }

  // Publishes new content by a rename, without a sync.
  Result<void> Replace(ExpectedFile& file) {
    const std::string data = Pattern(random_(), random_() % 40000), temporary = file.path() + ".new";
    RETURN_IF_ERROR(store_.WriteFile(temporary, data));
    const size_t began = Now();
    const auto done = store_->names().Rename(kRootInode, temporary, kRootInode, file.path(), RenameMode::kReplace);
    if (done) {
      file.Wrote(began, data);
    } else {
      file.TriedToWrite(began, data);
    }
    return done;
  }

  // The inode may no longer be the one of the path, whose sync then says nothing of the path.
  void Sync(ExpectedFile& file, const InodePtr& inode) {
    const auto now = store_.Resolve(file.path());
    if (!now || *now != inode->id) return;
    if (store_->Sync(inode)) {
      file.Synced(Now());
    } else if (!store_->read_only()) {
      Settle(file);
    }
  }

  // In one call, because the size may change between two.
  Result<std::string> Read(const InodePtr& inode) { return store_.ReadAt(inode, 0, kMiB); }

  // After an error: waits until the file has returned to a commit, which must be one that it had. Gives up if the file
  // can never be read again.
  void Settle(ExpectedFile& file) {
    lost_track_ = true;
    for (int attempt = 0; attempt < 200 && !store_->read_only(); ++attempt) {
      const auto opened = store_.OpenPath(file.path());
      if (!opened) return;
      const size_t began = Now();
      const bool synced = store_->Sync(*opened).has_value();
      const auto found = synced ? Read(*opened) : Result<std::string>(ErrorCode::kIo);
      store_->CloseFile(*opened);
      if (!found) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      lost_track_ = false;
      if (!file.MayRevertTo(*found)) complaint_ = file.path() + " has bytes after an error that it never had";
      file.Wrote(began, *found);
      file.Synced(Now());
      return;
    }
  }

  void Compare(const ExpectedFile& file, const InodePtr& inode) {
    const auto now = store_.Resolve(file.path());
    if (!now || *now != inode->id) return;
    const auto found = Read(inode);
    if (found && !store_->read_only() && !file.MayRevertTo(*found)) {
      complaint_ = fmt::format("{} reads {} bytes that it never had:{}", file.path(), found->size(), file.Describe());
    }
  }

  TestStore& store_;
  std::mt19937_64 random_;
  std::vector<ExpectedFile> files_;
  std::string complaint_;
  bool lost_track_ = false;  // of the content of a file
  uint64_t changes_ = 0, failures_ = 0;
};

void CheckFiles(TestStore& store, const std::vector<Client>& clients, size_t cut) {
  for (const Client& client : clients) {
    for (const ExpectedFile& file : client.files()) {
      const auto found = store.ReadPath(file.path());
      ASSERT_TRUE(found.has_value()) << file.path() << ": " << ToString(found.error());
      ASSERT_TRUE(file.Matches(cut, *found)) << file.path() << " has " << found->size() << " bytes:" << file.Describe();
    }
  }
}

// Recovers the image, and checks it; then cuts the power during that recovery, and recovers again.
void CheckCut(const CrashImage& image, const std::vector<Client>& clients, uint64_t seed, size_t cut, bool again) {
  SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed) + ", cut after event " + std::to_string(cut) +
               (again ? "" : ", and again in the recovery"));
  TestStore store(image, RandomStoreOptions(seed));
  ASSERT_TRUE(store.opened().has_value()) << ToString(store.opened().error());
  ASSERT_FALSE(store->read_only()) << "recovery found damage";
  CheckFiles(store, clients, cut);
  if (testing::Test::HasFatalFailure() || !again) return;
  ASSERT_TRUE(store.WriteFile("after", "works").has_value());
  ASSERT_TRUE(store->SyncAll().has_value());
  const auto broken = CheckCatalog(store.kv().content());
  ASSERT_TRUE(broken.empty()) << broken.front();
  const size_t second = seed % (store.journal().size() + 1);
  CheckCut(store.journal().ImageAt(second, {.seed = seed + cut}), clients, seed, cut, false);
}

struct Totals {
  uint64_t changes = 0, failures = 0, cuts = 0;
};

void Simulate(uint64_t seed, Totals* totals) {
  SCOPED_TRACE("WEIGHTFS_SEED=" + std::to_string(seed));
  TestStore store(RandomStoreOptions(seed));
  std::vector<Client> clients;
  for (int number = 0; number < kClients; ++number) clients.emplace_back(store, seed, number);
  for (const Client& client : clients) {
    for (const ExpectedFile& file : client.files()) ASSERT_TRUE(store.WriteFile(file.path(), "").has_value());
  }
  ASSERT_TRUE(store->SyncAll().has_value());
  const size_t start = store.journal().size();
  ArmFaults(store, seed);
  std::vector<std::thread> threads;
  for (Client& client : clients) threads.emplace_back([&client] { client.Run(); });
  for (std::thread& thread : threads) thread.join();
  for (const Client& client : clients) {
    ASSERT_EQ(client.complaint(), "");
    totals->changes += client.changes();
    totals->failures += client.failures();
  }
  std::mt19937_64 random(seed);
  for (int index = 0; index < kCuts; ++index) {
    const size_t cut = start + random() % (store.journal().size() - start + 1);
    CrashOptions crash;
    crash.kind = random() % 4 == 0 ? CrashOptions::Kind::kProcessKill : CrashOptions::Kind::kPowerLoss;
    crash.seed = random();
    CheckCut(store.journal().ImageAt(cut, crash), clients, seed, cut, index == 0);
    if (testing::Test::HasFatalFailure()) return;
    ++totals->cuts;
  }
}

TEST(FaultSimulation, NothingAcknowledgedIsLostAndNothingIsWrong) {
  const char* given = std::getenv("WEIGHTFS_SEEDS");
  const uint64_t seeds = given == nullptr ? 100 : std::strtoull(given, nullptr, 10);
  ASSERT_GT(seeds, 0U) << "WEIGHTFS_SEEDS is not a number";
  spdlog::set_level(spdlog::level::off);  // the failures are wanted
  const uint64_t first = FirstSeed();
  Totals totals;
  for (uint64_t seed = first; seed < first + seeds && !HasFatalFailure(); ++seed) Simulate(seed, &totals);
  if (HasFatalFailure()) return;
  std::printf("%lu stores: %lu changes, %lu of them failed, %lu power cuts\n", seeds, totals.changes + totals.failures,
              totals.failures, totals.cuts);
  EXPECT_GT(totals.changes, 10 * seeds);
  EXPECT_GT(totals.failures, 0U);
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// Opening a catalog on a filesystem that is full or fails, and in a directory that other users have changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "meta/keys.h"
#include "meta/rocks_kv_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/meta/rocks_older_log.h"
#include "tests/unit/meta/step_faults.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;

constexpr uint64_t kBatches = 50;
constexpr uid_t kStranger = 65533;

mode_t ModeOf(const fs::path& path) {
  struct stat status = {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

class RocksOpenTest : public testing::Test {
 protected:
  void SetUp() override { before_ = umask(022); }
  void TearDown() override { umask(before_); }

  fs::path At(const std::string& name = "meta") const { return temporary_.path() / name; }

  // Creates a catalog that was closed, and one as a killed process of an older version leaves it, with everything in
  // the log.
  void Make(const fs::path& closed, const fs::path& killed) {
    std::vector<KvBatch> batches(kBatches);
    for (uint64_t number = 0; number < kBatches; ++number) {
      batches[number].Put(keys::Extent(InodeId{1}, FileBlock{number}), std::string(1000, 'x'));
    }
    auto store = RocksKvStore::Open(closed.string(), {.create = true}).value();
    for (const KvBatch& batch : batches) ASSERT_TRUE(store->Write(batch).has_value());
    ASSERT_TRUE(store->Sync().has_value());
    WriteOlderLog(killed, batches);
    fs::remove(killed / "LOCK");
  }

  static void ExpectWhole(const fs::path& catalog) {
    const auto store = RocksKvStore::Open(catalog.string(), {});
    ASSERT_TRUE(store.has_value()) << store.error().what;
    uint64_t found = 0;
    const auto iterator = (*store)->NewIterator(keys::ExtentPrefix(InodeId{1}));
    for (; iterator->Valid(); iterator->Next()) ++found;
    EXPECT_TRUE(iterator->status().has_value());
    EXPECT_EQ(found, kBatches);
  }

  Error OpenError(const RocksKvStore::Options& options = {}) {
    const auto store = RocksKvStore::Open(At().string(), options);
    if (!store.has_value()) return store.error();
    ADD_FAILURE() << "it was opened";
    return {ErrorCode::kInvalid};
  }

  TemporaryDirectory temporary_;
  mode_t before_ = 0;
};

// The filesystem fails from the first step of opening on, then from the second step on, and so on to the last.
TEST_F(RocksOpenTest, AFailureAtAnyStepIsAnErrorAndLosesNothing) {
  Make(At("closed"), At("killed"));
  for (const std::string image : {"closed", "killed"}) {
    for (const auto& [number, code] : {std::pair(EIO, ErrorCode::kIo), std::pair(ENOSPC, ErrorCode::kNoSpace)}) {
      uint64_t refused = 0;
      for (uint64_t steps = 0;; ++steps) {
        SCOPED_TRACE(testing::Message() << image << ", errno " << number << " after " << steps << " steps");
        fs::copy(At(image), At());
        uint64_t failed;
        {
          const ScopedStepFaults faults(At().string(), steps, number);
          auto store = RocksKvStore::Open(At().string(), {});
          failed = faults.failed();
          if (!store.has_value()) {
            ++refused;
            EXPECT_EQ(store.error().code, code) << store.error().what;
            EXPECT_THAT(store.error().what, HasSubstr(At().string()));
            EXPECT_THAT(store.error().what, AnyOf(HasSubstr("make some space"), HasSubstr("check that filesystem")));
            EXPECT_EQ(store.error().what.find('\n'), std::string::npos);
          }
        }
        ExpectWhole(At());
        fs::remove_all(At());
        if (failed == 0) break;
      }
      EXPECT_GT(refused, 3U) << "the faults met nothing";
    }
  }
}

TEST_F(RocksOpenTest, AFailureAtAnyStepOfMakingOneIsAnError) {
  for (const int number : {EIO, ENOSPC}) {
    for (uint64_t steps = 0;; ++steps) {
      SCOPED_TRACE(testing::Message() << "errno " << number << " after " << steps << " steps");
      const ScopedStepFaults faults(At().string(), steps, number);
      const auto store = RocksKvStore::Open(At().string(), {.create = true});
      const uint64_t failed = faults.failed();
      if (!store.has_value()) {
        EXPECT_THAT(store.error().what, HasSubstr(At().string()));
      }
      if (failed == 0) {
        EXPECT_TRUE(store.has_value());
        break;
      }
      fs::remove_all(At());
    }
    fs::remove_all(At());
  }
}

TEST_F(RocksOpenTest, ItKeepsNoLogOfRocksDb) {
  Make(At(), At("killed"));
  std::ofstream(At() / "LOG") << "of an earlier version";
  std::ofstream(At() / "LOG.old.1700000000") << "likewise";
  ExpectWhole(At());
  for (const auto& entry : fs::directory_iterator(At())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with("LOG") && entry.path().filename() != "LOCK")
        << entry.path();
  }
}

TEST_F(RocksOpenTest, OtherUsersMayNotReadIt) {
  for (const mode_t mask : {0, 022, 077}) {
    umask(mask);
    Make(At(), At("killed"));
    EXPECT_EQ(ModeOf(At()), 0700U);
    for (const auto& entry : fs::directory_iterator(At())) EXPECT_EQ(ModeOf(entry.path()), 0600U) << entry.path();
    fs::remove_all(At());
    fs::remove_all(At("killed"));
  }
}

TEST_F(RocksOpenTest, PermissionsOfAnExistingDirectoryAreCorrected) {
  fs::create_directory(At());
  fs::permissions(At(), fs::perms(0755));
  Make(At(), At("killed"));
  EXPECT_EQ(ModeOf(At()), 0700U);
  fs::permissions(At(), fs::perms(0755));
  for (const auto& entry : fs::directory_iterator(At())) fs::permissions(entry.path(), fs::perms(0644));
  EXPECT_TRUE(RocksKvStore::Open(At().string(), {.read_only = true}).has_value());
  EXPECT_EQ(ModeOf(At()), 0755U) << "nothing changes for a look";
  ExpectWhole(At());
  EXPECT_EQ(ModeOf(At()), 0700U);
  for (const auto& entry : fs::directory_iterator(At())) EXPECT_EQ(ModeOf(entry.path()), 0600U) << entry.path();
}

void ExpectOwner(const fs::path& catalog, uid_t owner) {
  std::vector<fs::path> paths{catalog};
  for (const auto& entry : fs::directory_iterator(catalog)) paths.push_back(entry.path());
  for (const fs::path& path : paths) {
    struct stat status = {};
    ASSERT_EQ(lstat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, owner) << path;
  }
}

TEST_F(RocksOpenTest, FilesMadeByRootBelongToTheOwnerOfTheDirectoryFromTheStart) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to make files of others";
  ASSERT_EQ(chown(temporary_.path().c_str(), kStranger, kStranger), 0);
  {
    const auto made = RocksKvStore::Open(At().string(), {.create = true});
    ASSERT_TRUE(made.has_value()) << made.error().what;
    ExpectOwner(At(), kStranger);  // as a killed process would leave it
  }
  Make(At("closed"), At("copy"));
  fs::remove_all(At());
  fs::rename(At("closed"), At());
  {
    const auto opened = RocksKvStore::Open(At().string(), {});  // writes new tables, and a new log
    ASSERT_TRUE(opened.has_value()) << opened.error().what;
    ExpectOwner(At(), kStranger);
  }
  ExpectOwner(At(), kStranger);
  ExpectWhole(At());
}

TEST_F(RocksOpenTest, RootGivesAwayNothingThatTheOwnerOfTheDirectoryMovedThere) {
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED LOUDLY: needs root to make files of others";
  ASSERT_EQ(chown(temporary_.path().c_str(), kStranger, kStranger), 0);
  Make(At(), At("killed"));
  std::ofstream(At("secret")) << "root's";
  fs::rename(At("secret"), At() / "secret");
  ExpectWhole(At());
  struct stat status = {};
  ASSERT_EQ(lstat((At() / "secret").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 0U);
}

TEST_F(RocksOpenTest, FilesThatAreNotRegularAreRefusedWithoutBlocking) {
  Make(At(), At("killed"));
  const fs::path current = At() / "CURRENT", away = At("away");
  fs::rename(current, away);
  const auto expect_refused = [&](const std::string& saying) {
    for (const bool read_only : {false, true}) {
      const Error error = OpenError({.read_only = read_only});
      EXPECT_EQ(error.code, ErrorCode::kPermission) << error.what;
      EXPECT_THAT(error.what, HasSubstr(current.string()));
      EXPECT_THAT(error.what, HasSubstr(saying));
    }
    fs::remove(current);
  };
  ASSERT_EQ(mkfifo(current.c_str(), 0600), 0);
  expect_refused("a FIFO");
  fs::create_symlink(away, current);
  expect_refused("symbolic link");
  if (geteuid() == 0) {
    fs::copy(away, current);
    ASSERT_EQ(chown(current.c_str(), kStranger, kStranger), 0);
    expect_refused("belongs to user 65533");
  }
  fs::rename(away, current);
  ExpectWhole(At());
}

// RocksDB opens the directory that the path resolves to, so that directory must be checked.
TEST_F(RocksOpenTest, DotsAfterALinkAreFollowed) {
  Make(At("closed"), At("killed"));
  fs::create_directories(At("elsewhere/below"));
  fs::rename(At("closed"), At("elsewhere/meta"));
  fs::create_directory_symlink(At("elsewhere/below"), At("link"));
  ExpectWhole(At("link/../meta"));
  fs::rename(At("elsewhere/meta"), At("elsewhere/other"));
  fs::create_directory_symlink(At("elsewhere/other"), At("elsewhere/meta"));
  fs::rename(At("killed"), At("meta"));
  EXPECT_FALSE(RocksKvStore::Open(At("link/../meta").string(), {}).has_value()) << "it is a link";
}

TEST_F(RocksOpenTest, ADirectoryThatIsALinkIsRefused) {
  Make(At("elsewhere"), At("killed"));
  fs::create_directory_symlink(At("elsewhere"), At());
  EXPECT_EQ(OpenError().code, ErrorCode::kPermission);
  EXPECT_EQ(OpenError({.read_only = true}).code, ErrorCode::kPermission);
  EXPECT_EQ(OpenError({.create = true}).code, ErrorCode::kPermission);
  ExpectWhole(At("elsewhere"));
}

}  // namespace
}  // namespace weightfs

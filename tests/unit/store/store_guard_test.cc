// SPDX-License-Identifier: Apache-2.0
// The guard of a store whose locks a server may drop.
#include "store/volume/store_guard.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include "meta/keys.h"
#include "store/volume/store_session.h"
#include "tests/support/result_asserts.h"
#include "tests/unit/store/store_directory_fixture.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

// What another machine does that has the locks: it names itself in the superblocks.
void TakeOver(const std::string& path) {
  auto device = Must(FileDevice::Open(path, {.exclusive = false}));
  Superblock superblock = Must(ReadSuperblock(*device));
  superblock.owner = NewUuid();
  ASSERT_OK(WriteSuperblock(*device, superblock));
}

class StoreGuardTest : public StoreDirectoryTest {
 protected:
  void SetUp() override {
    Format("store");
    pool_ = Path("store/pool");
    TakeOver(pool_);  // the owner is not the empty one
    owner_ = SuperblockOf(pool_).owner;
  }
  UniqueFd Open(const std::string& path) const {
    UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(static_cast<bool>(file)) << path;
    return file;
  }
  void Start() {
    UniqueFd lock = Open(Path("store/lock"));
    lock_ = lock.get();
    std::vector<UniqueFd> locked, devices;
    locked.push_back(std::move(lock));
    devices.push_back(Open(pool_));
    ASSERT_OK(guard_.Start(std::move(locked), std::move(devices), owner_));
  }
  void Wait(std::chrono::nanoseconds time) { now_ += time.count(); }

  std::string pool_;
  Uuid owner_{};
  int lock_ = -1;  // the guard's descriptor
  std::atomic<int64_t> now_{1'000'000'000'000};
  StoreGuard guard_{"the store", [this] { return std::chrono::nanoseconds(now_.load()); }};
};

TEST_F(StoreGuardTest, AllowsWritesWhileTheStoreIsOurs) {
  EXPECT_TRUE(guard_.MayWrite()) << "before the start";
  Start();
  EXPECT_TRUE(guard_.MayWrite());
  Wait(std::chrono::hours(1));
  EXPECT_TRUE(guard_.MayWrite());
  EXPECT_FALSE(guard_.lost());
}

TEST_F(StoreGuardTest, ANewOwnerEndsAllWritesForGood) {
  Start();
  TakeOver(pool_);
  Wait(StoreGuard::kValidity);
  EXPECT_FALSE(guard_.MayWrite());
  EXPECT_TRUE(guard_.lost());
  EXPECT_EQ(guard_.Verify().error().code, ErrorCode::kReadOnly);
}

TEST_F(StoreGuardTest, ANewOwnerOfALaterDeviceIsNoticed) {
  Format("pair", OnDevices({MakeFile("a", kSmall), MakeFile("b", kSmall)}));
  std::vector<UniqueFd> devices;
  for (const char* name : {"a", "b"}) {
    auto device = Must(FileDevice::Open(Path(name), {.exclusive = false}));
    Superblock superblock = Must(ReadSuperblock(*device));
    superblock.owner = owner_;
    ASSERT_OK(WriteSuperblock(*device, superblock));
    devices.push_back(Open(Path(name)));
  }
  ASSERT_OK(guard_.Start({}, std::move(devices), owner_));
  EXPECT_TRUE(guard_.MayWrite());
  TakeOver(Path("b"));
  EXPECT_FALSE(guard_.Verify());
  EXPECT_TRUE(guard_.lost());
}

TEST_F(StoreGuardTest, LocksThatWereDroppedAreTakenAgain) {
  Start();
  ASSERT_EQ(flock(lock_, LOCK_UN), 0);
  Wait(StoreGuard::kValidity);
  EXPECT_TRUE(guard_.MayWrite());
  const UniqueFd other = Open(Path("store/lock"));
  EXPECT_NE(flock(other.get(), LOCK_SH | LOCK_NB), 0);
}

TEST_F(StoreGuardTest, NothingIsWrittenWhileAnotherProcessHasTheLocks) {
  Start();
  ASSERT_EQ(flock(lock_, LOCK_UN), 0);
  {
    const UniqueFd other = Open(Path("store/lock"));
    ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
    Wait(StoreGuard::kValidity);
    EXPECT_FALSE(guard_.MayWrite());
    EXPECT_FALSE(guard_.lost()) << "it has changed nothing yet";
  }
  EXPECT_TRUE(guard_.MayWrite());
}

TEST_F(StoreGuardTest, NothingIsWrittenWhileTheOwnerCannotBeRead) {
  Start();
  const std::string content = Slurp(pool_).substr(0, kDataOffset);
  Poke(pool_, 0, std::string(kDataOffset, '\0'));
  Wait(StoreGuard::kValidity);
  EXPECT_FALSE(guard_.MayWrite());
  EXPECT_FALSE(guard_.lost());
  Poke(pool_, 0, content);
  EXPECT_TRUE(guard_.MayWrite());
}

TEST_F(StoreGuardTest, LocalFilesystemsKeepTheirLocks) {
  EXPECT_FALSE(MayLoseLocks("/dev/shm"));
  EXPECT_TRUE(MayLoseLocks("/proc"));
  EXPECT_TRUE(MayLoseLocks(Path("missing")));
}

// A session whose store is taken over while it runs.
class TakenStoreTest : public StoreDirectoryTest {
 protected:
  std::unique_ptr<StoreSession> OpenGuarded() {
    StoreOptions options;
    options.commit_interval = std::chrono::hours(1);
    return Must(StoreSession::Open(Path("store"), {.guard = true}, options));
  }
};

TEST_F(TakenStoreTest, AStoreThatIsStillOursWorksAndClosesCleanly) {
  Format("store");
  auto session = OpenGuarded();
  ASSERT_OK(session->store().names().Create(kRootInode, "a", {.mode = S_IFREG | 0644}));
  ASSERT_OK(session->store().SyncAll());
  ASSERT_OK(session->Close());
  EXPECT_TRUE(SuperblockOf(Path("store/pool")).clean);
  EXPECT_EQ(Slurp(Path("store/lock")), "");
}

TEST_F(TakenStoreTest, EachOpenIsAnotherOwner) {
  Format("store");
  ASSERT_OK(OpenGuarded()->Close());
  const Uuid first = SuperblockOf(Path("store/pool")).owner;
  EXPECT_NE(first, Uuid{});
  ASSERT_OK(OpenGuarded()->Close());
  EXPECT_NE(SuperblockOf(Path("store/pool")).owner, first);
}

TEST_F(TakenStoreTest, NothingOfItChangesAfterwards) {
  Format("store");
  auto session = OpenGuarded();
  Store& store = session->store();
  const InodeId ino = Must(store.names().Create(kRootInode, "a", {.mode = S_IFREG | 0644})).ino;
  const InodePtr file = Must(store.OpenFile(ino, false));
  ASSERT_OK(store.Sync(file));
  session->NoteServing({.device = "0:0", .source = "/nothing"}, "/nowhere");
  TakeOver(Path("store/pool"));
  Poke(Path("store/lock"), 0, "4711\nserving 0:1 /elsewhere\n");
  const auto before = Snapshot("store");
  const std::vector<std::byte> data(8 * kMiB, std::byte{1});
  // The last check may be so recent that a write is still accepted into memory.
  static_cast<void>(store.files().Write(file, ByteOffset{0}, data).has_value());
  EXPECT_FALSE(store.Sync(file));
  EXPECT_TRUE(store.read_only());
  EXPECT_FALSE(store.names().Create(kRootInode, "b", {.mode = S_IFREG | 0644}));
  store.CloseFile(file);
  session->NoteClosing();
  EXPECT_THAT(session->Close().error().what, HasSubstr("taken over"));
  session.reset();
  const auto after = Snapshot("store");
  EXPECT_EQ(after.at(Path("store/lock")), before.at(Path("store/lock")));
  for (const auto& [name, checksum] : before) EXPECT_TRUE(after.contains(name)) << name;
}

TEST_F(TakenStoreTest, AnOpenThatFailsLeavesAStoreThatWasClosed) {
  Format("store");
  {
    auto parts = Must(OpenStoreParts(Path("store"), {.guard = true}));
    KvBatch batch;
    batch.Delete(keys::Inode(kRootInode));
    ASSERT_OK(parts.catalog->Write(batch));
    ASSERT_OK(parts.catalog->Sync());
    ASSERT_OK(MarkClean(parts.devices, parts.superblocks));
  }
  EXPECT_EQ(StoreSession::Open(Path("store"), {.guard = true}, {}).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(SuperblockOf(Path("store/pool")).clean);
}

TEST_F(TakenStoreTest, AGuardedStoreGivesNoDescriptorsForWriting) {
  Format("store");
  auto session = OpenGuarded();
  EXPECT_EQ(session->store().OpenDevice(DeviceId{0}, true, 1).error().code, ErrorCode::kNotSupported);
  EXPECT_TRUE(session->store().OpenDevice(DeviceId{0}, false, 0).has_value());
  ASSERT_OK(session->Close());
}

}  // namespace
}  // namespace weightfs

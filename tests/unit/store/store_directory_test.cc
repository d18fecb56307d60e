// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "engine/superblock.h"
#include "io/huge_pages.h"
#include "meta/keys.h"
#include "store/wal/wal_reader.h"
#include "store/volume/store_session.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/result_asserts.h"
#include "tests/support/thread_state.h"
#include "tests/unit/meta/rocks_older_log.h"
#include "tests/unit/store/store_directory_fixture.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(StoreDirectoryTest, AFormattedStoreOpensWithItsOwnParts) {
  const auto made = Format("s");
  const auto parts = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
  EXPECT_EQ(parts->description.id, made.id);
  ASSERT_EQ(parts->devices.size(), 1u);
  EXPECT_EQ(parts->devices[0]->size(), kSmall);
  EXPECT_EQ(parts->superblocks[0].store_id, made.id);
  EXPECT_NE(parts->catalog, nullptr);
  EXPECT_TRUE(parts->lock.held());
}

TEST_F(StoreDirectoryTest, TheDescriptionReadsBackAsWritten) {
  const auto made = Format("s");
  const auto read = ReadStoreDescription(Path("s"));
  ASSERT_TRUE(read.has_value()) << ToString(read.error());
  EXPECT_EQ(ToJson(*read), ToJson(made));
  EXPECT_EQ(Slurp(Path("s/store.json")), ToJson(made));
  EXPECT_THAT(read->created, testing::MatchesRegex("....-..-..T..:..:..Z"));
}

TEST_F(StoreDirectoryTest, ASecondOpenIsBusyAndNamesTheHolder) {
  Format("s");
  auto first = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(first.has_value());
  const Error second = OpenError("s");
  EXPECT_EQ(second.code, ErrorCode::kBusy);
  EXPECT_THAT(second.what, HasSubstr("process " + std::to_string(getpid())));
  first = ErrorCode::kShutdown;
  EXPECT_TRUE(OpenStoreParts(Path("s"), {}).has_value());
}

TEST_F(StoreDirectoryTest, AnOpenMarksTheDevicesInUseUntilMarkedClean) {
  Format("s");
  {
    auto parts = OpenStoreParts(Path("s"), {});
    ASSERT_TRUE(parts.has_value());
    EXPECT_TRUE(parts->was_clean);
    EXPECT_FALSE(SuperblockOf(Path("s/pool")).clean);
    EXPECT_EQ(Slurp(Path("s/lock")), std::to_string(getpid()) + "\n");
  }
  EXPECT_FALSE(SuperblockOf(Path("s/pool")).clean);
  auto parts = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(parts.has_value());
  EXPECT_FALSE(parts->was_clean);
  ASSERT_TRUE(MarkClean(parts->devices, parts->superblocks).has_value());
  parts->lock.Clear();
  EXPECT_TRUE(SuperblockOf(Path("s/pool")).clean);
  EXPECT_EQ(Slurp(Path("s/lock")), "");
}

TEST_F(StoreDirectoryTest, AnOpenErasesRootsThatAnOlderProgramDidNotKeep) {
  const StoreDescription made = Format("store");
  const auto root_with = [&](std::vector<wal::Stream> lists) {
    wal::Root root;
    root.store_id = made.id;
    root.lists = std::move(lists);
    return wal::EncodeRoot(root);
  };
  struct Case {
    bool replica, lists;  // that each program kept them
    size_t left;          // of two roots, one of them with lists
  };
  for (const Case& kept : {Case{true, true, 2}, Case{true, false, 1}, Case{false, false, 0}, Case{false, true, 0}}) {
    {
      auto parts = OpenStoreParts(Path("store"), {});
      ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
      parts->superblocks[0].keeps_replica = kept.replica;
      parts->superblocks[0].keeps_lists = kept.lists;
      ASSERT_OK(MarkClean(parts->devices, parts->superblocks));
    }
    Poke(Path("store/pool"), wal::kRootOffsets[0], root_with({}));
    Poke(Path("store/pool"), wal::kRootOffsets[1], root_with({{1, {}}, {2, {}}}));
    auto parts = OpenStoreParts(Path("store"), {});
    ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
    BlockDevice& device = *parts->devices[0];
    const auto superblock = ReadSuperblock(device);
    EXPECT_TRUE(superblock->keeps_replica && superblock->keeps_lists);
    const HugePageMemory memory = HugePageMemory::Map(wal::kRootCapacity).value();
    const auto is_root = [&](uint64_t offset) {
      return wal::ReadRoot(device, offset, {memory.data(), memory.size()}).value().has_value();
    };
    EXPECT_EQ(std::ranges::count_if(wal::kRootOffsets, is_root), kept.left);
  }
}

// As a kill leaves it that follows the rebuild of an index.
TEST_F(StoreDirectoryTest, AReplacedIndexIsRemovedByTheNextOpenForWriting) {
  Format("s");
  for (const bool read_only : {true, false}) {
    fs::create_directories(Path("s/meta.replaced"));
    MakeFile("s/meta.replaced/000001.sst", ByteCount{100});
    EXPECT_TRUE(OpenStoreParts(Path("s"), {.read_only = read_only}).has_value());
    EXPECT_EQ(fs::exists(Path("s/meta.replaced")), read_only);
  }
}

// A version from before the log on the devices left its last changes in the log of RocksDB when it was killed.
TEST_F(StoreDirectoryTest, TheFirstMountOfAnOlderStoreTakesTheLogOfRocksDbAlong) {
  Format("s");
  KvBatch batch;
  batch.Put(keys::Store("last"), "change");
  WriteOlderLog(Path("s/meta"), {batch});
  const auto expect_change = [&](const OpenOptions& options) {
    const auto parts = OpenStoreParts(Path("s"), options);
    ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
    EXPECT_EQ(parts->catalog->Get(keys::Store("last")).value(), "change");
  };
  expect_change({.read_only = true});
  EXPECT_FALSE(SuperblockOf(Path("s/pool")).logged);
  const auto location = FindStore(Path("s"));
  ASSERT_TRUE(location.has_value());
  ASSERT_OK(WriteLog(*location));
  EXPECT_TRUE(SuperblockOf(Path("s/pool")).logged);
  fs::remove_all(Path("s/meta"));
  expect_change({});
}

TEST_F(StoreDirectoryTest, AnOpenThatFailsLeavesAStoreThatWasClosed) {
  Format("s");
  {
    auto parts = OpenStoreParts(Path("s"), {});
    ASSERT_TRUE(parts.has_value());
    KvBatch batch;
    batch.Delete(keys::Inode(kRootInode));
    ASSERT_TRUE(parts->catalog->Write(batch).has_value());
    ASSERT_OK(parts->catalog->Sync());
    ASSERT_TRUE(MarkClean(parts->devices, parts->superblocks).has_value());
  }
  EXPECT_EQ(Slurp(Path("s/lock")), "");
  const auto session = StoreSession::Open(Path("s"), {}, {});
  ASSERT_FALSE(session.has_value());
  EXPECT_EQ(session.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(SuperblockOf(Path("s/pool")).clean);
  EXPECT_EQ(Slurp(Path("s/lock")), "");
}

TEST_F(StoreDirectoryTest, AStoreThatAMountCouldNotWriteStaysMarkedInUse) {
  Format("s");
  {
    auto parts = OpenStoreParts(Path("s"), {});
    ASSERT_TRUE(parts.has_value());
    KvBatch batch;
    batch.Put(keys::Extent(InodeId{5}, FileBlock{0}), "damage");
    ASSERT_TRUE(parts->catalog->Write(batch).has_value());
    ASSERT_OK(parts->catalog->Sync());
    ASSERT_TRUE(MarkClean(parts->devices, parts->superblocks).has_value());
  }
  const auto session = StoreSession::Open(Path("s"), {}, {});
  ASSERT_TRUE(session.has_value()) << ToString(session.error());
  EXPECT_TRUE((*session)->store().read_only());
  EXPECT_TRUE((*session)->Close().has_value());
  EXPECT_FALSE(SuperblockOf(Path("s/pool")).clean);
}

TEST_F(StoreDirectoryTest, OpenWaitsForAProbeOfTheLock) {
  Format("s");
  const int look = open(Path("s/lock").c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(flock(look, LOCK_SH), 0);
  const int opens = inotify_init1(IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(opens, Path("s/lock").c_str(), IN_OPEN), 0);
  std::thread release([&, opener = gettid()] {
    char event[1024];
    EXPECT_GT(read(opens, event, sizeof(event)), 0);
    WaitUntilAsleep(opener);
    close(look);
  });
  const auto lock = StoreLock::Acquire(Path("s"));
  release.join();
  close(opens);
  EXPECT_TRUE(lock.has_value()) << ToString(lock.error());
}

TEST_F(StoreDirectoryTest, AReadOnlyOpenLeavesTheDevicesAsTheyWere) {
  Format("s");
  const std::string before = Slurp(Path("s/pool"));
  {
    OpenOptions options;
    options.read_only = true;
    EXPECT_TRUE(OpenStoreParts(Path("s"), options).has_value());
  }
  EXPECT_EQ(Slurp(Path("s/pool")), before);
}

TEST_F(StoreDirectoryTest, TheLockFileNamesTheProcessAndItsMount) {
  const std::string directory = Path("a\nb c");
  fs::create_directory(directory);
  auto lock = StoreLock::Acquire(directory);
  ASSERT_TRUE(lock.has_value());
  EXPECT_FALSE(lock->holder_was_killed());
  EXPECT_TRUE(ReadStoreHolder(directory).held);
  EXPECT_EQ(ReadStoreHolder(directory).process, getpid());
  EXPECT_EQ(ReadStoreHolder(directory).noted, 0);
  lock->Claim();
  EXPECT_EQ(ReadStoreHolder(directory).noted, getpid());
  EXPECT_EQ(ReadStoreHolder(directory).state, StoreHolder::State::kWorking);
  EXPECT_FALSE(ReadStoreHolder(directory).IsEnding());
  lock->NoteServing({.device = "0:47", .source = directory}, "/mnt/a\nb c");
  const StoreHolder serving = ReadStoreHolder(directory);
  EXPECT_EQ(serving.state, StoreHolder::State::kServing);
  EXPECT_EQ(serving.filesystem.device, "0:47");
  EXPECT_EQ(serving.filesystem.source, directory);
  EXPECT_EQ(serving.directory, "/mnt/a\nb c");
  lock->NoteClosing();
  EXPECT_EQ(ReadStoreHolder(directory).noted, getpid());
  EXPECT_EQ(ReadStoreHolder(directory).state, StoreHolder::State::kClosing);
  EXPECT_TRUE(ReadStoreHolder(directory).IsEnding());
  lock->Clear("device full");
  EXPECT_EQ(ReadStoreHolder(directory).noted, 0);
  EXPECT_EQ(ReadStoreHolder(directory).error, "device full");
  lock->Clear();
  EXPECT_EQ(Slurp(directory + "/lock"), "");
}

// An empty file would say that the store was closed.
TEST_F(StoreDirectoryTest, ANoteThatCannotBeWrittenLeavesTheOneBefore) {
  const std::string directory = Path("held");
  fs::create_directory(directory);
  auto lock = StoreLock::Acquire(directory);
  ASSERT_TRUE(lock.has_value());
  lock->Claim();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  lock->NoteClosing();
  lock->Clear("device full");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(ReadStoreHolder(directory).noted, getpid());
}

// The number in the file may belong to another process: in another PID namespace, or a later one.
TEST_F(StoreDirectoryTest, TheHolderIsTheProcessWithTheLockAndNotTheOneInTheFile) {
  const std::string directory = Path("held");
  fs::create_directory(directory);
  std::ofstream(directory + "/lock") << "1\nserving 0:47 /mnt/a\n";
  const StoreHolder free = ReadStoreHolder(directory);
  EXPECT_EQ(free.directory, "/mnt/a");
  EXPECT_EQ(free.filesystem.source, "") << "an older version notes none";
  EXPECT_FALSE(free.held);
  EXPECT_EQ(free.process, 0);
  EXPECT_EQ(free.noted, 1);
  const auto lock = StoreLock::Acquire(directory);
  const StoreHolder holder = ReadStoreHolder(directory);
  EXPECT_TRUE(holder.held);
  EXPECT_EQ(holder.process, getpid());
  EXPECT_EQ(holder.noted, 1);
}

// A killed process releases its files in no particular order: the store's lock may be free before a device's lock.
TEST_F(StoreDirectoryTest, OpenWaitsForADeviceThatAKilledHolderHasNotReleasedYet) {
  Format("s");
  std::ofstream(Path("s/lock")) << "4194304\n";  // of a process that does not exist
  const int pool = open(Path("s/pool").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(pool, 0);
  ASSERT_EQ(flock(pool, LOCK_EX), 0);
  const int opens = inotify_init1(IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(opens, Path("s/pool").c_str(), IN_OPEN), 0);
  std::thread release([&, pool, opens, opener = gettid()] {
    // The process has opened the device and sleeps, because it found the lock taken.
    char event[1024];
    EXPECT_GT(read(opens, event, sizeof(event)), 0);
    WaitUntilAsleep(opener);
    EXPECT_EQ(ReadStoreHolder(Path("s")).process, getpid()) << "if this process is killed here, the next one waits";
    close(pool);
  });
  const auto parts = OpenStoreParts(Path("s"), {});
  release.join();
  close(opens);
  EXPECT_TRUE(parts.has_value()) << ToString(parts.error());
}

TEST_F(StoreDirectoryTest, ADeviceThatAnotherProcessLocksIsRefusedAtOnce) {
  Format("s");
  const int pool = open(Path("s/pool").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(pool, LOCK_EX), 0);
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kBusy);
  EXPECT_THAT(refused.what, HasSubstr(fmt::format("in use by process {} (", getpid())));
  EXPECT_EQ(Slurp(Path("s/lock")), "") << "the next one need not wait";
  close(pool);
}

TEST_F(StoreDirectoryTest, AStoreInUseCanBeOpenedWithoutTheLock) {
  Format("s");
  const auto mounted = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(mounted.has_value());
  OpenOptions look;
  look.lock = false;
  EXPECT_TRUE(OpenStoreParts(Path("s"), look).has_value());
}

TEST_F(StoreDirectoryTest, TheDeviceOfAnotherStoreIsRefused) {
  Format("s");
  Format("other");
  fs::copy_file(Path("other/pool"), Path("s/pool"), fs::copy_options::overwrite_existing);
  const auto before = Snapshot("s");
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.what, HasSubstr("belongs to the store"));
  EXPECT_EQ(Snapshot("s"), before);
}

// The kernel numbers devices anew at each start of the machine.
class MovedDevicesTest : public StoreDirectoryTest {
 protected:
  MovedDevicesTest() {
    for (const char* kind : {"by-id", "by-partuuid"}) fs::create_directories(Path("links") + "/" + kind);
    Format("s", OnDevices({first_, second_}));
  }

  Result<StoreParts> Open(bool read_only = false) {
    return OpenStoreParts(Path("s"), {.read_only = read_only, .device_links = Path("links")});
  }
  std::vector<std::string> ListedPaths() {
    std::vector<std::string> paths;
    for (const auto& device : Must(ReadStoreDescription(Path("s"))).devices) paths.push_back(device.path);
    return paths;
  }

  const std::string first_ = MakeFile("first", kSmall), second_ = MakeFile("second", kSmall);
};

TEST_F(MovedDevicesTest, SwappedDevicesAreFoundByTheirSuperblocks) {
  fs::rename(first_, Path("third"));
  fs::rename(second_, first_);
  fs::rename(Path("third"), second_);
  EXPECT_TRUE(Open(/*read_only=*/true).has_value());
  EXPECT_THAT(ListedPaths(), ElementsAre(first_, second_)) << "a read-only open changes nothing";
  EXPECT_TRUE(Open().has_value());
  EXPECT_THAT(ListedPaths(), ElementsAre(second_, first_));
  EXPECT_TRUE(Open().has_value());
}

TEST_F(MovedDevicesTest, ADeviceWithAnotherNameIsFoundAmongTheLinks) {
  fs::rename(second_, Path("moved"));
  MakeFile("other", kSmall);
  fs::create_symlink(Path("other"), Path("links/by-id/a"));
  fs::create_symlink(Path("nowhere"), Path("links/by-id/b"));
  fs::create_symlink(first_, Path("links/by-id/c"));
  fs::create_symlink(Path("moved"), Path("links/by-id/d"));
  fs::create_symlink(Path("moved"), Path("links/by-id/e"));  // disks have several names
  EXPECT_TRUE(Open().has_value());
  EXPECT_THAT(ListedPaths(), ElementsAre(first_, Path("links/by-id/d")));
}

// A virtual disk without a serial number has no link in by-id, but its partition has one.
TEST_F(MovedDevicesTest, APartitionIsFoundByItsUuid) {
  fs::rename(second_, Path("moved"));
  fs::create_symlink(Path("moved"), Path("links/by-partuuid/a"));
  EXPECT_TRUE(Open().has_value());
  EXPECT_THAT(ListedPaths(), ElementsAre(first_, Path("links/by-partuuid/a")));
}

TEST_F(MovedDevicesTest, ACopyOfADeviceIsNotTakenForIt) {
  fs::rename(second_, Path("moved"));
  fs::copy_file(Path("moved"), Path("copy"));
  fs::create_symlink(Path("moved"), Path("links/by-id/a"));
  fs::create_symlink(Path("copy"), Path("links/by-id/b"));
  const auto before = Snapshot("s");
  const auto opened = Open();
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Snapshot("s"), before);
}

TEST_F(MovedDevicesTest, ADeviceAtItsListedPathIsTakenThoughThereIsACopy) {
  fs::copy_file(second_, Path("copy"));
  fs::create_symlink(Path("copy"), Path("links/by-id/a"));
  EXPECT_TRUE(Open().has_value());
  EXPECT_THAT(ListedPaths(), ElementsAre(first_, second_));
}

TEST_F(MovedDevicesTest, ADeviceOfAnotherStoreIsRefused) {
  MakeFile("other", kSmall);
  Format("t", OnDevices({Path("other")}));
  fs::copy_file(Path("other"), second_, fs::copy_options::overwrite_existing);
  const auto opened = Open();
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(opened.error().what, HasSubstr("belongs to the store"));
}

TEST_F(StoreDirectoryTest, ATruncatedPoolIsRefused) {
  Format("s");
  fs::resize_file(Path("s/pool"), kSmall.value - kMiB);
  const auto before = Snapshot("s");
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.what, HasSubstr("truncated"));
  EXPECT_EQ(Snapshot("s"), before);
}

TEST_F(StoreDirectoryTest, AMissingDeviceIsNamed) {
  const std::string device = MakeFile("device", kSmall);
  Format("s", OnDevices({device}));
  fs::remove(device);
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kNotFound);
  EXPECT_THAT(refused.what, HasSubstr(device));
}

TEST_F(StoreDirectoryTest, TheCatalogOfAnotherStoreIsRefused) {
  Format("s");
  Format("other");
  fs::remove_all(Path("s/meta"));
  fs::copy(Path("other/meta"), Path("s/meta"), fs::copy_options::recursive);
  const std::string pool = Slurp(Path("s/pool"));
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.what, HasSubstr("catalog belongs to the store"));
  EXPECT_EQ(Slurp(Path("s/pool")), pool);
}

TEST_F(StoreDirectoryTest, ANewerFormatIsRefused) {
  Format("s");
  std::string text = Slurp(Path("s/store.json"));
  const size_t at = text.find("\"format\": 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 11, "\"format\": 7");
  std::ofstream(Path("s/store.json")) << text;
  const auto before = Snapshot("s");
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kVersion);
  EXPECT_THAT(refused.what, HasSubstr("newer"));
  EXPECT_EQ(Snapshot("s"), before);
}

TEST_F(StoreDirectoryTest, ADirectoryWithoutAStoreIsNotFound) {
  fs::create_directory(Path("empty"));
  EXPECT_EQ(OpenError("empty").code, ErrorCode::kNotFound);
  EXPECT_EQ(OpenError("nowhere").code, ErrorCode::kNotFound);
}

class DamagedDescriptionTest : public StoreDirectoryTest, public testing::WithParamInterface<const char*> {};

TEST_P(DamagedDescriptionTest, IsCorruptAndNeverFatal) {
  fs::create_directory(Path("s"));
  std::ofstream(Path("s/store.json")) << GetParam();
  const auto read = ReadStoreDescription(Path("s"));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(
    Texts, DamagedDescriptionTest,
    testing::Values("", "{", "[]", "{}", R"({"format": "1"})", R"({"format": -1})", R"({"format": 1, "id": "x"})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": []})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [7]})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [
                        {"index": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "path": "pool", "size": 1}]})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [
                        {"index": 0, "id": "00112233-4455-4677-8899-aabbccddeeff", "path": 3, "size": 1}]})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [
                        {"index": 0, "id": "00112233-4455-4677-8899-aabbccddeeff", "path": "", "size": 1}]})",
                    R"({"format": 1, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [
                        {"index": 0, "id": "00112233-4455-4677-8899-aabbccddeeff", "path": "po\u0000ol", "size": 1}]})",
                    R"({"format": 0, "id": "00112233-4455-4677-8899-aabbccddeeff", "devices": [
                        {"index": 0, "id": "00112233-4455-4677-8899-aabbccddeeff", "path": "pool", "size": 1}]})"));

}  // namespace
}  // namespace weightfs

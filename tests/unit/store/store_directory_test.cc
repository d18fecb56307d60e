// SPDX-License-Identifier: Apache-2.0
#include "store/volume/store_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "common/checksum.h"
#include "meta/keys.h"
#include "store/volume/store_session.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_state.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr ByteCount kSmall{16 * kMiB};
// Larger than a file may be on any filesystem.
constexpr ByteCount kHuge{uint64_t{1} << 61};

class StoreDirectoryTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const { return (scratch_.path() / name).string(); }

  StoreDescription Format(const std::string& name, FormatOptions options = {}) const {
    if (options.devices.empty() && options.size.value == 0) options.size = kSmall;
    auto made = FormatStore(Path(name), options);
    if (!made.has_value()) {
      ADD_FAILURE() << ToString(made.error());
      return {};
    }
    return *made;
  }

  Error FormatError(const std::string& name, const FormatOptions& options) const {
    auto made = FormatStore(Path(name), options);
    if (!made.has_value()) return made.error();
    ADD_FAILURE() << "format of " << name << " succeeded";
    return {ErrorCode::kInvalid};
  }

  Error OpenError(const std::string& name) const {
    auto parts = OpenStoreParts(Path(name), {});
    if (!parts.has_value()) return parts.error();
    ADD_FAILURE() << "open of " << name << " succeeded";
    return {ErrorCode::kInvalid};
  }

  std::string MakeFile(const std::string& name, ByteCount size) const {
    std::ofstream(Path(name)).flush();
    fs::resize_file(Path(name), size.value);
    return Path(name);
  }

  static void Poke(const std::string& path, uint64_t offset, std::string_view bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }

  static std::string Slurp(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // Maps every file under `name` to its content.
  std::map<std::string, uint32_t> Snapshot(const std::string& name) const {
    std::map<std::string, uint32_t> files;
    for (const auto& entry : fs::recursive_directory_iterator(Path(name))) {
      if (!entry.is_regular_file()) continue;
      const std::string content = Slurp(entry.path().string());
      files[entry.path().string()] = Crc32c(std::as_bytes(std::span(content)));
    }
    return files;
  }

  TemporaryDirectory scratch_;
};

FormatOptions Sized(ByteCount size) {
  FormatOptions options;
  options.size = size;
  return options;
}

FormatOptions OnDevices(std::vector<std::string> devices) {
  FormatOptions options;
  options.devices = std::move(devices);
  return options;
}

Superblock SuperblockOf(const std::string& path) {
  auto device = FileDevice::Open(path, {.exclusive = false});
  EXPECT_TRUE(device.has_value());
  auto superblock = ReadSuperblock(**device);
  EXPECT_TRUE(superblock.has_value());
  return *superblock;
}

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

TEST_F(StoreDirectoryTest, ThePoolIsReservedUnlessSparse) {
  Format("full");
  FormatOptions sparse = Sized(ByteCount{256 * kMiB});
  sparse.preallocate = false;
  Format("sparse", sparse);
  struct stat full = {}, thin = {};
  ASSERT_EQ(stat(Path("full/pool").c_str(), &full), 0);
  ASSERT_EQ(stat(Path("sparse/pool").c_str(), &thin), 0);
  EXPECT_GE(static_cast<uint64_t>(full.st_blocks) * 512, kSmall.value);
  EXPECT_EQ(thin.st_size, static_cast<off_t>(256 * kMiB));
  EXPECT_LT(static_cast<uint64_t>(thin.st_blocks) * 512, 16 * kMiB);
}

TEST_F(StoreDirectoryTest, OtherUsersMayNotReadTheStore) {
  Format("s");
  EXPECT_EQ(fs::status(Path("s")).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
}

TEST_F(StoreDirectoryTest, ProgressReachesTheTotal) {
  ByteCount last, total;
  FormatOptions options = Sized(kSmall);
  options.progress = [&](ByteCount done, ByteCount all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  };
  Format("s", options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, kSmall);
}

TEST_F(StoreDirectoryTest, FormatUsesAnExistingEmptyDirectory) {
  fs::create_directory(Path("s"));
  fs::create_directory(Path("s/lost+found"));
  Format("s");
}

TEST_F(StoreDirectoryTest, FormatRefusesWhatIsThereUnlessForced) {
  const auto first = Format("s");
  const auto before = Snapshot("s");
  const Error refused = FormatError("s", Sized(kSmall));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("already holds a store"));
  EXPECT_EQ(Snapshot("s"), before);

  FormatOptions forced = Sized(ByteCount{2 * kSmall.value});
  forced.force = true;
  const auto second = Format("s", forced);
  EXPECT_NE(second.id, first.id);
  EXPECT_TRUE(OpenStoreParts(Path("s"), {}).has_value());
}

TEST_F(StoreDirectoryTest, AForcedFormatToASmallerPoolShortensIt) {
  Format("s", Sized(ByteCount{2 * kSmall.value}));
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  Format("s", forced);
  EXPECT_EQ(fs::file_size(Path("s/pool")), kSmall.value);
  EXPECT_TRUE(OpenStoreParts(Path("s"), {}).has_value());
}

TEST_F(StoreDirectoryTest, FormatRefusesADirectoryWithOtherFiles) {
  fs::create_directory(Path("s"));
  MakeFile("s/thesis.tex", ByteCount{10});
  const Error refused = FormatError("s", Sized(kSmall));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("thesis.tex"));
}

TEST_F(StoreDirectoryTest, AForcedFormatKeepsADirectoryMetaWithOtherFiles) {
  fs::create_directories(Path("s/meta"));
  MakeFile("s/meta/photo.jpg", ByteCount{10});
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kExists);
  EXPECT_TRUE(fs::exists(Path("s/meta/photo.jpg")));
}

TEST_F(StoreDirectoryTest, AFormatThatFailsLeavesNothingBehind) {
  EXPECT_EQ(FormatError("small", Sized(ByteCount{kMiB})).code, ErrorCode::kInvalid);
  EXPECT_FALSE(fs::exists(Path("small")));
  const Error huge = FormatError("huge", Sized(kHuge));
  EXPECT_EQ(huge.code, ErrorCode::kNoSpace);
  EXPECT_THAT(huge.what, HasSubstr("free"));
  EXPECT_FALSE(fs::exists(Path("huge")));
  EXPECT_EQ(FormatError("no/such/parent", Sized(kSmall)).code, ErrorCode::kNotFound);
}

TEST_F(StoreDirectoryTest, AForcedFormatThatDoesNotFitKeepsTheOldStore) {
  const auto first = Format("s");
  FormatOptions forced = Sized(kHuge);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kNoSpace);
  const auto parts = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
  EXPECT_EQ(parts->description.id, first.id);
  EXPECT_EQ(fs::file_size(Path("s/pool")), kSmall.value);
}

TEST_F(StoreDirectoryTest, AForcedFormatThatFailsLeavesNoNameInTheLock) {
  Format("s");
  std::atomic<bool> cancel{false};
  FormatOptions options = Sized(kSmall);
  options.force = true;
  options.cancel = &cancel;
  options.progress = [&](ByteCount, ByteCount) { cancel = true; };
  EXPECT_EQ(FormatError("s", options).code, ErrorCode::kShutdown);
  EXPECT_EQ(Slurp(Path("s/lock")), "");
}

TEST_F(StoreDirectoryTest, DotsAfterALinkAreFollowed) {
  fs::create_directories(Path("elsewhere/below"));
  fs::create_directory_symlink(Path("elsewhere/below"), Path("link"));
  const std::string device = MakeFile("elsewhere/device", kSmall);
  MakeFile("device", kSmall);
  const auto made = Format("link/../s/./", OnDevices({Path("link/../device")}));
  EXPECT_TRUE(fs::exists(Path("elsewhere/s/store.json")));
  EXPECT_FALSE(fs::exists(Path("s")));
  ASSERT_EQ(made.devices.size(), 1U);
  EXPECT_EQ(SuperblockOf(device).device_id, made.devices[0].id);
  EXPECT_TRUE(OpenStoreParts(Path("elsewhere/s"), {}).has_value());
}

TEST_F(StoreDirectoryTest, ACanceledFormatLeavesNothing) {
  std::atomic<bool> cancel{false};
  FormatOptions options = Sized(ByteCount{64 * kMiB});
  options.cancel = &cancel;
  options.progress = [&](ByteCount, ByteCount) { cancel = true; };
  EXPECT_THAT(FormatError("s", options).what, HasSubstr("interrupted"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(StoreDirectoryTest, AMountedStoreIsNotFormattedNotEvenByForce) {
  Format("s");
  const auto mounted = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(mounted.has_value());
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kBusy);
}

TEST_F(StoreDirectoryTest, FormatRefusesADeviceThatHoldsSomething) {
  const std::string device = MakeFile("device", kSmall);
  Poke(device, 1000000, "x");
  Error refused = FormatError("s", OnDevices({device}));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("1000000"));
  EXPECT_FALSE(fs::exists(Path("s")));

  FormatOptions forced = OnDevices({device});
  forced.force = true;
  Format("s", forced);
  EXPECT_EQ(Slurp(device).substr(1000000, 1), std::string(1, '\0'));

  refused = FormatError("other", OnDevices({device}));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("weightfs store"));
}

TEST_F(StoreDirectoryTest, FormatNamesTheSignatureOnADevice) {
  // A swap area: version 1, its last page, and the magic at the end of the first page.
  const std::string device = MakeFile("device", kSmall);
  Poke(device, 1024, std::string_view("\x01\0\0\0\xff\x0f\0\0", 8));
  Poke(device, 4086, "SWAPSPACE2");
  const Error refused = FormatError("s", OnDevices({device}));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("swap"));
}

TEST_F(StoreDirectoryTest, FormatRefusesADeviceThatIsMissingTooSmallOrGivenTwice) {
  EXPECT_EQ(FormatError("s", OnDevices({Path("nowhere")})).code, ErrorCode::kNotFound);
  EXPECT_EQ(FormatError("s", OnDevices({MakeFile("tiny", ByteCount{kMiB})})).code, ErrorCode::kInvalid);
  const std::string device = MakeFile("device", kSmall);
  fs::create_symlink(device, Path("alias"));
  const Error twice = FormatError("s", OnDevices({device, Path("alias")}));
  EXPECT_EQ(twice.code, ErrorCode::kInvalid);
  EXPECT_THAT(twice.what, HasSubstr("twice"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(StoreDirectoryTest, FormatRefusesMoreDevicesThanAStoreMayHave) {
  std::vector<std::string> paths;
  for (size_t index = 0; index <= kMaximumDevices; ++index) paths.push_back(Path("device-" + std::to_string(index)));
  const Error refused = FormatError("s", OnDevices(paths));
  EXPECT_EQ(refused.code, ErrorCode::kInvalid);
  EXPECT_THAT(refused.what, HasSubstr("1025 devices"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(StoreDirectoryTest, SeveralDevicesKeepTheirOrder) {
  const std::string first = MakeFile("first", kSmall), second = MakeFile("second", ByteCount{2 * kSmall.value});
  const auto made = Format("s", OnDevices({first, second}));
  ASSERT_EQ(made.devices.size(), 2u);
  EXPECT_EQ(made.devices[0].path, first);
  EXPECT_FALSE(fs::exists(Path("s/pool")));
  const auto parts = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
  EXPECT_EQ(parts->devices[1]->path(), second);
  EXPECT_EQ(parts->superblocks[1].device_index, DeviceId{1});
  EXPECT_EQ(parts->superblocks[1].device_count, 2);
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

TEST_F(StoreDirectoryTest, AnOpenThatFailsLeavesAStoreThatWasClosed) {
  Format("s");
  {
    auto parts = OpenStoreParts(Path("s"), {});
    ASSERT_TRUE(parts.has_value());
    KvBatch batch;
    batch.Delete(keys::Inode(kRootInode));
    ASSERT_TRUE(parts->catalog->Write(batch).has_value());
    ASSERT_TRUE(MarkClean(parts->devices, parts->superblocks).has_value());
  }
  EXPECT_EQ(Slurp(Path("s/lock")), "");
  const auto session = StoreSession::Open(Path("s"), {}, {});
  ASSERT_FALSE(session.has_value());
  EXPECT_EQ(session.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(SuperblockOf(Path("s/pool")).clean);
  EXPECT_EQ(Slurp(Path("s/lock")), "");
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
  lock->NoteServing("0:47", "/mnt/a\nb c");
  const StoreHolder serving = ReadStoreHolder(directory);
  EXPECT_EQ(serving.state, StoreHolder::State::kServing);
  EXPECT_EQ(serving.device, "0:47");
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

// The number in the file may belong to another process: in another PID namespace, or a later one.
TEST_F(StoreDirectoryTest, TheHolderIsTheProcessWithTheLockAndNotTheOneInTheFile) {
  const std::string directory = Path("held");
  fs::create_directory(directory);
  std::ofstream(directory + "/lock") << "1\nserving 0:47 /mnt/a\n";
  const StoreHolder free = ReadStoreHolder(directory);
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
  EXPECT_THAT(refused.what, HasSubstr("locked by another process"));
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

TEST_F(StoreDirectoryTest, SwappedDevicesAreRefused) {
  const std::string first = MakeFile("first", kSmall), second = MakeFile("second", kSmall);
  Format("s", OnDevices({first, second}));
  fs::rename(first, Path("third"));
  fs::rename(second, first);
  fs::rename(Path("third"), second);
  const auto before = Snapshot("s");
  const Error refused = OpenError("s");
  EXPECT_EQ(refused.code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.what, HasSubstr("is device 1 of the store, not device 0"));
  EXPECT_EQ(Snapshot("s"), before);
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

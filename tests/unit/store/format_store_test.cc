// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/aligned_memory.h"
#include "tests/unit/store/store_directory_fixture.h"

namespace weightfs {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class FormatStoreTest : public StoreDirectoryTest {};

TEST_F(FormatStoreTest, ThePoolIsReservedUnlessSparse) {
  Format("full");
  FormatOptions sparse = Sized(ByteCount{256 * kMiB});
  sparse.fill = PoolFill::kNone;
  Format("sparse", sparse);
  struct stat full = {}, thin = {};
  ASSERT_EQ(stat(Path("full/pool").c_str(), &full), 0);
  ASSERT_EQ(stat(Path("sparse/pool").c_str(), &thin), 0);
  EXPECT_GE(static_cast<uint64_t>(full.st_blocks) * 512, kSmall.value);
  EXPECT_EQ(thin.st_size, static_cast<off_t>(256 * kMiB));
  EXPECT_LT(static_cast<uint64_t>(thin.st_blocks) * 512, 16 * kMiB);
}

TEST_F(FormatStoreTest, OnlyTheDataAreaIsFilledWithData) {
  FormatOptions options = Sized(kSmall);
  options.fill = PoolFill::kData;
  Format("s", options);
  const std::string bytes = Slurp(Path("s/pool"));
  ASSERT_EQ(bytes.size(), kSmall.value);
  const std::string zeros(kBlockSize, '\0');
  std::set<std::string> blocks;
  for (uint64_t at = kDataOffset; at < kSmall.value - kDataOffset; at += kBlockSize) {
    blocks.insert(bytes.substr(at, kBlockSize));
  }
  EXPECT_EQ(blocks.size(), (kSmall.value - 2 * kDataOffset) / kBlockSize);  // no two are alike
  EXPECT_FALSE(blocks.contains(zeros));
  for (uint64_t at = 0; at < kDataOffset; at += kBlockSize) {
    const bool superblock = std::ranges::find(kSuperblockOffsets, at) != kSuperblockOffsets.end();
    EXPECT_EQ(bytes.compare(at, kBlockSize, zeros) == 0, !superblock) << at;
    EXPECT_EQ(bytes.compare(kSmall.value - kDataOffset + at, kBlockSize, zeros), 0) << at;
  }
  EXPECT_TRUE(OpenStoreParts(Path("s"), {}).has_value());
}

TEST_F(FormatStoreTest, AFormatWithDataLeavesNothingOfTheOldStore) {
  const auto first = Format("s");
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  forced.fill = PoolFill::kData;
  const auto second = Format("s", forced);
  EXPECT_EQ(SuperblockOf(Path("s/pool")).store_id, second.id);
  const std::string old(reinterpret_cast<const char*>(first.id.data()), first.id.size());
  EXPECT_EQ(Slurp(Path("s/pool")).find(old), std::string::npos);
}

TEST_F(FormatStoreTest, OtherUsersMayNotReadTheStore) {
  Format("s");
  EXPECT_EQ(fs::status(Path("s")).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none);
}

TEST_F(FormatStoreTest, ProgressReachesTheTotal) {
  uint64_t last = 0, total = 0;
  FormatOptions options = Sized(kSmall);
  options.progress = [&](const Progress& progress) {
    EXPECT_GT(progress.done, last);
    last = progress.done;
    total = progress.total;
  };
  Format("s", options);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, kSmall.value);
}

TEST_F(FormatStoreTest, FormatUsesAnExistingEmptyDirectory) {
  fs::create_directory(Path("s"));
  fs::create_directory(Path("s/lost+found"));
  Format("s");
}

TEST_F(FormatStoreTest, FormatRefusesWhatIsThereUnlessForced) {
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

// What is left can be rebuilt by `weightfs recover`.
TEST_F(FormatStoreTest, WhatIsLeftOfADamagedStoreIsNotOverwrittenByForce) {
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  const auto refuses = [&](std::string_view what) {
    const auto before = Snapshot("s");
    const Error refused = FormatError("s", forced);
    EXPECT_EQ(refused.code, ErrorCode::kExists);
    EXPECT_THAT(refused.what, AllOf(HasSubstr(what), HasSubstr("weightfs recover"), HasSubstr("--discard-damaged")));
    EXPECT_EQ(Snapshot("s"), before);
  };
  Format("s");
  fs::remove(Path("s/store.json"));
  refuses("its store.json is missing");
  const Error no_store = OpenError("s");
  EXPECT_THAT(no_store.what, AllOf(HasSubstr("without its store.json"), HasSubstr("weightfs recover")));
  fs::remove_all(Path("s/meta"));
  refuses("its store.json is missing");
  forced.discard_damaged = true;
  Format("s", forced);
  forced.discard_damaged = false;
  fs::remove_all(Path("s/meta"));
  refuses("its meta is missing");
  std::ofstream(Path("s/store.json")) << "{";
  refuses("its store.json is damaged");
  fs::remove_all(Path("s"));
  Format("s");
  for (const uint64_t offset : kSuperblockOffsets) Poke(Path("s/pool"), offset + 8, "damage");
  refuses("with a damaged superblock");
}

TEST_F(FormatStoreTest, TheDeviceOfAStoreWithADamagedSuperblockIsNotOverwrittenByForce) {
  const std::string device = MakeFile("device", kSmall);
  Format("s", OnDevices({device}));
  for (const uint64_t offset : kSuperblockOffsets) Poke(device, offset + 8, "damage");
  FormatOptions forced = OnDevices({device});
  forced.force = true;
  EXPECT_THAT(FormatError("t", forced).what,
              AllOf(HasSubstr("with a damaged superblock"), HasSubstr("'weightfs recover'")));
  forced.discard_damaged = true;
  Format("t", forced);
}

TEST_F(FormatStoreTest, AForcedFormatToASmallerPoolShortensIt) {
  Format("s", Sized(ByteCount{2 * kSmall.value}));
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  Format("s", forced);
  EXPECT_EQ(fs::file_size(Path("s/pool")), kSmall.value);
  EXPECT_TRUE(OpenStoreParts(Path("s"), {}).has_value());
}

TEST_F(FormatStoreTest, FormatRefusesADirectoryWithOtherFiles) {
  fs::create_directory(Path("s"));
  MakeFile("s/thesis.tex", ByteCount{10});
  const Error refused = FormatError("s", Sized(kSmall));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("thesis.tex"));
}

TEST_F(FormatStoreTest, AForcedFormatKeepsADirectoryMetaWithOtherFiles) {
  fs::create_directories(Path("s/meta"));
  MakeFile("s/meta/photo.jpg", ByteCount{10});
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kExists);
  EXPECT_TRUE(fs::exists(Path("s/meta/photo.jpg")));
}

TEST_F(FormatStoreTest, AFormatThatFailsLeavesNothingBehind) {
  EXPECT_EQ(FormatError("small", Sized(ByteCount{kMiB})).code, ErrorCode::kInvalid);
  EXPECT_FALSE(fs::exists(Path("small")));
  const Error huge = FormatError("huge", Sized(kHuge));
  EXPECT_EQ(huge.code, ErrorCode::kNoSpace);
  EXPECT_THAT(huge.what, HasSubstr("free"));
  EXPECT_FALSE(fs::exists(Path("huge")));
  EXPECT_EQ(FormatError("no/such/parent", Sized(kSmall)).code, ErrorCode::kNotFound);
}

TEST_F(FormatStoreTest, AForcedFormatThatDoesNotFitKeepsTheOldStore) {
  const auto first = Format("s");
  FormatOptions forced = Sized(kHuge);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kNoSpace);
  const auto parts = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(parts.has_value()) << ToString(parts.error());
  EXPECT_EQ(parts->description.id, first.id);
  EXPECT_EQ(fs::file_size(Path("s/pool")), kSmall.value);
}

TEST_F(FormatStoreTest, AForcedFormatThatFailsLeavesNoNameInTheLock) {
  Format("s");
  std::atomic<bool> cancel{false};
  FormatOptions options = Sized(kSmall);
  options.force = true;
  options.cancel = &cancel;
  options.progress = [&](const Progress&) { cancel = true; };
  EXPECT_EQ(FormatError("s", options).code, ErrorCode::kShutdown);
  EXPECT_EQ(Slurp(Path("s/lock")), "");
}

TEST_F(FormatStoreTest, DotsAfterALinkAreFollowed) {
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

TEST_F(FormatStoreTest, ACanceledFormatLeavesNothing) {
  std::atomic<bool> cancel{false};
  FormatOptions options = Sized(ByteCount{64 * kMiB});
  options.cancel = &cancel;
  options.progress = [&](const Progress&) { cancel = true; };
  EXPECT_THAT(FormatError("s", options).what, HasSubstr("interrupted"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(FormatStoreTest, AMountedStoreIsNotFormattedNotEvenByForce) {
  Format("s");
  const auto mounted = OpenStoreParts(Path("s"), {});
  ASSERT_TRUE(mounted.has_value());
  FormatOptions forced = Sized(kSmall);
  forced.force = true;
  EXPECT_EQ(FormatError("s", forced).code, ErrorCode::kBusy);
}

TEST_F(FormatStoreTest, FormatRefusesADeviceThatHoldsSomething) {
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

TEST_F(FormatStoreTest, FormatNamesTheSignatureOnADevice) {
  // A swap area: version 1, its last page, and the magic at the end of the first page.
  const std::string device = MakeFile("device", kSmall);
  Poke(device, 1024, std::string_view("\x01\0\0\0\xff\x0f\0\0", 8));
  Poke(device, 4086, "SWAPSPACE2");
  const Error refused = FormatError("s", OnDevices({device}));
  EXPECT_EQ(refused.code, ErrorCode::kExists);
  EXPECT_THAT(refused.what, HasSubstr("swap"));
}

TEST_F(FormatStoreTest, FormatRefusesADeviceThatIsMissingTooSmallOrGivenTwice) {
  EXPECT_EQ(FormatError("s", OnDevices({Path("nowhere")})).code, ErrorCode::kNotFound);
  EXPECT_EQ(FormatError("s", OnDevices({MakeFile("tiny", ByteCount{kMiB})})).code, ErrorCode::kInvalid);
  const std::string device = MakeFile("device", kSmall);
  fs::create_symlink(device, Path("alias"));
  const Error twice = FormatError("s", OnDevices({device, Path("alias")}));
  EXPECT_EQ(twice.code, ErrorCode::kInvalid);
  EXPECT_THAT(twice.what, HasSubstr("twice"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(FormatStoreTest, FormatRefusesMoreDevicesThanAStoreMayHave) {
  std::vector<std::string> paths;
  for (size_t index = 0; index <= kMaximumDevices; ++index) paths.push_back(Path("device-" + std::to_string(index)));
  const Error refused = FormatError("s", OnDevices(paths));
  EXPECT_EQ(refused.code, ErrorCode::kInvalid);
  EXPECT_THAT(refused.what, HasSubstr("1025 devices"));
  EXPECT_FALSE(fs::exists(Path("s")));
}

TEST_F(FormatStoreTest, SeveralDevicesKeepTheirOrder) {
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

}  // namespace
}  // namespace weightfs

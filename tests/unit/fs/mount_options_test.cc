// SPDX-License-Identifier: Apache-2.0
#include "fs/mount_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/machine_memory.h"

namespace weightfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Parsed {
  MountOptions mount;
  StoreOptions store;
  Result<void> result;
};

Parsed Parse(std::string_view text) {
  Parsed parsed;
  parsed.result = ApplyMountOptions(text, parsed.mount, parsed.store);
  return parsed;
}

TEST(MountOptions, NoOptionsChangeNothing) {
  for (const char* text : {"", ",", ",,"}) {
    const Parsed parsed = Parse(text);
    ASSERT_TRUE(parsed.result.has_value());
    EXPECT_EQ(parsed.mount.threads, 2U);
    EXPECT_FALSE(parsed.mount.read_only);
    EXPECT_THAT(parsed.mount.kernel_options, IsEmpty());
  }
}

TEST(MountOptions, SetWhatTheyName) {
  const Parsed parsed = Parse(
      "ro,allow_other,threads=4,memory=512M,write_buffers=128M,read_ahead=0,inodes=1000,commit=0.5,sync_on_close,"
      "noverify,noatime,nodev");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_TRUE(parsed.mount.read_only);
  EXPECT_TRUE(parsed.store.read_only);
  EXPECT_TRUE(parsed.mount.allow_other);
  EXPECT_EQ(parsed.mount.threads, 4U);
  EXPECT_EQ(parsed.store.memory.value, 512 * kMiB);
  EXPECT_EQ(parsed.mount.write_buffers.value, 128 * kMiB);
  EXPECT_EQ(parsed.mount.read_ahead.value, 0U);
  EXPECT_EQ(parsed.store.resident_inodes, 1000U);
  EXPECT_EQ(parsed.store.commit_interval.count(), 500);
  EXPECT_TRUE(parsed.store.sync_on_close);
  EXPECT_FALSE(parsed.store.verify);
  EXPECT_THAT(parsed.mount.kernel_options, ElementsAre("noatime", "nodev"));
}

TEST(MountOptions, DirectSelectsTheTrustedUsers) {
  EXPECT_EQ(Parse("").mount.direct, DirectAccess::kOwner);
  EXPECT_EQ(Parse("direct=owner").mount.direct, DirectAccess::kOwner);
  EXPECT_EQ(Parse("direct=root").mount.direct, DirectAccess::kRoot);
  EXPECT_EQ(Parse("direct=off").mount.direct, DirectAccess::kOff);
  const Parsed wrong = Parse("direct=everybody");
  ASSERT_FALSE(wrong.result.has_value());
  EXPECT_THAT(wrong.result.error().what, HasSubstr("direct=everybody"));
}

TEST(MountOptions, LaterOptionWins) {
  EXPECT_FALSE(Parse("ro,rw").mount.read_only);
  EXPECT_TRUE(Parse("rw,ro").mount.read_only);
}

TEST(MountOptions, WithoutTakesAListUpToTheNextOption) {
  const Parsed parsed = Parse("without=direct_io_allow_mmap,async_dio,threads=1,without=posix_acl:max_pages,ro");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_THAT(parsed.mount.without, ElementsAre("direct_io_allow_mmap", "async_dio", "posix_acl", "max_pages"));
  EXPECT_EQ(parsed.mount.threads, 1U);
  EXPECT_TRUE(parsed.mount.read_only);
}

TEST(MountOptions, OptionsAddedByFstabAreIgnored) {
  const Parsed parsed = Parse("defaults,_netdev,nofail,noauto,user,x-systemd.automount");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_THAT(parsed.mount.kernel_options, IsEmpty());
}

TEST(MountOptions, BackslashKeepsAComma) {
  const Parsed parsed = Parse("context=system_u:object_r:tmp_t:s0:c127\\,c456,noexec");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_THAT(parsed.mount.kernel_options, ElementsAre("context=system_u:object_r:tmp_t:s0:c127,c456", "noexec"));
}

TEST(MountOptions, RefusalsNameTheOption) {
  for (const auto& [text, named] :
       std::initializer_list<std::pair<const char*, const char*>>{{"frobnicate", "'frobnicate'"},
                                                                  {"threads=0", "threads=0"},
                                                                  {"threads=many", "threads=many"},
                                                                  {"threads", "threads=N"},
                                                                  {"memory=1M", "memory=1M"},
                                                                  {"memory=big", "option memory=big: 'big'"},
                                                                  {"commit=-1", "commit=-1"},
                                                                  {"commit=nan", "commit=nan"},
                                                                  {"commit=1e9", "commit=1e9"},
                                                                  {"ro=1", "ro=1"},
                                                                  {"without=warp", "without=warp"},
                                                                  {"without=", "without=FEATURE"},
                                                                  {"inodes=3x", "inodes=3x"},
                                                                  {"async_dio", "'async_dio'"}}) {
    const Parsed parsed = Parse(text);
    ASSERT_FALSE(parsed.result.has_value()) << text;
    EXPECT_EQ(parsed.result.error().code, ErrorCode::kInvalid) << text;
    EXPECT_THAT(parsed.result.error().what, HasSubstr(named));
  }
}

TEST(MountOptions, LessMemoryThanThePoolsNeedIsRefused) {
  const Parsed least = Parse("memory=112M");
  ASSERT_TRUE(least.result.has_value()) << ToString(least.result.error());
  EXPECT_EQ(least.store.memory, kLeastMemory);
  for (const char* text : {"memory=111M", "memory=32M"}) {
    const Parsed less = Parse(text);
    ASSERT_FALSE(less.result.has_value()) << text;
    EXPECT_THAT(less.result.error().what, HasSubstr("at least 112"));
  }
}

TEST(MountOptions, MoreMemoryThanTheMachineHasIsRefused) {
  for (const auto& [text, named] : std::initializer_list<std::pair<const char*, const char*>>{
           {"memory=900T", "option memory=:"},
           {"write_buffers=900T", "option write_buffers=:"},
           {"read_ahead=900T", "option read_ahead=:"},
           {"memory=112M,read_ahead=900T", "option read_ahead=:"},
           {"memory=112M,write_buffers=900T", "option memory= + write_buffers=:"}}) {
    const Parsed parsed = Parse(text);
    ASSERT_TRUE(parsed.result.has_value()) << text;
    const auto checked = CheckMemory(parsed.mount, parsed.store);
    ASSERT_FALSE(checked.has_value()) << text;
    EXPECT_EQ(checked.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(checked.error().what, HasSubstr(named));
  }
  for (const char* text : {"", "memory=112M", "read_ahead=1M,inodes=1000"}) {
    const Parsed parsed = Parse(text);
    EXPECT_TRUE(CheckMemory(parsed.mount, parsed.store).has_value()) << text;
  }
}

TEST(MountOptions, InodesCountAsMemory) {
  const auto limit = FindMemoryLimit();
  ASSERT_TRUE(limit.has_value());
  const Parsed parsed = Parse("inodes=4294967296");  // 4 TiB
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  const auto checked = CheckMemory(parsed.mount, parsed.store);
  if (limit->size >= ByteCount{4 * kTiB}) {
    EXPECT_TRUE(checked.has_value());
  } else {
    ASSERT_FALSE(checked.has_value());
    EXPECT_EQ(checked.error().code, ErrorCode::kNoMemory);
    EXPECT_THAT(checked.error().what, HasSubstr("option inodes=: "));
  }
}

TEST(MountOptions, OptionsThatMountHandlesAreAccepted) {
  const Parsed parsed = Parse("noatime,nodiratime,strictatime,lazytime,silent,nosymfollow,X-mount.mkdir,user=me,owner");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_THAT(parsed.mount.kernel_options,
              ElementsAre("noatime", "nodiratime", "strictatime", "lazytime", "silent", "nosymfollow"));
}

TEST(MountOptions, ARemountAcceptsTheOptionsInTheMountTable) {
  const Parsed parsed = Parse("remount,ro,user_id=0,group_id=0,default_permissions,max_read=131072,commit=1");
  ASSERT_TRUE(parsed.result.has_value()) << ToString(parsed.result.error());
  EXPECT_TRUE(parsed.mount.remount);
  EXPECT_TRUE(parsed.mount.read_only);
  EXPECT_THAT(parsed.mount.own_options, ElementsAre("commit"));
  EXPECT_FALSE(Parse("user_id=0").result.has_value());
}

TEST(MountOptions, LogHasFourLevels) {
  EXPECT_EQ(Parse("").mount.log_level, spdlog::level::info);
  EXPECT_EQ(Parse("log=error").mount.log_level, spdlog::level::err);
  EXPECT_EQ(Parse("log=warn").mount.log_level, spdlog::level::warn);
  EXPECT_EQ(Parse("log=debug").mount.log_level, spdlog::level::debug);
  const Parsed wrong = Parse("log=loud");
  ASSERT_FALSE(wrong.result.has_value());
  EXPECT_THAT(ToString(wrong.result.error()), HasSubstr("option log=loud: must be error, warn, info or debug"));
}

TEST(MountOptions, AnUnknownOptionNamesTheNearest) {
  const std::pair<const char*, const char*> misspelled[] = {
      {"allow_ohter", "allow_other"}, {"thread=4", "threads"}, {"noatme", "noatime"}, {"nofial", "nofail"}};
  for (const auto& [option, meant] : misspelled) {
    const Parsed parsed = Parse(option);
    ASSERT_FALSE(parsed.result.has_value()) << option;
    EXPECT_THAT(ToString(parsed.result.error()), HasSubstr(std::string("(did you mean '") + meant + "'?)"));
  }
  EXPECT_THAT(ToString(Parse("xyzzy").result.error()), HasSubstr("unknown mount option 'xyzzy'; `weightfs mount"));
}

}  // namespace
}  // namespace weightfs

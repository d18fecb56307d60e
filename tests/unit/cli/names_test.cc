// SPDX-License-Identifier: Apache-2.0
#include "cli/names.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weightfs::cli {
namespace {

using testing::ElementsAre;

TEST(HelperNamesTest, TheProgramsOwnNameChangesNothing) {
  EXPECT_THAT(TranslateHelperName("/usr/bin/weightfs", {"mount", "-n"}), ElementsAre("mount", "-n"));
  EXPECT_THAT(TranslateHelperName("", {"info"}), ElementsAre("info"));
  EXPECT_THAT(TranslateHelperName("/usr/bin/weightfs-bench", {"--list"}), ElementsAre("bench", "--list"));
}

TEST(HelperNamesTest, MountTakesItsOptionsAndDropsWhatOnlyMountNeeds) {
  EXPECT_THAT(TranslateHelperName("/sbin/mount.weightfs", {"/srv/s", "/mnt/s", "-n", "-v", "-o", "rw,commit=1"}),
              ElementsAre("mount", "--from-table", "/srv/s", "/mnt/s", "-o", "rw,commit=1"));
  EXPECT_THAT(TranslateHelperName("mount.fuse.weightfs", {"s", "m", "-t", "fuse.weightfs", "-s", "-w"}),
              ElementsAre("mount", "--from-table", "s", "m"));
}

TEST(HelperNamesTest, MountReadOnlyIsAnOption) {
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-r"}),
              ElementsAre("mount", "--from-table", "s", "m", "-o", "ro"));
}

TEST(HelperNamesTest, ADryRunMountsNothing) {
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-f"}), ElementsAre("--version"));
}

TEST(HelperNamesTest, UmountTakesTheDirectory) {
  EXPECT_THAT(TranslateHelperName("/sbin/umount.fuse.weightfs", {"/mnt/s", "-n", "-t", "fuse.weightfs"}),
              ElementsAre("umount", "/mnt/s"));
}

// mount(8) passes nodev and nosuid to its helper, but drops dev and suid.
TEST(HelperNamesTest, MountAsRootAllowsWhatIsNotForbidden) {
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-o", "rw,nosuid"}, /*is_root=*/true),
              ElementsAre("mount", "--from-table", "-o", "dev,suid", "s", "m", "-o", "rw,nosuid"));
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-o", "remount,ro"}, /*is_root=*/true),
              ElementsAre("mount", "--from-table", "s", "m", "-o", "remount,ro"));
  EXPECT_THAT(TranslateHelperName("weightfs", {"mount", "s", "m"}, /*is_root=*/true), ElementsAre("mount", "s", "m"));
}

TEST(HelperNamesTest, UmountKeepsItsOptions) {
  EXPECT_THAT(TranslateHelperName("umount.weightfs", {"/mnt/s", "-l", "-f", "-r", "-n", "-v"}),
              ElementsAre("umount", "/mnt/s", "-l", "-f", "-r"));
}

TEST(HelperNamesTest, ClustersAreSplit) {
  EXPECT_THAT(TranslateHelperName("umount.weightfs", {"-lf", "/mnt/s"}), ElementsAre("umount", "-l", "-f", "/mnt/s"));
  EXPECT_THAT(TranslateHelperName("umount.weightfs", {"/mnt/s", "-nrN7"}),
              ElementsAre("umount", "/mnt/s", "-r", "-N", "7"));
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "d", "-sv", "-oro,noexec", "-nt", "weightfs"}),
              ElementsAre("mount", "--from-table", "s", "d", "-o", "ro,noexec"));
  EXPECT_THAT(TranslateHelperName("fsck.weightfs", {"-aC0", "-TMl", "s"}),
              ElementsAre("verify", "--catalog", "--repair", "s"));
}

TEST(HelperNamesTest, UnknownOptionsAreLeftForTheSubcommandToReject) {
  EXPECT_THAT(TranslateHelperName("umount.weightfs", {"-lx", "/mnt/s"}), ElementsAre("umount", "-l", "-x", "/mnt/s"));
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-z"}),
              ElementsAre("mount", "--from-table", "s", "m", "-z"));
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-o"}),
              ElementsAre("mount", "--from-table", "s", "m", "-o"));
  EXPECT_THAT(TranslateHelperName("fsck.weightfs", {"-q", "s"}), ElementsAre("verify", "--catalog", "-q", "s"));
}

TEST(HelperNamesTest, TheMountNamespaceIsHandedOn) {
  EXPECT_THAT(TranslateHelperName("umount.weightfs", {"/mnt/s", "-N", "/proc/7/ns/mnt"}),
              ElementsAre("umount", "/mnt/s", "-N", "/proc/7/ns/mnt"));
  EXPECT_THAT(TranslateHelperName("mount.weightfs", {"s", "m", "-N", "7"}),
              ElementsAre("mount", "--from-table", "s", "m", "-N", "7"));
}

TEST(HelperNamesTest, FsckRepairsOnlyWhenAsked) {
  EXPECT_THAT(TranslateHelperName("fsck.weightfs", {"-n", "-C0", "/srv/s"}), ElementsAre("verify", "--catalog", "/srv/s"));
  EXPECT_THAT(TranslateHelperName("fsck.weightfs", {"-a", "/srv/s"}),
              ElementsAre("verify", "--catalog", "--repair", "/srv/s"));
  EXPECT_THAT(TranslateHelperName("fsck.weightfs", {"--json", "/srv/s"}),
              ElementsAre("verify", "--catalog", "--json", "/srv/s"));
}

struct Old {
  std::vector<std::string> words, now;
  const char* name;  // the new one in the line on standard error; null: no line
};

class OldNamesTest : public testing::TestWithParam<Old> {};

TEST_P(OldNamesTest, SayTheNewOneOnStandardErrorButNotWithJson) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(TranslateOldName(GetParam().words), GetParam().now);
  const std::string line = testing::internal::GetCapturedStderr();
  if (GetParam().name == nullptr) {
    EXPECT_EQ(line, "");
  } else {
    EXPECT_EQ(line, fmt::format("weightfs: '{}' is now 'weightfs {}'; the old name will be removed after this version\n",
                                GetParam().words[0], GetParam().name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, OldNamesTest,
    testing::Values(Old{{"fsck", "/s", "--repair"}, {"verify", "--catalog", "/s", "--repair"}, "verify --catalog"},
                    Old{{"fsck", "/s", "--data"}, {"verify", "/s"}, "verify"},
                    Old{{"fsck", "--json", "/s"}, {"verify", "--catalog", "--json", "/s"}, nullptr},
                    Old{{"scrub", "/m", "--rate", "1G"}, {"verify", "/m", "--rate", "1G"}, "verify"},
                    Old{{"top", "/m"}, {"stats", "--by", "process,file", "/m"}, "stats --by process,file"},
                    Old{{"unpublish", "/m/d"}, {"publish", "--undo", "/m/d"}, "publish --undo"},
                    Old{{"verify", "fsck"}, {"verify", "fsck"}, nullptr}, Old{{}, {}, nullptr}));

}  // namespace
}  // namespace weightfs::cli

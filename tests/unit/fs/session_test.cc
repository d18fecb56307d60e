// SPDX-License-Identifier: Apache-2.0
// The protocol as the kernel sees it, over a socket instead of a mount.
#include "fs/session.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>

#include <algorithm>
#include <atomic>

#include "lease/ioctl.h"
#include "store/names/acl.h"
#include "tests/support/result_asserts.h"
#include "tests/unit/fs/fake_kernel.h"
#include "tests/unit/fs/session_fixture.h"

namespace weightfs {
namespace {

using testing::HasSubstr;

TEST(SessionInit, AgreesOnDirectIoWithMappings) {
  FakeKernel kernel({}, Options());
  ASSERT_TRUE(kernel.negotiated().has_value()) << ToString(kernel.negotiated().error());
  const auto init = kernel.init_reply().As<fuse_init_out>();
  EXPECT_EQ(init.flags2 & (1U << 4), 1U << 4) << "DIRECT_IO_ALLOW_MMAP";
  const uint32_t wanted = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_DONT_MASK |
                          FUSE_AUTO_INVAL_DATA | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO |
                          FUSE_PARALLEL_DIROPS | FUSE_POSIX_ACL | FUSE_MAX_PAGES | FUSE_CACHE_SYMLINKS | FUSE_INIT_EXT;
  EXPECT_EQ(init.flags, wanted);
  EXPECT_EQ(init.max_write, kMiB);
  EXPECT_EQ(init.max_pages, 256);
  EXPECT_GE(init.max_background, 64);
  EXPECT_EQ(init.time_gran, 1U);
}

TEST(SessionInit, MaskMakesAnOlderKernel) {
  FakeKernel kernel({}, Options({"direct_io_allow_mmap", "max_pages", "posix_acl"}));
  ASSERT_TRUE(kernel.negotiated().has_value());
  const auto init = kernel.init_reply().As<fuse_init_out>();
  EXPECT_EQ(init.flags2, 0U);
  EXPECT_EQ(init.flags & (FUSE_MAX_PAGES | FUSE_POSIX_ACL | FUSE_AUTO_INVAL_DATA), 0U);
  EXPECT_EQ(init.max_write, 128 * kKiB);
}

TEST(SessionInit, WithoutTheKernelsChecksThereAreNoAccessControlLists) {
  const uint32_t in[2] = {0, 0};  // struct fuse_setxattr_in of the kernels before 5.12
  const std::string set(reinterpret_cast<const char*>(in), sizeof(in));
  const fuse_getxattr_in get{};
  for (const auto& [without, error] : {std::pair("posix_acl", -EOPNOTSUPP), std::pair("dont_mask", -EOPNOTSUPP),
                                       std::pair("async_dio", -ENODATA)}) {
    FakeKernel kernel({}, Options({without}));
    ASSERT_TRUE(kernel.negotiated().has_value());
    const uint64_t file = CreatedBy(kernel.Create("a", O_RDWR)).node;
    for (const std::string_view list : {kAccessAclName, kDefaultAclName}) {
      const std::string name = std::string(list) + '\0';
      EXPECT_EQ(kernel.Ask(FUSE_SETXATTR, file, set + name).error == -EOPNOTSUPP, error == -EOPNOTSUPP) << without;
      EXPECT_EQ(kernel.AskWith(FUSE_GETXATTR, file, get, name).error, error) << without;
      EXPECT_EQ(kernel.Ask(FUSE_REMOVEXATTR, file, name).error == -EOPNOTSUPP, error == -EOPNOTSUPP) << without;
    }
  }
}

TEST(SessionInit, RefusesAProtocolThatIsTooOld) {
  FakeKernel kernel({.minor = 30}, Options());
  ASSERT_FALSE(kernel.negotiated().has_value());
  EXPECT_THAT(kernel.negotiated().error().what, HasSubstr("Linux 5.4"));
}

TEST(SessionInit, UnknownFeatureIsAnError) {
  FakeKernel kernel({}, Options({"warp_drive"}));
  ASSERT_FALSE(kernel.negotiated().has_value());
  EXPECT_EQ(kernel.negotiated().error().code, ErrorCode::kInvalid);
}

// The kernel takes the name for unused, because a program has put the file there by a lease.
TEST(SessionOpen, ACreatedNameThatAppearsMeanwhileIsOpened) {
  FakeKernel kernel({}, Options());
  ASSERT_OK(kernel.store().WriteFile("f", "content"));
  EXPECT_EQ(kernel.Create("f", O_CREAT | O_WRONLY).error, -ESTALE) << "the kernel looks it up, and opens it";
  EXPECT_EQ(kernel.Create("f", O_CREAT | O_WRONLY | O_EXCL).error, -EEXIST);
}

constexpr uint32_t kDirectFlags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;

TEST(SessionOpen, OpensForWritingAndOfLargeFilesAreDirectAndWritesRunInParallel) {
  FakeKernel kernel({}, Options());
  const Opened created = CreatedBy(kernel.Create("a", O_RDWR));
  EXPECT_EQ(created.flags, kDirectFlags);
  for (const uint32_t flags : {O_WRONLY, O_RDWR})
    EXPECT_EQ(OpenedBy(kernel.Open(created.node, flags)).flags, kDirectFlags) << "the close may report a failed write";
  ASSERT_EQ(kernel.Write(created.node, created.handle, 128 * kKiB, "x").error, 0);
  EXPECT_EQ(OpenedBy(kernel.Open(created.node, O_RDONLY)).flags, kDirectFlags | FOPEN_NOFLUSH);
}

TEST(SessionOpen, SmallFileIsReadThroughThePageCacheFromTheFirstOpen) {
  FakeKernel kernel({}, Options());
  const Opened created = CreatedBy(kernel.Create("a", O_RDWR));
  ASSERT_EQ(kernel.Write(created.node, created.handle, 128 * kKiB - 1, "x").error, 0);
  EXPECT_EQ(OpenedBy(kernel.Open(created.node, O_RDONLY)).flags, uint32_t{FOPEN_KEEP_CACHE | FOPEN_NOFLUSH});
  EXPECT_EQ(OpenedBy(kernel.Open(created.node, O_RDONLY | O_DIRECT)).flags, kDirectFlags | FOPEN_NOFLUSH);
  MountOptions never = Options();
  never.page_cache = false;
  FakeKernel without({}, never);
  EXPECT_EQ(OpenedBy(without.Open(CreatedBy(without.Create("a", O_RDWR)).node, O_RDONLY)).flags,
            kDirectFlags | FOPEN_NOFLUSH);
}

TEST(SessionOpen, DirectWriteDropsPagesThatReadersOfASmallFileFilled) {
  FakeKernel kernel({}, Options());
  const Opened writer = CreatedBy(kernel.Create("a", O_WRONLY));
  ASSERT_EQ(kernel.Write(writer.node, writer.handle, 0, "before").error, 0);
  EXPECT_TRUE(kernel.notifications.empty());
  const Opened reader = OpenedBy(kernel.Open(writer.node, O_RDONLY));
  EXPECT_EQ(kernel.Fill(writer.node, reader.handle, 0, 4096).body, "before");
  for (const std::string_view text : {"after", "again"}) {
    ASSERT_EQ(kernel.Write(writer.node, writer.handle, 0, std::string(text)).error, 0);
    ASSERT_EQ(kernel.notifications.size(), 1U) << "the next open keeps the pages";
    EXPECT_EQ(kernel.notifications[0].As<fuse_notify_inval_inode_out>().len, 5);
  }
}

TEST(SessionOpen, OlderKernelReadsThroughItsPageCache) {
  FakeKernel kernel({}, Options({"direct_io_allow_mmap"}));
  const Opened created = CreatedBy(kernel.Create("a", O_WRONLY));
  EXPECT_TRUE(created.flags & FOPEN_DIRECT_IO);
  EXPECT_EQ(OpenedBy(kernel.Open(created.node, O_RDONLY)).flags, uint32_t{FOPEN_NOFLUSH})
      << "what the kernel has is not known";
  EXPECT_EQ(OpenedBy(kernel.Open(created.node, O_RDWR)).flags, uint32_t{FOPEN_KEEP_CACHE});
  EXPECT_TRUE(OpenedBy(kernel.Open(created.node, O_RDWR | O_DIRECT)).flags & FOPEN_DIRECT_IO);
}

TEST(SessionOpen, DirectWriteInvalidatesPagesBeforeItIsAnswered) {
  FakeKernel kernel({}, Options({"direct_io_allow_mmap"}));
  const Opened writer = CreatedBy(kernel.Create("a", O_WRONLY));
  ASSERT_EQ(kernel.Write(writer.node, writer.handle, 0, "before").error, 0);
  EXPECT_TRUE(kernel.notifications.empty()) << "nobody reads through the page cache";

  const Opened reader = OpenedBy(kernel.Open(writer.node, O_RDONLY));
  ASSERT_EQ(kernel.Write(writer.node, writer.handle, 4096, "after").error, 0);
  ASSERT_EQ(kernel.notifications.size(), 1U);
  EXPECT_EQ(kernel.notifications[0].error, FUSE_NOTIFY_INVAL_INODE);
  const auto range = kernel.notifications[0].As<fuse_notify_inval_inode_out>();
  EXPECT_EQ(range.ino, writer.node);
  EXPECT_EQ(range.off, 4096);
  EXPECT_EQ(range.len, 5);

  const Opened cached = OpenedBy(kernel.Open(writer.node, O_RDWR));
  ASSERT_EQ(kernel.Write(writer.node, cached.handle, 0, "x").error, 0);
  EXPECT_TRUE(kernel.notifications.empty()) << "the kernel wrote these pages itself";
  EXPECT_EQ(kernel.Read(writer.node, reader.handle, 4096, 100).body, "after");
}

TEST(SessionOpen, DirectWriteDropsPagesThatWereFilledBeforeItIsAnswered) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  ASSERT_EQ(kernel.Write(file.node, file.handle, 0, std::string(8192, 'a')).error, 0);
  EXPECT_EQ(kernel.Read(file.node, file.handle, 0, 4096).body.size(), 4096U);
  ASSERT_EQ(kernel.Write(file.node, file.handle, 0, "b").error, 0);
  EXPECT_TRUE(kernel.notifications.empty()) << "programs alone have read";

  EXPECT_EQ(kernel.Fill(file.node, file.handle, 0, 4096).body.size(), 4096U);
  ASSERT_EQ(kernel.Write(file.node, file.handle, 4000, "after").error, 0);
  ASSERT_EQ(kernel.notifications.size(), 1U);
  EXPECT_EQ(kernel.notifications[0].error, FUSE_NOTIFY_INVAL_INODE);
  const auto range = kernel.notifications[0].As<fuse_notify_inval_inode_out>();
  EXPECT_EQ(range.off, 4000);
  EXPECT_EQ(range.len, 5);

  ASSERT_EQ(kernel.WriteBack(file.node, file.handle, 4096, std::string(4096, 'm')).error, 0);
  EXPECT_TRUE(kernel.notifications.empty()) << "these bytes come from the pages";
  EXPECT_EQ(kernel.Read(file.node, file.handle, 3998, 200).body,
            "aaafter" + std::string(91, 'a') + std::string(102, 'm'));
}

TEST(SessionOpen, WriteWhosePagesCannotBeDroppedFails) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  ASSERT_EQ(kernel.Write(file.node, file.handle, 0, "old").error, 0);
  (void)kernel.Fill(file.node, file.handle, 0, 4096);
  FakeKernel::drop_errors = {-ENOMEM};
  EXPECT_EQ(kernel.Write(file.node, file.handle, 0, "new").error, -EIO);
  EXPECT_EQ(kernel.Read(file.node, file.handle, 0, 10).body, "old");
  EXPECT_EQ(kernel.Write(file.node, file.handle, 0, "new").error, 0);
}

// The kernel itself drops the pages of a write(2). For these operations it drops them after the answer.
TEST(SessionOpen, ChangesOfARangeDropPagesThatWereFilled) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_WRONLY));
  const Opened source = CreatedBy(kernel.Create("source", O_RDWR));
  const std::string data(8192, 'd');
  ASSERT_EQ(kernel.Write(file.node, file.handle, 0, data).error, 0);
  ASSERT_EQ(kernel.Write(source.node, source.handle, 0, std::string(8192, 's')).error, 0);
  fuse_fallocate_in range{};
  range.fh = file.handle;
  range.offset = 100;
  range.length = 50;
  fuse_copy_file_range_in copy{};
  copy.fh_in = source.handle;
  copy.nodeid_out = file.node;
  copy.fh_out = file.handle;
  copy.len = 4096;
  const auto expect_dropped = [&](int64_t offset, int64_t length) {
    ASSERT_EQ(kernel.notifications.size(), 1U);
    EXPECT_EQ(kernel.notifications[0].As<fuse_notify_inval_inode_out>().off, offset);
    EXPECT_EQ(kernel.notifications[0].As<fuse_notify_inval_inode_out>().len, length);
  };
  const Opened reader = OpenedBy(kernel.Open(file.node, O_RDONLY));
  (void)kernel.Fill(file.node, reader.handle, 0, 8192);
  for (const uint32_t mode : {FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE}) {
    range.mode = mode;
    EXPECT_EQ(kernel.AskWith(FUSE_FALLOCATE, file.node, range).error, 0);
    expect_dropped(100, 50);
  }
  range.mode = 0;
  EXPECT_EQ(kernel.AskWith(FUSE_FALLOCATE, file.node, range).error, 0);
  EXPECT_TRUE(kernel.notifications.empty()) << "no byte changes";
  EXPECT_EQ(kernel.AskWith(FUSE_COPY_FILE_RANGE, source.node, copy).As<fuse_write_out>().size, 4096U);
  expect_dropped(0, 4096);
  EXPECT_EQ(kernel.Read(file.node, reader.handle, 0, 8192).body, std::string(4096, 's') + std::string(4096, 'd'));
}

TEST(SessionOpen, CopyIntoAFileWithDirtyPagesIsLeftToTheKernel) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  const Opened source = CreatedBy(kernel.Create("source", O_RDWR));
  ASSERT_EQ(kernel.Write(source.node, source.handle, 0, std::string(4096, 's')).error, 0);
  fuse_copy_file_range_in copy{};
  copy.fh_in = source.handle;
  copy.nodeid_out = file.node;
  copy.fh_out = file.handle;
  copy.len = 4096;
  EXPECT_EQ(kernel.AskWith(FUSE_COPY_FILE_RANGE, source.node, copy).As<fuse_write_out>().size, 4096U);
  (void)kernel.Fill(file.node, file.handle, 0, 4096);
  EXPECT_EQ(kernel.AskWith(FUSE_COPY_FILE_RANGE, source.node, copy).error, -EOPNOTSUPP);
}

TEST(SessionNames, MissingNameIsRememberedByTheKernel) {
  FakeKernel kernel({}, Options());
  const KernelReply reply = kernel.Lookup(FUSE_ROOT_ID, "missing");
  ASSERT_EQ(reply.error, 0);
  EXPECT_EQ(reply.As<fuse_entry_out>().nodeid, 0U);
  EXPECT_EQ(reply.As<fuse_entry_out>().entry_valid, 86400U);
}

TEST(SessionNames, CountsWhatTheKernelKnows) {
  FakeKernel kernel({}, Options());
  const Opened created = CreatedBy(kernel.Create("a", O_RDWR));
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "a").As<fuse_entry_out>().nodeid, created.node);
  EXPECT_EQ(kernel.store()->inodes().lookups(InodeId{created.node}), 2U);
  fuse_forget_in forget{};
  forget.nlookup = 2;
  kernel.Tell(FUSE_FORGET, created.node, {reinterpret_cast<const char*>(&forget), sizeof(forget)});
  ASSERT_EQ(kernel.Release(created.node, created.handle).error, 0);
  ASSERT_TRUE(kernel.Disconnect().has_value());
  EXPECT_EQ(kernel.store()->inodes().lookups(InodeId{created.node}), 0U);
}

TEST(SessionNames, CreateTakesTheCallersIdsAndUmask) {
  FakeKernel kernel({}, Options());
  const KernelReply reply = kernel.Create("a", O_RDWR, 0666, 027);
  const auto entry = reply.As<fuse_entry_out>();
  EXPECT_EQ(entry.attr.mode, uint32_t{S_IFREG | 0640});
  EXPECT_EQ(entry.attr.uid, 1000U);
  EXPECT_EQ(entry.attr.blksize, 64 * kKiB);
}

TEST(SessionNames, RenameFlagsThatAreUnknownAreRefused) {
  FakeKernel kernel({}, Options());
  (void)kernel.Create("a", O_RDWR);
  fuse_rename2_in in{};
  in.newdir = FUSE_ROOT_ID;
  const std::string names("a\0b\0", 4);
  in.flags = RENAME_WHITEOUT;
  EXPECT_EQ(kernel.AskWith(FUSE_RENAME2, FUSE_ROOT_ID, in, names).error, -EINVAL);
  in.flags = RENAME_NOREPLACE;
  EXPECT_EQ(kernel.AskWith(FUSE_RENAME2, FUSE_ROOT_ID, in, names).error, 0);
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "a").As<fuse_entry_out>().nodeid, 0U);
}

TEST(SessionFiles, LargeAlignedWritesAreReadBack) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  const std::string data = Pattern(1, 128 * kKiB);
  for (uint64_t i = 0; i < 20; ++i)
    ASSERT_EQ(kernel.Write(file.node, file.handle, i * data.size(), data).As<fuse_write_out>().size, data.size());
  for (uint64_t i = 0; i < 20; ++i)
    ASSERT_TRUE(kernel.Read(file.node, file.handle, i * data.size(), 128 * kKiB).body == data) << i;
  EXPECT_EQ(kernel.Read(file.node, file.handle, 20 * data.size() - 3, 100).body, data.substr(data.size() - 3));
  EXPECT_EQ(kernel.Read(file.node, file.handle, 30 * data.size(), 100).body, "");
}

TEST(SessionFiles, SynchronousWriteIsAnsweredOnceDurable) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  const uint64_t flushes = kernel.store()->statistics().flushes;
  ASSERT_EQ(kernel.Write(file.node, file.handle, 0, "x", O_WRONLY | O_DSYNC).error, 0);
  EXPECT_GT(kernel.store()->statistics().flushes, flushes);
}

TEST(SessionDirectories, FsyncMakesTheEntriesDurable) {
  FakeKernel kernel({}, Options());
  const uint64_t handle = OpenedBy(kernel.AskWith(FUSE_OPENDIR, FUSE_ROOT_ID, fuse_open_in{})).handle;
  CreatedBy(kernel.Create("a", O_RDWR));
  fuse_fsync_in in{};
  in.fh = handle;
  ASSERT_EQ(kernel.AskWith(FUSE_FSYNCDIR, FUSE_ROOT_ID, in).error, 0);
  const Journal& journal = kernel.store().journal();
  TestStore recovered(journal.ImageAt(journal.size(), {.device_survival = 0, .kv_survival = 0}), {});
  EXPECT_TRUE(recovered.Resolve("a").has_value());
}

TEST(SessionFiles, FilesEndAtTheLargestSize) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  EXPECT_EQ(kernel.Write(file.node, file.handle, kMaximumFileSize, "x").error, -EFBIG);
  fuse_setattr_in in{};
  in.valid = FATTR_SIZE;
  in.size = kMaximumFileSize + 1;
  EXPECT_EQ(kernel.AskWith(FUSE_SETATTR, file.node, in).error, -EFBIG);
  in.size = kMaximumFileSize;
  EXPECT_EQ(kernel.AskWith(FUSE_SETATTR, file.node, in).As<fuse_attr_out>().attr.size, kMaximumFileSize);
}

TEST(SessionFiles, UnknownFallocateModeIsNotSupported) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  fuse_fallocate_in in{};
  in.fh = file.handle;
  in.length = 4096;
  in.mode = 8;  // FALLOC_FL_COLLAPSE_RANGE
  EXPECT_EQ(kernel.AskWith(FUSE_FALLOCATE, file.node, in).error, -EOPNOTSUPP);
}

TEST(SessionFiles, UnknownIoctlIsNotATerminal) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  fuse_ioctl_in in{};
  in.fh = file.handle;
  in.cmd = 0x5401;  // TCGETS
  EXPECT_EQ(kernel.AskWith(FUSE_IOCTL, file.node, in).error, -ENOTTY);
  in.cmd = WEIGHTFS_IOC_INFO;
  in.out_size = sizeof(weightfs_info) - 1;
  EXPECT_EQ(kernel.AskWith(FUSE_IOCTL, file.node, in).error, -ENOTTY) << "no room for the answer";
  in.out_size = sizeof(weightfs_info);
  const KernelReply info = kernel.AskWith(FUSE_IOCTL, file.node, in);
  EXPECT_EQ(info.error, 0);
  EXPECT_EQ(info.As<weightfs_info>(sizeof(fuse_ioctl_out)).inode, file.node);
}

TEST(SessionFiles, ExtentsAreListedInPages) {
  constexpr uint32_t kExtents = 600;
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  const InodePtr inode = kernel.store()->inodes().Find(InodeId{file.node});
  for (uint64_t i = 0; i < kExtents; ++i) {
    ASSERT_OK(kernel.store()->files().Fallocate(inode, FallocateMode::kAllocate, 2 * i * kBlockSize, kBlockSize));
  }
  const auto count = [&](auto page, unsigned command) {
    std::vector<uint32_t> counts;
    do {
      page.version = WEIGHTFS_IOC_VERSION;
      fuse_ioctl_in in{};
      in.fh = file.handle;
      in.cmd = command;
      in.in_size = in.out_size = sizeof(page);
      const KernelReply reply =
          kernel.AskWith(FUSE_IOCTL, file.node, in, {reinterpret_cast<const char*>(&page), sizeof(page)});
      EXPECT_EQ(reply.error, 0);
      page = reply.As<decltype(page)>(sizeof(fuse_ioctl_out));
      counts.push_back(page.count);
      EXPECT_EQ(page.start, page.extents[page.count - 1].first + kBlockSize);
    } while (page.count == std::size(page.extents));
    return counts;
  };
  EXPECT_EQ(count(weightfs_extent_list{}, WEIGHTFS_IOC_EXTENT_LIST), (std::vector<uint32_t>{510, 90}));
  EXPECT_EQ(count(weightfs_extents{}, WEIGHTFS_IOC_EXTENTS).size(), 10U);
}

TEST(SessionFiles, StatisticsShowARemountReadOnly) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  fuse_ioctl_in in{};
  in.cmd = WEIGHTFS_IOC_STATS;
  in.out_size = sizeof(weightfs_stats);
  const auto read_only = [&] {
    return kernel.AskWith(FUSE_IOCTL, file.node, in).As<weightfs_stats>(sizeof(fuse_ioctl_out)).read_only;
  };
  EXPECT_EQ(read_only(), 0U);
  kernel.filesystem().SetReadOnly(true);
  EXPECT_EQ(read_only(), 1U);
}

struct Listed {
  std::string name;
  uint64_t node, position;
};

std::vector<Listed> ParsePlus(const std::string& body) {
  std::vector<Listed> listed;
  for (size_t at = 0; at + FUSE_NAME_OFFSET_DIRENTPLUS <= body.size();) {
    fuse_direntplus entry{};
    memcpy(&entry, body.data() + at, sizeof(entry));
    listed.push_back({body.substr(at + FUSE_NAME_OFFSET_DIRENTPLUS, entry.dirent.namelen), entry.entry_out.nodeid,
                      entry.dirent.off});
    at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET_DIRENTPLUS + entry.dirent.namelen);
  }
  return listed;
}

TEST(SessionDirectories, ListsInPartsAndCountsOnlyWhatWasSent) {
  FakeKernel kernel({}, Options());
  std::vector<uint64_t> nodes;
  for (const char* name : {"a", "b", "c", "d"}) nodes.push_back(CreatedBy(kernel.Create(name, O_RDWR)).node);
  const uint64_t handle = kernel.AskWith(FUSE_OPENDIR, FUSE_ROOT_ID, fuse_open_in{}).As<fuse_open_out>().fh;
  fuse_read_in in{};
  in.fh = handle;
  in.size = 500;  // three entries of 160 bytes
  std::vector<std::string> names;
  while (true) {
    const auto part = ParsePlus(kernel.AskWith(FUSE_READDIRPLUS, FUSE_ROOT_ID, in).body);
    if (part.empty()) break;
    EXPECT_LE(part.size(), 3U);
    for (const Listed& entry : part) {
      names.push_back(entry.name);
      EXPECT_EQ(entry.node == 0, entry.name == "." || entry.name == "..") << entry.name;
    }
    in.offset = part.back().position;
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre(".", "..", "a", "b", "c", "d"));
  for (const uint64_t node : nodes) EXPECT_EQ(kernel.store()->inodes().lookups(InodeId{node}), 2U);
}

TEST(SessionDirectories, EntryThatWasReplacedIsListedAsItIsNow) {
  FakeKernel kernel({}, Options());
  const uint64_t before = CreatedBy(kernel.Create("a", O_RDWR)).node;
  const uint64_t handle = kernel.AskWith(FUSE_OPENDIR, FUSE_ROOT_ID, fuse_open_in{}).As<fuse_open_out>().fh;
  fuse_read_in in{};
  in.fh = handle;
  in.size = 160;  // only "."
  const auto first = ParsePlus(kernel.AskWith(FUSE_READDIRPLUS, FUSE_ROOT_ID, in).body);
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(kernel.Ask(FUSE_UNLINK, FUSE_ROOT_ID, std::string("a\0", 2)).error, 0);
  const uint64_t after = CreatedBy(kernel.Create("a", O_RDWR)).node;
  ASSERT_NE(before, after);
  in.offset = first[0].position;
  in.size = 4096;
  const auto rest = ParsePlus(kernel.AskWith(FUSE_READDIRPLUS, FUSE_ROOT_ID, in).body);
  const auto found = std::find_if(rest.begin(), rest.end(), [](const Listed& entry) { return entry.name == "a"; });
  ASSERT_NE(found, rest.end());
  EXPECT_EQ(found->node, after);
}

TEST(SessionEnd, ClosesWhatTheKernelLeftOpen) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  const InodePtr inode = kernel.store()->inodes().Find(InodeId{file.node});
  ASSERT_NE(inode, nullptr);
  ASSERT_TRUE(kernel.Disconnect().has_value());
  MutexLock lock(inode->mutex);
  EXPECT_FALSE(inode->is_open());
}

TEST(SessionEnd, StopEndsARunThatWaitsForRequests) {
  FakeKernel kernel({}, Options());
  ASSERT_EQ(kernel.Lookup(FUSE_ROOT_ID, "a").error, 0);
  kernel.session().Stop();
  kernel.session().Stop();
  EXPECT_TRUE(kernel.WaitForEnd().has_value());
}

TEST(SessionEnd, RunReportsWhenItServes) {
  std::atomic<int> ready{0};
  MountOptions options = Options();
  options.ready = [&ready] { ++ready; };
  FakeKernel kernel({}, options);
  ASSERT_TRUE(kernel.Disconnect().has_value());
  EXPECT_EQ(ready, 1);
}

TEST(SessionEnd, FailedStoreAnswersAndDoesNotHang) {
  FakeKernel kernel({}, Options());
  const Opened file = CreatedBy(kernel.Create("a", O_RDWR));
  ASSERT_TRUE(kernel.store()->Close().has_value());
  EXPECT_EQ(kernel.Write(file.node, file.handle, 0, "x").error, -EIO);
  fuse_fsync_in in{};
  in.fh = file.handle;
  EXPECT_EQ(kernel.AskWith(FUSE_FSYNC, file.node, in).error, -EIO);
}

}  // namespace
}  // namespace weightfs

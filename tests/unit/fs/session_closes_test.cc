// SPDX-License-Identifier: Apache-2.0
// What closes and opens of replaced files mean: for renames, for truncations, and at the end of a mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <future>

#include "fs/session.h"
#include "tests/support/result_asserts.h"
#include "tests/support/thread_state.h"
#include "tests/unit/fs/fake_kernel.h"
#include "tests/unit/fs/session_fixture.h"

namespace weightfs {
namespace {

// A committed file that is being replaced through open handles.
struct Replaced {
  Replaced(FakeKernel& of, std::string_view file) : kernel(of), name(file) {
    kernel.process = static_cast<uint32_t>(getpid());
    node = kernel.store().Create(name).value()->id.value;
    EXPECT_TRUE(kernel.store().WriteFile(name, "old") && kernel.store()->SyncAll());
    first = Open(O_WRONLY | O_TRUNC);
    Write(first);
  }
  uint64_t Open(uint32_t flags) { return kernel.Open(node, flags).As<fuse_open_out>().fh; }
  void Write(uint64_t handle) {
    fuse_write_in in{};
    in.fh = handle;
    in.size = 4;
    in.write_flags = FUSE_WRITE_LOCKOWNER;
    in.lock_owner = kOwner;
    EXPECT_EQ(kernel.AskWith(FUSE_WRITE, node, in, "half").error, 0);
  }
  void Flush(uint64_t handle) {
    fuse_flush_in in{};
    in.fh = handle;
    in.lock_owner = kOwner;
    EXPECT_EQ(kernel.AskWith(FUSE_FLUSH, node, in).error, 0);
  }
  void Release(uint64_t handle) {
    fuse_release_in in{};
    in.fh = handle;
    kernel.Tell(FUSE_RELEASE, node, {reinterpret_cast<const char*>(&in), sizeof(in)});
  }
  // After a fsync of the root directory, which commits no file.
  std::string AfterCrash(std::string_view path) {
    static_cast<void>(kernel.store()->Sync(kernel.store()->inodes().Get(kRootInode).value()).has_value());
    const auto kill = CrashOptions::Kind::kProcessKill;
    const auto& journal = kernel.store().journal();
    TestStore crashed(journal.ImageAt(journal.size(), {.kind = kill}), {});
    return crashed.ReadPath(path).value_or("unreadable");
  }
  static constexpr uint64_t kOwner = 7;
  FakeKernel& kernel;
  const std::string name;
  uint64_t node = 0, first = 0;
};

TEST(SessionEnd, CommitsReplacementsWhoseWritersHaveClosedThem) {
  FakeKernel kernel({}, Options());
  std::deque<Replaced> files;
  for (int i = 0; i < 24; ++i) {
    Replaced& file = files.emplace_back(kernel, "file-" + std::to_string(i));
    if (i % 4 == 1) file.Flush(file.first);
    if (i % 4 == 2) {  // another writer has it open
      static_cast<void>(file.Open(O_WRONLY));
      file.Flush(file.first);
    }
    if (i % 4 == 3) {  // the close of a copy
      file.Flush(file.first);
      file.Write(file.first);
    }
  }
  ASSERT_TRUE(kernel.Disconnect().has_value());
  ASSERT_OK(kernel.store()->Close());
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].AfterCrash(files[i].name), i % 4 == 1 ? "half" : "old") << i;
  }
}

TEST(SessionEnd, CommitsNoReplacementThatWasClosedLongBefore) {
  MountOptions options = Options();
  options.release_delay = std::chrono::milliseconds(0);
  FakeKernel kernel({}, options);
  kernel.TellNothing();  // one receiver leaves long before the end
  Replaced file(kernel, "file");
  file.Flush(file.first);
  ASSERT_FALSE(kernel.Disconnect().has_value());
  ASSERT_OK(kernel.store()->Close());
  EXPECT_EQ(file.AfterCrash("file"), "old");
}

TEST(SessionEnd, WaitsForTheReceiverThatIsBusy) {
  FakeKernel kernel({}, Options());
  std::promise<void> reached, go;
  kernel.store().kv().AfterGet([&] {
    reached.set_value();
    go.get_future().wait();
  });
  kernel.Tell(FUSE_LOOKUP, FUSE_ROOT_ID, std::string("absent").append(1, '\0'));
  reached.get_future().wait();
  auto ending = StartUntilBlocked([&] { return kernel.Disconnect().has_value(); });
  EXPECT_FALSE(HasEnded(ending));
  go.set_value();
  EXPECT_TRUE(ending.get());
}

void TellRename(FakeKernel& kernel, const std::string& from, const std::string& to) {
  const fuse_rename_in rename{.newdir = FUSE_ROOT_ID};
  kernel.Tell(FUSE_RENAME, FUSE_ROOT_ID,
              std::string(reinterpret_cast<const char*>(&rename), sizeof(rename)) + from + '\0' + to + '\0');
}

TEST(SessionNames, RenamedDirectoryHasTheFilesWhoseCloseHasReturned) {
  FakeKernel kernel({}, Options());
  for (int i = 0; i < 3; ++i) {
    const std::string from = "d" + std::to_string(i), to = "e" + std::to_string(i);
    ASSERT_OK(kernel.store()->names().Create(kRootInode, from, {.mode = S_IFDIR | 0755}));
    Replaced file(kernel, from + "/f");
    file.Flush(file.first);
    TellRename(kernel, from, to);
    EXPECT_FALSE(kernel.HasNext(std::chrono::milliseconds(200))) << "the rename waits for the release";
    file.Release(file.first);
    for (int answer = 0; answer < 2; ++answer) EXPECT_EQ(kernel.Next().error, 0);
    ASSERT_EQ(file.AfterCrash(to + "/f"), "half");
  }
}

TEST(SessionNames, TheCloseOfACopyDelaysARenameUntilTheNextWrite) {
  FakeKernel kernel({}, Options());
  ASSERT_OK(kernel.store()->names().Create(kRootInode, "d", {.mode = S_IFDIR | 0755}));
  Replaced file(kernel, "d/f");
  file.Flush(file.first);
  TellRename(kernel, "d", "e");
  file.Write(file.first);
  EXPECT_EQ(kernel.Next().error, 0);
  EXPECT_EQ(file.AfterCrash("e/f"), "old");
  file.Flush(file.first);
  TellRename(kernel, "e", "d");
  file.Release(file.first);
  for (int answer = 0; answer < 2; ++answer) EXPECT_EQ(kernel.Next().error, 0);
  EXPECT_EQ(file.AfterCrash("d/f"), "half") << "that close was the last one";
}

TEST(SessionOpen, TheOpenerOfACreatedFileIsKnown) {
  FakeKernel kernel({}, Options());
  kernel.process = static_cast<uint32_t>(getpid());
  const Opened created = CreatedBy(kernel.Create("a", O_RDWR));
  EXPECT_EQ(HandleRegistry<FileHandle>::Get(created.handle)->closes.opener(), kernel.process);
}

// One receiver is busy with a look-up. The other one stays free while an open waits for the commit of the file.
TEST(SessionOpen, ATruncationThatWaitsForACommitOccupiesNoReceiver) {
  TestStoreOptions options;
  options.store.commit_interval = std::chrono::milliseconds(0);
  options.store.close_delay = kForever;
  FakeKernel kernel({}, Options(), options);
  TestStore& store = kernel.store();
  const InodeId ino = store.Create("a").value()->id;
  for (const char* content : {"old", "complete"}) {
    EXPECT_TRUE(store->SyncAll());
    EXPECT_TRUE(store.WriteFile("a", content));
  }
  store.device().Hold();
  fuse_open_in open{};
  open.flags = O_WRONLY | O_TRUNC;
  kernel.Tell(FUSE_OPEN, ino.value, {reinterpret_cast<const char*>(&open), sizeof(open)});
  store.device().WaitForHeld(1);
  std::promise<void> reached, go;
  store.kv().AfterGet([&] {
    reached.set_value();
    go.get_future().wait();
  });
  kernel.Tell(FUSE_LOOKUP, FUSE_ROOT_ID, std::string("absent").append(1, '\0'));
  reached.get_future().wait();
  EXPECT_EQ(kernel.AskWith(FUSE_GETATTR, FUSE_ROOT_ID, fuse_getattr_in{}).error, 0);
  go.set_value();
  store.device().Release();
  for (int answer = 0; answer < 2; ++answer) EXPECT_EQ(kernel.Next().error, 0);
}

}  // namespace
}  // namespace weightfs

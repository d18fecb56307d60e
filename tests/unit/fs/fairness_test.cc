// SPDX-License-Identifier: Apache-2.0
// Slow requests of one client, as the kernel sends them, and quick requests of others meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "lease/ioctl.h"
#include "tests/support/result_asserts.h"
#include "tests/unit/fs/fake_kernel.h"

namespace weightfs {
namespace {

MountOptions Options(unsigned threads) {
  MountOptions options;
  options.without = {"max_pages_limit"};  // independent of this machine's sysctl
  options.write_buffers = ByteCount{8 * kMiB};
  options.threads = threads;
  return options;
}

// Makes reads of the catalog wait until it is destroyed or opened.
class SlowCatalog {
 public:
  explicit SlowCatalog(MemoryKvStore& kv) : state_(std::make_shared<State>(kv)) {
    const auto hold = [state = state_] {
      if (!state->held.exchange(true)) state->first.set_value();
      state->opened.wait();
    };
    kv.AfterGet(hold, /*once=*/false);
    kv.AfterNewIterator(hold);
  }
  ~SlowCatalog() { Open(); }
  // Waits until a read waits.
  void WaitForFirst() { state_->first.get_future().wait(); }
  // Further reads do not wait.
  void HoldNoMore() {
    state_->kv.AfterGet(nullptr);
    state_->kv.AfterNewIterator(nullptr);
  }
  void Open() {
    if (!state_->is_open.exchange(true)) state_->open.set_value();
  }

 private:
  struct State {
    explicit State(MemoryKvStore& store) : kv(store) {}
    MemoryKvStore& kv;
    std::promise<void> first, open;
    std::shared_future<void> opened = open.get_future().share();
    std::atomic<bool> held{false}, is_open{false};
  };
  const std::shared_ptr<State> state_;
};

std::string SetAttributeBody(const std::string& name, size_t size) {
  const uint32_t in[2] = {static_cast<uint32_t>(size), 0};  // struct fuse_setxattr_in of the kernels before 5.12
  return std::string(reinterpret_cast<const char*>(in), sizeof(in)) + name + std::string(1, '\0') +
         std::string(size, 'v');
}

std::string MakeDirectoryBody(std::string_view name) {
  fuse_mkdir_in in{};
  in.mode = 0755;
  return std::string(reinterpret_cast<const char*>(&in), sizeof(in)).append(name).append(1, '\0');
}

class Fairness : public testing::TestWithParam<unsigned> {};

TEST_P(Fairness, LookupsAreAnsweredWhileChangesWait) {
  FakeKernel kernel({}, Options(GetParam()));
  ASSERT_TRUE(kernel.negotiated().has_value());
  SlowCatalog slow(kernel.store().kv());
  constexpr int kChanges = 20;
  kernel.Tell(FUSE_MKDIR, FUSE_ROOT_ID, MakeDirectoryBody("0"));
  slow.WaitForFirst();  // it holds the namespace's mutex
  slow.HoldNoMore();
  for (int i = 1; i < kChanges; ++i) kernel.Tell(FUSE_MKDIR, FUSE_ROOT_ID, MakeDirectoryBody(std::to_string(i)));
  for (int i = 0; i < 3; ++i) {
    const KernelReply found = kernel.Lookup(FUSE_ROOT_ID, "none");
    EXPECT_EQ(found.error, 0);
    EXPECT_EQ(found.As<fuse_entry_out>().nodeid, 0U) << "a negative entry, which only a look-up returns";
  }
  slow.Open();
  for (int i = 0; i < kChanges; ++i) {
    const KernelReply made = kernel.Next();
    EXPECT_EQ(made.error, 0);
    EXPECT_NE(made.As<fuse_entry_out>().nodeid, 0U);
  }
}

// A directory with a file that stays open for writing, and calls that publish it.
class WaitingPublications {
 public:
  explicit WaitingPublications(FakeKernel& kernel) : kernel_(kernel) {
    const KernelReply made = kernel.Ask(FUSE_MKDIR, FUSE_ROOT_ID, MakeDirectoryBody("d"));
    directory_ = made.As<fuse_entry_out>().nodeid;
    fuse_create_in in{};
    in.flags = O_RDWR;
    in.mode = S_IFREG | 0644;
    const KernelReply created = kernel.AskWith(FUSE_CREATE, directory_, in, std::string("f", 2));
    EXPECT_EQ(created.error, 0);
    file_ = created.As<fuse_entry_out>().nodeid;
    writer_ = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  }
  void Begin(int count) {
    for (int i = 0; i < count; ++i) BeginOne();
  }
  void BeginOne() {
    fuse_open_in open{};
    open.flags = O_DIRECTORY;
    fuse_ioctl_in in{};
    in.fh = kernel_.AskWith(FUSE_OPENDIR, directory_, open).As<fuse_open_out>().fh;
    HandleRegistry<DirectoryHandle>::Get(in.fh)->PermitChange();
    in.flags = FUSE_IOCTL_DIR;
    in.cmd = WEIGHTFS_IOC_PUBLISH;
    in.in_size = in.out_size = sizeof(weightfs_publication);
    weightfs_publication asked{};
    asked.version = WEIGHTFS_IOC_VERSION;
    std::string body(reinterpret_cast<const char*>(&in), sizeof(in));
    body.append(reinterpret_cast<const char*>(&asked), sizeof(asked));
    kernel_.Tell(FUSE_IOCTL, directory_, body);
  }
  void EndWriter() { EXPECT_EQ(kernel_.Release(file_, writer_).error, 0); }
  // The error of the next one to end.
  uint32_t Next() {
    KernelReply reply = kernel_.Next();
    while (reply.unique == 0 && reply.error != -ENOTCONN) reply = kernel_.Next();  // a mount that ends drops pages
    return reply.As<weightfs_publication>(sizeof(fuse_ioctl_out)).error;
  }

 private:
  FakeKernel& kernel_;
  uint64_t directory_ = 0, file_ = 0, writer_ = 0;
};

// Each of them waits for the writer, which may not have been closed yet.
TEST_P(Fairness, WritesToMappedFilesAreAnsweredWhilePublicationsWait) {
  FakeKernel kernel({}, Options(GetParam()));
  ASSERT_TRUE(kernel.negotiated().has_value());
  const KernelReply created = kernel.Create("mapped", O_RDWR);
  const auto node = created.As<fuse_entry_out>().nodeid;
  const auto handle = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  ASSERT_EQ(kernel.Write(node, handle, 0, std::string(4096, 'a')).error, 0);
  ASSERT_EQ(kernel.Fill(node, handle, 0, 4096).error, 0);
  WaitingPublications publications(kernel);
  constexpr int kCalls = 8;
  publications.Begin(kCalls);
  // The answer that arrives first is that of the write, which makes the kernel drop a page.
  EXPECT_EQ(kernel.Write(node, handle, 0, std::string(4096, 'b')).As<fuse_write_out>().size, 4096U);
  ASSERT_EQ(kernel.notifications.size(), 1U);
  publications.EndWriter();
  for (int i = 0; i < kCalls; ++i) EXPECT_EQ(publications.Next(), 0U);
}

TEST(FairnessEnd, AMountThatEndsWaitsForNoWriter) {
  FakeKernel kernel({}, Options(2));
  ASSERT_TRUE(kernel.negotiated().has_value());
  WaitingPublications publications(kernel);
  publications.Begin(3);
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "none").error, 0) << "the calls have been received";
  kernel.session().Stop();
  ASSERT_TRUE(kernel.WaitForEnd().has_value());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(publications.Next(), static_cast<uint32_t>(EAGAIN));
}

TEST(Deletions, LeaveTheReceiverAfterASlowOne) {
  FakeKernel kernel({}, Options(1));
  ASSERT_TRUE(kernel.negotiated().has_value());
  const auto make_orphan = [&kernel](const std::string& name) {
    const KernelReply created = kernel.Create(name, O_RDWR);
    const auto node = created.As<fuse_entry_out>().nodeid;
    kernel.Release(node, created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh);
    EXPECT_EQ(kernel.Ask(FUSE_SETXATTR, node, SetAttributeBody("user.a", 1)).error, 0);  // to be read by its deletion
    EXPECT_EQ(kernel.Ask(FUSE_UNLINK, FUSE_ROOT_ID, name + std::string(1, '\0')).error, 0);
    return node;
  };
  const auto forget = [&kernel](uint64_t node) {
    fuse_forget_in in{};
    in.nlookup = 1;
    kernel.Tell(FUSE_FORGET, node, {reinterpret_cast<const char*>(&in), sizeof(in)});
  };
  const auto first = make_orphan("a"), second = make_orphan("b");
  SlowCatalog slow(kernel.store().kv());
  forget(first);
  slow.WaitForFirst();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  slow.HoldNoMore();
  slow.Open();
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "none").error, 0) << "the receiver is free again";
  SlowCatalog slow_again(kernel.store().kv());
  forget(second);
  slow_again.WaitForFirst();
  slow_again.HoldNoMore();
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "none").error, 0) << "while the deletion waits";
}

INSTANTIATE_TEST_SUITE_P(Receivers, Fairness, testing::Values(1, 2, 4));

TEST(FairnessLimits, WaitingAttributeValuesOfAUserAreLimited) {
  FakeKernel kernel({}, Options(2));
  ASSERT_TRUE(kernel.negotiated().has_value());
  const auto node = kernel.Create("a", O_RDWR).As<fuse_entry_out>().nodeid;
  ASSERT_EQ(kernel.Ask(FUSE_SETXATTR, node, SetAttributeBody("user.a", 1)).error, 0);
  SlowCatalog slow(kernel.store().kv());
  constexpr int kFitting = 16 * kMiB / 65536;
  for (int i = 0; i < kFitting; ++i) kernel.Tell(FUSE_SETXATTR, node, SetAttributeBody("user.a", 65536));
  EXPECT_EQ(kernel.Ask(FUSE_SETXATTR, node, SetAttributeBody("user.b", 1)).error, -ENOMEM);
  slow.Open();
  for (int i = 0; i < kFitting; ++i) EXPECT_EQ(kernel.Next().error, 0);
  EXPECT_EQ(kernel.Ask(FUSE_SETXATTR, node, SetAttributeBody("user.b", 1)).error, 0);
}

TEST(FairnessLimits, PagesOfMappingsWaitInTheShareOfWhoOpenedTheFile) {
  FakeKernel kernel({}, Options(2));
  ASSERT_TRUE(kernel.negotiated().has_value());
  TestStore& store = kernel.store();
  const KernelReply created = kernel.Create("mapped", O_RDWR);
  const auto node = created.As<fuse_entry_out>().nodeid;
  const auto handle = created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh;
  ASSERT_EQ(kernel.Write(node, handle, 0, std::string(4096, 'a')).error, 0);
  ASSERT_OK(store->SyncAll());
  const auto filler = store.Create("filler");
  ASSERT_OK(filler);
  uint64_t filled = 0;
  const auto fill = [&] {
    for (; !store->WaitsToWrite(ByteCount{4096}); ++filled)
      ASSERT_OK(store->files().Fallocate(*filler, FallocateMode::kAllocate, filled * kBlockSize, kBlockSize));
  };
  const auto write = [&] {
    return std::async(std::launch::async,
                      [&] { return kernel.WriteBack(node, handle, 0, std::string(4096, 'b')); });
  };
  fill();
  store.device().Hold();
  auto written = write();
  UserLimit& waiting = kernel.filesystem().waiting_writes();
  const auto waits = [&](uint32_t user) { return !waiting.Take(user, 16 * kMiB).has_value(); };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!waits(1000) && std::chrono::steady_clock::now() < end) {
    if (written.wait_for(std::chrono::seconds(0)) != std::future_status::ready) continue;
    fill();  // the log has freed some space meanwhile
    written = write();
  }
  EXPECT_TRUE(waits(1000));
  EXPECT_FALSE(waits(0));
  store.device().Release();
  EXPECT_EQ(written.get().error, 0);
}

TEST(FairnessLimits, OpensOfAUserAreLimited) {
  FakeKernel kernel({}, Options(2));
  ASSERT_TRUE(kernel.negotiated().has_value());
  const KernelReply created = kernel.Create("a", O_RDWR);
  const auto node = created.As<fuse_entry_out>().nodeid;
  for (int i = 1; i < 65536; ++i) ASSERT_EQ(kernel.Open(node, O_RDONLY).error, 0) << i;
  EXPECT_EQ(kernel.Open(node, O_RDONLY).error, -EMFILE);
  EXPECT_EQ(kernel.Create("b", O_RDWR).error, -EMFILE);
  EXPECT_EQ(kernel.Lookup(FUSE_ROOT_ID, "b").As<fuse_entry_out>().nodeid, 0U) << "nothing was created";
  fuse_open_in open{};
  EXPECT_EQ(kernel.AskWith(FUSE_OPENDIR, FUSE_ROOT_ID, open).error, -EMFILE);
  kernel.Release(node, created.As<fuse_open_out>(sizeof(fuse_entry_out)).fh);
  EXPECT_EQ(kernel.Open(node, O_RDONLY).error, 0);
}

}  // namespace
}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
// The lease server on a store on disk, and programs that communicate with it through the channel.
#include "fs/lease_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "common/checksum.h"
#include "fs/filesystem.h"
#include "store/volume/store_session.h"
#include "tests/support/aligned_memory.h"
#include "tests/support/result_asserts.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_store.h"
#include "tests/support/thread_state.h"
#include "tests/unit/fs/fake_kernel.h"

namespace weightfs {
namespace {

class LeaseServerTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = (scratch_.path() / "store").string();
    FormatOptions format;
    format.size = ByteCount{64 * kMiB};
    format.fill = PoolFill::kNone;
    ASSERT_TRUE(FormatStore(path, format).has_value());
    auto session = StoreSession::Open(path, {}, {.memory = ByteCount{48 * kMiB}, .hot_memory = ByteCount{32 * kMiB}});
    ASSERT_TRUE(session.has_value()) << ToString(session.error());
    session_ = std::move(*session);
    filesystem_ = std::make_unique<Filesystem>(store(), options_);
    const auto started = filesystem_->StartLeases();
    ASSERT_TRUE(started.has_value()) << ToString(started.error());
  }
  void TearDown() override {
    filesystem_->Finish();
    EXPECT_FALSE(store().CollectOrphanedReservations()) << "every program has ended";
    EXPECT_EQ(store().statistics().pinned_bytes, 0U);
    EXPECT_EQ(store().statistics().granted_bytes, 0U);
    EXPECT_TRUE(session_->Close().has_value());
    filesystem_.reset();
  }

  Store& store() { return session_->store(); }
  LeaseServer& server() { return *filesystem_->leases(); }

  // Opens a file of the mount, and gets a ticket for this process.
  std::shared_ptr<FileHandle> Open(const std::string& name, int flags) {
    CreateRequest request;
    request.mode = S_IFREG | 0644;
    auto made = store().names().Create(kRootInode, name, request);
    if (!made.has_value()) made = store().names().Lookup(kRootInode, name);
    auto handle = std::make_shared<FileHandle>();
    handle->pages = std::make_shared<InodePages>();
    handle->inode = store().OpenFile(made.value().ino, false).value();
    handle->flags = flags;
    return handle;
  }
  lease::Token Ticket(const std::shared_ptr<FileHandle>& handle) {
    const auto process = server().processes().Of(getpid()).value();
    return filesystem_->tickets().Issue({handle, nullptr, 0, process}, geteuid()).value();
  }
  void WaitForLeases(uint64_t count) {
    while (server().leases() != count) std::this_thread::yield();
  }

  // A program's connection.
  struct Program {
    UniqueFd socket;
    std::vector<UniqueFd> devices;
    int error = 0;  // error of the last answer

    explicit Program(const LeaseServer& server) : socket(lease::Connect(server.name()).value()) {}
    lease::Message Ask(lease::Kind kind, const std::vector<std::span<const std::byte>>& body) {
      lease::Header header;
      header.kind = static_cast<uint32_t>(kind);
      error = ECONNRESET;  // the server has closed the connection, in one of two ways
      if (!lease::Send(socket.get(), header, body, {}).has_value()) return {};
      return Receive(kind);
    }
    lease::Message Receive(lease::Kind kind) {
      error = ECONNRESET;
      auto answer = lease::Receive(socket.get(), {});
      if (!answer.has_value()) return {};
      EXPECT_EQ(answer->header.kind, static_cast<uint32_t>(kind));
      error = answer->header.error;
      if (!answer->descriptors.empty()) devices = std::move(answer->descriptors);
      return std::move(*answer);
    }
    // Returns the bytes of the whole file after verifying each block.
    std::string Read(const lease::Token& token) {
      const lease::ReadRequest request{token, 0, lease::kToEnd};
      return TextOf(Ask(lease::Kind::kRead, {lease::BytesOf(request)}));
    }
    std::string TextOf(const lease::Message& message) {
      if (error != 0) return {};
      lease::BodyReader body(message.body());
      lease::ReadAnswer answer;
      std::vector<lease::Extent> extents;
      std::vector<uint32_t> checksums;
      EXPECT_TRUE(body.Take(&answer) && body.Take(answer.extents, &extents) && body.Take(answer.blocks, &checksums));
      EXPECT_TRUE(body.empty());
      std::string text(answer.blocks * kBlockSize, '\0');
      for (const lease::Extent& extent : extents) {
        const AlignedMemory memory(extent.count * kBlockSize);
        EXPECT_EQ(pread(devices[extent.device].get(), memory.data(), memory.size(),
                        static_cast<off_t>(extent.device_block * kBlockSize)),
                  static_cast<ssize_t>(memory.size()));
        for (uint64_t block = 0; block < extent.count; ++block) {
          EXPECT_EQ(Crc32c(memory.bytes().subspan(block * kBlockSize, kBlockSize)),
                    checksums[extent.file_block + block]);
        }
        text.replace(extent.file_block * kBlockSize, memory.size(), reinterpret_cast<const char*>(memory.data()),
                     memory.size());
      }
      text.resize(answer.file_size);
      return text;
    }
    // Replaces the file with blocks of one byte each.
    void Write(const lease::Token& token, char fill, uint64_t blocks, bool durable) {
      const lease::ReserveRequest request{token, 0, blocks};
      const lease::Message message = Ask(lease::Kind::kReserve, {lease::BytesOf(request)});
      if (error != 0) return;
      lease::BodyReader body(message.body());
      lease::ReserveAnswer answer;
      std::vector<lease::Extent> extents;
      EXPECT_TRUE(body.Take(&answer) && body.Take(answer.extents, &extents) && body.empty());
      const AlignedMemory memory(blocks * kBlockSize, fill);
      for (const lease::Extent& extent : extents) {
        const auto size = static_cast<ssize_t>(extent.count * kBlockSize);
        EXPECT_EQ(pwrite(devices[extent.device].get(), memory.data(), static_cast<size_t>(size),
                         static_cast<off_t>(extent.device_block * kBlockSize)),
                  size);
      }
      std::vector<uint32_t> checksums(blocks);
      Crc32cBlocks(memory.bytes(), checksums.data());
      const lease::CommitRequest commit{token, 0, memory.size(), memory.size(), durable ? 1U : 0U, 0};
      Ask(lease::Kind::kCommit, {lease::BytesOf(commit), lease::Bytes(checksums)});
      devices.clear();
    }
  };

  TemporaryDirectory scratch_;
  MountOptions options_;
  std::unique_ptr<StoreSession> session_;
  std::unique_ptr<Filesystem> filesystem_;
};

// Another mount that starts at the same time has a name for its socket, but does not listen yet.
TEST_F(LeaseServerTest, AStartLeavesASocketThatIsBeingMade) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for /run/weightfs";
  const UniqueFd directory(open("/run/weightfs", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(directory.get(), LOCK_EX), 0);
  const sockaddr_un address{.sun_family = AF_UNIX, .sun_path = "/run/weightfs/weightfs-of-this-test"};
  unlink(address.sun_path);
  const UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  Filesystem other(store(), options_);
  auto started = std::async(std::launch::async, [&] { return other.StartLeases().has_value(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(access(address.sun_path, F_OK), 0);
  ASSERT_EQ(listen(made.get(), 1), 0);
  EXPECT_EQ(flock(directory.get(), LOCK_UN), 0);
  EXPECT_TRUE(started.get());
  EXPECT_EQ(unlink(address.sun_path), 0);
  other.Finish();
}

TEST_F(LeaseServerTest, CommittedDataIsRead) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  Program program(server());
  for (const bool durable : {false, true}) {
    program.Write(token, durable ? 'd' : 'n', 100, durable);
    EXPECT_EQ(program.error, 0);
    EXPECT_EQ(program.Read(token), std::string(100 * kBlockSize, durable ? 'd' : 'n'));
    program.Ask(lease::Kind::kRelease, {});
    EXPECT_EQ(program.error, 0);
  }
  EXPECT_EQ(ToText(store().files().Read(file->inode, ByteOffset{0}, ByteCount{kMiB}).value()),
            std::string(100 * kBlockSize, 'd'));
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, ARequestByIoctlIsAnsweredOnTheConnection) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  Program program(server());
  program.Write(token, 'x', 100, false);
  const lease::IdentifyRequest identify{token};
  const lease::Message named = program.Ask(lease::Kind::kIdentify, {lease::BytesOf(identify)});
  lease::Identity identity;
  ASSERT_TRUE(lease::BodyReader(named.body()).Take(&identity));
  EXPECT_EQ(server().leases(), 0U);
  const AskedLease read{lease::Kind::kRead, {token, 0, lease::kToEnd}, getpid()};
  for (const bool here : {false, true}) {
    EXPECT_EQ(server().Ask(geteuid(), identity.connection, read, here), 0);
    EXPECT_EQ(program.TextOf(program.Receive(lease::Kind::kRead)), std::string(100 * kBlockSize, 'x'));
    EXPECT_EQ(server().leases(), 1U);
    EXPECT_EQ(server().Ask(geteuid(), identity.connection, read, here), 0);
    program.Receive(lease::Kind::kRead);
    EXPECT_EQ(program.error, EBUSY) << "it has a lease";
    program.Ask(lease::Kind::kRelease, {});
    EXPECT_EQ(server().Ask(geteuid(), identity.connection, {lease::Kind::kReserve, {token, 0, 10}, getpid()}, here), 0);
    program.Receive(lease::Kind::kReserve);
    EXPECT_EQ(program.error, 0);
    EXPECT_EQ(store().statistics().granted_bytes, 10 * kBlockSize);
    program.Ask(lease::Kind::kRelease, {});
    EXPECT_EQ(server().Ask(geteuid() + 1, identity.connection, read, here), ENOTCONN);
    const AskedLease of_parent{lease::Kind::kRead, {token, 0, 1}, getppid()};
    EXPECT_EQ(server().Ask(geteuid(), identity.connection, of_parent, here), ENOTCONN);
    EXPECT_EQ(server().Ask(geteuid(), identity.connection + 1, read, here), ENOTCONN);
  }
  server().Stop();
  EXPECT_EQ(server().Ask(geteuid(), identity.connection, read, true), ENOTCONN);
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, ATicketOfAnotherProcessIsRefused) {
  const auto file = Open("a", O_RDWR);
  const ProcessPtr parent = server().processes().Of(getppid()).value();
  const lease::Token own = Ticket(file);
  const lease::Token other = filesystem_->tickets().Issue({file, nullptr, 0, parent}, geteuid()).value();
  const lease::Token unbound = filesystem_->tickets().Issue({file, nullptr}, geteuid()).value();
  Program program(server());
  for (const lease::Token& token : {other, unbound}) {
    const lease::IdentifyRequest identify{token};
    program.Ask(lease::Kind::kIdentify, {lease::BytesOf(identify)});
    EXPECT_EQ(program.error, EACCES);
    program.Read(token);
    EXPECT_EQ(program.error, EACCES);
    program.Write(token, 'x', 1, false);
    EXPECT_EQ(program.error, EACCES);
    EXPECT_TRUE(program.devices.empty());
  }
  program.Write(own, 'x', 1, false);
  EXPECT_EQ(program.error, 0);
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, AConnectionIsConfirmedToItsProcessAlone) {
  const auto file = Open("a", O_RDWR);
  const lease::IdentifyRequest identify{Ticket(file)};
  Program program(server());
  const lease::Message named = program.Ask(lease::Kind::kIdentify, {lease::BytesOf(identify)});
  lease::Identity identity;
  ASSERT_TRUE(lease::BodyReader(named.body()).Take(&identity));
  const AskedLease own{lease::Kind::kIdentify, {}, getpid()}, of_parent{lease::Kind::kIdentify, {}, getppid()};
  EXPECT_EQ(server().Ask(geteuid(), identity.connection, own, true), 0);
  EXPECT_EQ(server().Ask(geteuid(), identity.connection, of_parent, true), ENOTCONN);
  EXPECT_EQ(server().Ask(geteuid() + 1, identity.connection, own, true), ENOTCONN);
  EXPECT_EQ(server().Ask(geteuid(), identity.connection + 1, own, true), ENOTCONN);
  store().CloseFile(file->inode);
}

TEST(LeaseConnection, AProgramSeesItsEndBeforeItsBlocksAreFree) {
  std::atomic<uint64_t> leases{0};
  UserLimit limit(1);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const UniqueFd program(ends[1]);
  LeaseConnection connection(UniqueFd{ends[0]}, 7, {}, 0, leases, limit.Take(0).value());
  pollfd open{.fd = program.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&open, 1, 0), 0);
  connection.Abandon();
  EXPECT_EQ(poll(&open, 1, 0), 1);
}

TEST(LeaseConnection, ServesOneRequestAtATimeAndLetsOneWait) {
  std::atomic<uint64_t> leases{0};
  UserLimit limit(1);
  LeaseConnection connection({}, 7, {}, 0, leases, limit.Take(0).value());
  using Begun = LeaseConnection::Begun;
  const AskedLease read{lease::Kind::kRead, {}}, reserve{lease::Kind::kReserve, {}};
  EXPECT_EQ(connection.BeginRequest(read), Begun::kNow);
  EXPECT_EQ(connection.BeginRequest(), Begun::kLater);
  EXPECT_EQ(connection.BeginRequest(reserve), Begun::kLater);
  EXPECT_EQ(connection.BeginRequest(read), Begun::kBusy);
  const auto next = connection.EndRequest();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->kind, lease::Kind::kReserve);
  EXPECT_FALSE(connection.IdleSince().has_value());
  EXPECT_FALSE(connection.EndRequest().has_value());
  EXPECT_TRUE(connection.IdleSince().has_value());
  EXPECT_EQ(connection.BeginRequest(), Begun::kNow);
}

TEST_F(LeaseServerTest, TheEndOfAConnectionEndsItsLease) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  {
    Program writer(server()), reader(server());
    writer.Write(token, 'x', 10, false);
    const lease::ReserveRequest request{token, 0, 1000};
    writer.Ask(lease::Kind::kReserve, {lease::BytesOf(request)});
    reader.Read(token);
    EXPECT_EQ(server().leases(), 2U);
    EXPECT_EQ(store().statistics().granted_bytes, 1000 * kBlockSize);
    EXPECT_EQ(store().statistics().pinned_bytes, 10 * kBlockSize);
  }
  WaitForLeases(0);
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, BlocksAreFreeOnceNobodyCanWriteThem) {
  const auto file = Open("a", O_RDWR);
  const lease::ReserveRequest request{Ticket(file), 0, 1000};
  UniqueFd copy;
  {
    Program program(server()), other(server());
    program.Ask(lease::Kind::kReserve, {lease::BytesOf(request)});
    copy = UniqueFd(fcntl(program.devices[0].get(), F_DUPFD_CLOEXEC, 0));
    other.Ask(lease::Kind::kReserve, {lease::BytesOf(request)});
    const UniqueFd kept(fcntl(other.devices[0].get(), F_DUPFD_CLOEXEC, 0));
    other.Ask(lease::Kind::kRelease, {});
    EXPECT_EQ(store().statistics().granted_bytes, 1000 * kBlockSize) << "whoever releases has ended his writes";
  }
  WaitForLeases(0);
  store().CollectOrphanedReservations();
  EXPECT_EQ(store().statistics().granted_bytes, 1000 * kBlockSize);
  copy = UniqueFd();
  while (store().statistics().granted_bytes != 0) std::this_thread::yield();  // The server checks by itself.
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, AnAnswerIsSentOnceEvenIfTheProgramIsGone) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  for (int round = 0; round < 200; ++round) {
    Program program(server());
    const lease::ReadRequest request{token, 0, lease::kToEnd};
    lease::Header header;
    header.kind = static_cast<uint32_t>(lease::Kind::kRead);
    EXPECT_TRUE(lease::Send(program.socket.get(), header, std::vector{lease::BytesOf(request)}, {}).has_value());
  }
  WaitForLeases(0);
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, StopsWithProgramsInTheMiddleOfTheirWork) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  std::atomic<uint64_t> commits{0};
  std::vector<std::thread> programs;
  for (int index = 0; index < 6; ++index) {
    programs.emplace_back([&, index] {
      Program program(server());
      while (program.error == 0) {
        program.Write(token, static_cast<char>('a' + index), 20, index % 2 == 0);
        if (program.error == 0) ++commits;
        if (program.error != 0) break;
        const std::string text = program.Read(token);
        if (program.error != 0) break;
        EXPECT_EQ(text, std::string(text.size(), text[0])) << "one commit or another, no mix";
        program.Ask(lease::Kind::kRelease, {});
      }
      EXPECT_EQ(program.error, ECONNRESET);
    });
  }
  while (commits.load() < 60) std::this_thread::yield();
  server().Stop();
  for (std::thread& program : programs) program.join();
  EXPECT_EQ(server().leases(), 0U);
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, StopsWithoutTheLoadsThatWait) {
  const auto slow = Open("slow", O_RDWR), file = Open("a", O_RDWR);
  const std::string data = Pattern(1, 4 * kMiB);
  for (const auto& each : {slow, file}) {
    ASSERT_OK(store().files().Write(each->inode, ByteOffset{0}, std::as_bytes(std::span(data))));
  }
  std::vector<std::unique_ptr<Program>> programs;
  const auto ask = [&](const std::shared_ptr<FileHandle>& handle) {
    programs.push_back(std::make_unique<Program>(server()));
    const lease::ReadRequest request{Ticket(handle), 0, lease::kToEnd};
    lease::Header header;
    header.kind = static_cast<uint32_t>(lease::Kind::kMap);
    const int socket = programs.back()->socket.get();
    ASSERT_TRUE(lease::Send(socket, header, std::vector{lease::BytesOf(request)}, {}).has_value());
    for (int unread = 1; unread != 0; std::this_thread::yield()) ASSERT_EQ(ioctl(socket, SIOCOUTQ, &unread), 0);
  };
  std::future<void> stopped;
  {
    MutexLock lock(slow->inode->mutex);
    for (int index = 0; index < 4; ++index) ask(slow);  // all threads
    for (int index = 0; index < 4; ++index) ask(file);
    stopped = StartUntilBlocked([&] { server().Stop(); });
  }
  stopped.get();
  EXPECT_LE(store().Hot().loaded, 4 * kMiB);
  for (const auto& each : {slow, file}) store().CloseFile(each->inode);
}

TEST_F(LeaseServerTest, BecomingReadOnlyWaitsForCommitsUnderWay) {
  const auto file = Open("a", O_RDWR);
  const lease::Token token = Ticket(file);
  std::promise<void> dropping, go_on;
  FakeKernel::on_drop = [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    dropping.set_value();
    go_on.get_future().wait();
  };
  auto written = std::async(std::launch::async, [&] {
    Program program(server());
    program.Write(token, 'a', 20, false);
    return program.error;
  });
  dropping.get_future().wait();
  filesystem_->SetReadOnly(true);
  std::atomic<bool> released{false};
  auto waited = StartUntilBlocked([&] {
    filesystem_->commits().WaitForNone();
    return released.load();
  });
  released = true;
  go_on.set_value();
  EXPECT_TRUE(waited.get());
  EXPECT_EQ(written.get(), 0) << "it began before";
  FakeKernel::on_drop = nullptr;
  Program late(server());
  late.Write(token, 'b', 20, false);
  EXPECT_EQ(late.error, EROFS);
  store().CloseFile(file->inode);
}

TEST(AnswerMemory, IsBoundedForAllTogetherAndComesBack) {
  std::atomic<uint64_t> taken{0};
  const BlockCount third{kLargestLease.value / 3};
  AnswerMemory first(taken);
  EXPECT_TRUE(first.Add(third).has_value());
  EXPECT_TRUE(first.Add(third).has_value());
  {
    AnswerMemory second(taken);
    EXPECT_TRUE(second.Add(third).has_value());
    EXPECT_EQ(second.Add(third).error().code, ErrorCode::kAgain);
    EXPECT_EQ(AnswerMemory(taken).Add(BlockCount{UINT64_MAX}).error().code, ErrorCode::kFileTooBig);
  }
  EXPECT_TRUE(AnswerMemory(taken).Add(third).has_value());
}

TEST_F(LeaseServerTest, MemoryOfAnswersIsReleased) {
  const auto file = Open("a", O_RDWR);
  ASSERT_TRUE(store().files().Truncate(file->inode, uint64_t{300} << 30).has_value());
  const lease::ReadRequest request{Ticket(file), 0, lease::kToEnd};
  Program program(server());
  for (int round = 0; round < 3; ++round) {
    program.Ask(lease::Kind::kRead, {lease::BytesOf(request)});
    EXPECT_EQ(program.error, 0);
    program.Ask(lease::Kind::kRelease, {});
  }
  store().CloseFile(file->inode);
}

TEST_F(LeaseServerTest, TheOptionSetsTheTrustDomain) {
  const Credentials root{0, 0, {}, uint64_t{1} << CAP_DAC_OVERRIDE}, owner{geteuid(), 0, {}, root.capabilities};
  const Credentials stranger{geteuid() + 1, 0, {}, root.capabilities}, bare{0, 0, {}, ~root.capabilities};
  for (const auto& [who, by_owner, by_root] :
       {std::tuple(root, true, true), std::tuple(owner, true, geteuid() == 0), std::tuple(stranger, false, false)}) {
    EXPECT_EQ(TrustsForLeases(DirectAccess::kOwner, who), by_owner);
    EXPECT_EQ(TrustsForLeases(DirectAccess::kRoot, who), by_root);
    EXPECT_EQ(MayHoldTickets(DirectAccess::kOwner, who.uid), by_owner);
    EXPECT_EQ(MayHoldTickets(DirectAccess::kRoot, who.uid), by_root);
    EXPECT_FALSE(TrustsForLeases(DirectAccess::kOff, who));
  }
  EXPECT_FALSE(TrustsForLeases(DirectAccess::kOwner, bare)) << "root without CAP_DAC_OVERRIDE";
  EXPECT_FALSE(TrustsForLeases(DirectAccess::kRoot, bare));
}

}  // namespace
}  // namespace weightfs

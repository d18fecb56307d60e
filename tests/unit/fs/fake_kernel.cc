// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/fs/fake_kernel.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/log.h"

namespace weightfs {
namespace {

constexpr size_t kLargestReply = 2 * kMiB;

std::string WithZero(std::string_view name) { return std::string(name).append(1, '\0'); }

}  // namespace

// Replaces libfuse's function. Without a session there is no kernel that could have pages.
extern "C" int fuse_lowlevel_notify_inval_inode(fuse_session* session, fuse_ino_t ino, off_t offset, off_t size) {
  if (FakeKernel::on_drop) FakeKernel::on_drop();
  if (session == nullptr) return 0;
  if (!FakeKernel::drop_errors.empty()) {
    const int error = FakeKernel::drop_errors.front();
    FakeKernel::drop_errors.pop_front();
    return error;
  }
  using Notify = int (*)(fuse_session*, fuse_ino_t, off_t, off_t);
  static const auto next = reinterpret_cast<Notify>(dlsym(RTLD_NEXT, "fuse_lowlevel_notify_inval_inode"));
  return next(session, ino, offset, size);
}

FakeKernel::FakeKernel(const Offer& offer, MountOptions options, const TestStoreOptions& store)
    : store_(store), options_(std::move(options)) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) std::abort();
  socket_ = sockets[0];
  filesystem_ = std::make_unique<Filesystem>(*store_, options_);
  auto session = Session::Create(*filesystem_, options_);
  if (!session.has_value()) {
    negotiated_ = session.error();
    close(sockets[1]);
    return;
  }
  session_ = std::move(*session);
  if (negotiated_ = session_->Attach(sockets[1]); !negotiated_.has_value()) return;

  fuse_init_in init{};
  init.major = 7;
  init.minor = offer.minor;
  init.max_readahead = 128 * kKiB;
  init.flags = static_cast<uint32_t>(offer.flags);
  init.flags2 = static_cast<uint32_t>(offer.flags >> 32);
  Send(FUSE_INIT, 0, {reinterpret_cast<const char*>(&init), sizeof(init)});
  negotiated_ = session_->Negotiate();
  if (!negotiated_.has_value()) return;
  init_reply_ = Receive();
  runner_ = std::thread([this] { run_result_ = session_->Run(); });
}

FakeKernel::~FakeKernel() {
  if (runner_.joinable()) (void)Disconnect();
  if (socket_ >= 0) close(socket_);
  (void)store_->Close();  // releases its buffers of the session
}

void FakeKernel::Send(uint32_t opcode, uint64_t node, std::string_view body) {
  fuse_in_header header{};
  header.len = static_cast<uint32_t>(sizeof(header) + body.size());
  header.opcode = opcode;
  header.unique = ++unique_ * 2;
  header.nodeid = node;
  header.uid = user;
  header.gid = 1000;
  header.pid = process;
  std::string packet(reinterpret_cast<const char*>(&header), sizeof(header));
  packet.append(body);
  if (send(socket_, packet.data(), packet.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(packet.size())) {
    spdlog::critical("the fake kernel could not send {} bytes: {}", packet.size(), std::strerror(errno));
    std::abort();
  }
}

KernelReply FakeKernel::Receive() {
  std::string packet(kLargestReply, '\0');
  const ssize_t size = recv(socket_, packet.data(), packet.size(), 0);
  KernelReply reply;
  fuse_out_header header{};
  if (size < static_cast<ssize_t>(sizeof(header))) {
    reply.error = -ENOTCONN;
    return reply;
  }
  std::memcpy(&header, packet.data(), sizeof(header));
  reply.unique = header.unique;
  reply.error = header.error;
  reply.body = packet.substr(sizeof(header), static_cast<size_t>(size) - sizeof(header));
  return reply;
}

KernelReply FakeKernel::Ask(uint32_t opcode, uint64_t node, std::string_view body) {
  Send(opcode, node, body);
  notifications.clear();
  while (true) {
    KernelReply reply = Receive();
    if (reply.unique != 0 || reply.error == -ENOTCONN) return reply;
    notifications.push_back(std::move(reply));
  }
}

bool FakeKernel::HasNext(std::chrono::milliseconds wait) const {
  pollfd readable{.fd = socket_, .events = POLLIN, .revents = 0};
  return poll(&readable, 1, static_cast<int>(wait.count())) > 0;
}

void FakeKernel::Tell(uint32_t opcode, uint64_t node, std::string_view body) { Send(opcode, node, body); }

void FakeKernel::TellNothing() {
  if (send(socket_, "", 1, MSG_NOSIGNAL) != 1) std::abort();
}

KernelReply FakeKernel::Lookup(uint64_t parent, std::string_view name) {
  return Ask(FUSE_LOOKUP, parent, WithZero(name));
}

KernelReply FakeKernel::Create(std::string_view name, uint32_t flags, uint32_t mode, uint32_t umask) {
  fuse_create_in in{};
  in.flags = flags;
  in.mode = S_IFREG | mode;
  in.umask = umask;
  return AskWith(FUSE_CREATE, FUSE_ROOT_ID, in, WithZero(name));
}

KernelReply FakeKernel::Open(uint64_t node, uint32_t flags) {
  fuse_open_in in{};
  in.flags = flags;
  return AskWith(FUSE_OPEN, node, in);
}

KernelReply FakeKernel::Write(uint64_t node, uint64_t handle, uint64_t offset, std::string_view data, uint32_t flags) {
  fuse_write_in in{};
  in.fh = handle;
  in.offset = offset;
  in.size = static_cast<uint32_t>(data.size());
  in.flags = flags;
  return AskWith(FUSE_WRITE, node, in, data);
}

KernelReply FakeKernel::Read(uint64_t node, uint64_t handle, uint64_t offset, uint32_t size) {
  fuse_read_in in{};
  in.fh = handle;
  in.offset = offset;
  in.size = size;
  in.read_flags = FUSE_READ_LOCKOWNER;
  in.lock_owner = 1;
  return AskWith(FUSE_READ, node, in);
}

KernelReply FakeKernel::Fill(uint64_t node, uint64_t handle, uint64_t offset, uint32_t size) {
  fuse_read_in in{};
  in.fh = handle;
  in.offset = offset;
  in.size = size;
  return AskWith(FUSE_READ, node, in);
}

KernelReply FakeKernel::WriteBack(uint64_t node, uint64_t handle, uint64_t offset, std::string_view data) {
  fuse_write_in in{};
  in.fh = handle;
  in.offset = offset;
  in.size = static_cast<uint32_t>(data.size());
  in.write_flags = FUSE_WRITE_CACHE;
  const uint32_t caller = std::exchange(user, 0);  // the kernel writes pages back as root
  KernelReply reply = AskWith(FUSE_WRITE, node, in, data);
  user = caller;
  return reply;
}

KernelReply FakeKernel::Release(uint64_t node, uint64_t handle) {
  fuse_release_in in{};
  in.fh = handle;
  return AskWith(FUSE_RELEASE, node, in);
}

Result<void> FakeKernel::Disconnect() {
  shutdown(socket_, SHUT_RDWR);
  return WaitForEnd();
}

Result<void> FakeKernel::WaitForEnd() {
  runner_.join();
  return run_result_;
}

}  // namespace weightfs

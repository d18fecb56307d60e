// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/client/fake_lease_mount.h"

#include <linux/magic.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <list>

#include "client/lease/mount_user.h"
#include "common/checksum.h"
#include "common/units.h"
#include "lease/ioctl.h"

namespace weightfs::client {
namespace {

std::atomic<FakeLeaseMount*> the_mount{nullptr};

void AppendOne(std::vector<std::byte>& body, std::span<const std::byte> bytes) {
  body.insert(body.end(), bytes.begin(), bytes.end());
}

template <typename... Parts>
void Append(std::vector<std::byte>& body, const Parts&... parts) {
  (AppendOne(body, parts), ...);
}

void Require(bool condition) {
  if (!condition) std::abort();
}

std::string NameOf(int descriptor) {
  std::array<char, PATH_MAX> name;
  const auto link = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t size = readlink(link.c_str(), name.data(), name.size());
  return {name.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte value) { return value == std::byte{0}; });
}

}  // namespace

FakeLeaseMount::FakeLeaseMount() {
  device_descriptor_ = UniqueFd(open(device_.path().c_str(), O_RDWR | O_CLOEXEC));
  name_ = "weightfs-fake-" + std::to_string(getpid());
  listener_ = std::move(*lease::Listen(name_, 64));
  int ends[2];
  Require(device_descriptor_ && pipe2(ends, O_CLOEXEC) == 0);
  wake_[0] = UniqueFd(ends[0]);
  wake_[1] = UniqueFd(ends[1]);
  Require(pipe2(ends, O_CLOEXEC) == 0);
  asked_[0] = UniqueFd(ends[0]);
  asked_[1] = UniqueFd(ends[1]);
  thread_ = std::thread([this] { Serve(); });
  the_mount = this;
}

FakeLeaseMount::~FakeLeaseMount() {
  the_mount = nullptr;
  Stop();
}

void FakeLeaseMount::Stop() {
  wake_[1] = {};
  if (thread_.joinable()) thread_.join();
  listener_ = {};
}

size_t FakeLeaseMount::requests(lease::Kind kind) const {
  MutexLock lock(mutex_);
  const auto at = requests_.find(kind);
  return at == requests_.end() ? 0 : at->second;
}
size_t FakeLeaseMount::leases() const { return leases_; }
void FakeLeaseMount::WaitForLeases(size_t most) const {
  for (size_t held = leases_.load(); held > most; held = leases_.load()) leases_.wait(held);
}
void FakeLeaseMount::CountLease(bool begins) {
  begins ? ++leases_ : --leases_;
  leases_.notify_all();
}
size_t FakeLeaseMount::connections() const {
  MutexLock lock(mutex_);
  return connections_;
}

bool FakeLeaseMount::Has(int descriptor) const {
  return NameOf(descriptor).starts_with(std::filesystem::canonical(folder_ / ".").string());
}

bool FakeLeaseMount::Ask(int descriptor, void* ticket, int* result) {
  if (!Has(descriptor)) return false;
  const std::string path = NameOf(descriptor);
  *result = ticket_error;
  if (ticket_error != 0) return true;
  auto* out = static_cast<weightfs_lease_ticket*>(ticket);
  Require(out->version == WEIGHTFS_IOC_VERSION);
  out->protocol = lease::kProtocolVersion;
  std::strcpy(out->socket, name_.c_str());
  const lease::Token token = MakeTicket(path, descriptor);
  std::memcpy(out->token, token.data(), token.size());
  return true;
}

lease::Token FakeLeaseMount::MakeTicket(const std::string& path, int descriptor) {
  MutexLock lock(mutex_);
  lease::Token token{};
  const uint64_t number = tickets_.size() + 1;
  std::memcpy(token.data(), &number, sizeof(number));
  tickets_[token] = {path, descriptor};
  return token;
}

bool FakeLeaseMount::AskLease(int descriptor, void* request, int* result) {
  if (!Has(descriptor)) return false;
  *result = ticket_error;
  if (ticket_error != 0) return true;
  auto* in = static_cast<weightfs_lease_request*>(request);
  Require(in->version == WEIGHTFS_IOC_VERSION);
  if (static_cast<lease::Kind>(in->kind) == lease::Kind::kIdentify) {
    *result = in->connection >= 1 && in->connection <= connections() ? 0 : ENOTCONN;
    return true;
  }
  const lease::Token token = MakeTicket(NameOf(descriptor), descriptor);
  std::memcpy(in->token, token.data(), token.size());
  const Asked asked{in->connection, static_cast<lease::Kind>(in->kind), {token, in->offset, in->length}};
  ++asks_;
  Require(write(asked_[1].get(), &asked, sizeof(asked)) == sizeof(asked));
  return true;
}

std::string FakeLeaseMount::PathOf(const lease::Token& token) const {
  MutexLock lock(mutex_);
  const auto& ticket = tickets_.at(token);
  return NameOf(ticket.descriptor) == ticket.path ? ticket.path : "";
}

void FakeLeaseMount::Serve() {
  std::list<Connection> connections;
  for (;;) {
    std::vector<pollfd> polled{{wake_[0].get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}, {asked_[0].get(), POLLIN, 0}};
    for (const auto& connection : connections) polled.push_back({connection.socket.get(), POLLIN, 0});
    Require(poll(polled.data(), polled.size(), -1) > 0);
    if (polled[0].revents != 0) break;
    if (polled[2].revents != 0) {
      Asked asked;
      Require(read(asked_[0].get(), &asked, sizeof(asked)) == sizeof(asked));
      for (auto& connection : connections) {
        // A connection that has ended is found by the next poll.
        if (connection.id == asked.connection)
          Answer(connection, asked.kind, lease::BodyReader(lease::BytesOf(asked.request)));
      }
      continue;
    }
    size_t i = 3;
    for (auto connection = connections.begin(); connection != connections.end(); ++i) {
      if (polled[i].revents != 0 && !Receive(*connection)) {
        if (connection->held) CountLease(false);
        connection = connections.erase(connection);
      } else {
        ++connection;
      }
    }
    if (polled[1].revents == 0) continue;
    MutexLock lock(mutex_);
    connections.push_back({.socket = std::move(*lease::Accept(listener_.get())), .id = ++connections_});
  }
  for (const auto& connection : connections) {
    if (connection.held) CountLease(false);
  }
}

bool FakeLeaseMount::Receive(Connection& connection) {
  auto message = lease::Receive(connection.socket.get(), {});
  if (!message.has_value()) return false;
  return Answer(connection, static_cast<lease::Kind>(message->header.kind), lease::BodyReader(message->body()));
}

bool FakeLeaseMount::Answer(Connection& connection, lease::Kind kind, lease::BodyReader body) {
  {
    MutexLock lock(mutex_);
    ++requests_[kind];
  }
  const int refusal = on_request ? on_request(kind) : 0;
  const bool ends = kind == lease::Kind::kCommit || kind == lease::Kind::kCommitMany || kind == lease::Kind::kRelease;
  Reply reply;
  if (refusal != 0) {
    reply.error = refusal;
  } else {
    reply = Carry(connection, kind, body);
  }
  const bool takes = reply.error == 0 && kind != lease::Kind::kIdentify;
  const bool held = !ends && (connection.held || takes);
  if (held != connection.held) CountLease(held);
  connection.held = held;
  if (reply.error != 0) Append(reply.body, std::as_bytes(std::span(std::string_view("the fake refuses"))));
  lease::Header header{.kind = static_cast<uint32_t>(kind), .error = reply.error};
  const std::span<const std::byte> answer(reply.body);
  if (!reply.devices) return lease::Send(connection.socket.get(), header, std::array{answer}, {}).has_value();
  const bool reserves = kind == lease::Kind::kReserve || kind == lease::Kind::kReserveInPlace;
  const int access = reserves ? O_RDWR : O_RDONLY;
  const UniqueFd device(open(device_.path().c_str(), access | O_DIRECT | O_CLOEXEC));
  Require(static_cast<bool>(device));
  return lease::Send(connection.socket.get(), header, std::array{answer}, std::array{device.get()}).has_value();
}

FakeLeaseMount::Reply FakeLeaseMount::Carry(Connection& connection, lease::Kind kind, lease::BodyReader body) {
  switch (kind) {
    case lease::Kind::kRead: return Read(connection, body);
    case lease::Kind::kReserve:
    case lease::Kind::kReserveInPlace: return Reserve(connection, body);
    case lease::Kind::kCommit: return Commit(connection, body);
    case lease::Kind::kReadMany: return ReadMany(connection, body);
    case lease::Kind::kCommitMany: return CommitMany(connection, body);
    case lease::Kind::kIdentify: {
      Reply reply;
      Append(reply.body, lease::BytesOf(lease::Identity{impostor ? connection.id + 1000 : connection.id}));
      return reply;
    }
    default: return {};
  }
}

std::vector<lease::Extent> FakeLeaseMount::Place(uint64_t blocks) {
  std::vector<lease::Extent> extents;
  for (uint64_t block = 0; block < blocks;) {
    const uint64_t count = std::min(extent_blocks, blocks - block);
    if ((next_block_ + count) * kBlockSize > (256 << 20)) next_block_ = 1;
    extents.push_back({.file_block = block, .count = count, .device_block = next_block_});
    next_block_ += count + 1;
    block += count;
  }
  return extents;
}

std::vector<lease::Extent> FakeLeaseMount::LayOut(const Bytes& content, uint64_t first_block,
                                                  std::vector<uint32_t>* checksums) {
  Bytes padded = content;
  padded.resize(RoundUp(content.size(), kBlockSize));
  std::vector<lease::Extent> extents;
  for (const auto& placed : Place(padded.size() / kBlockSize)) {
    for (uint64_t i = 0; i < placed.count; ++i) {
      const auto block = std::span(padded).subspan((placed.file_block + i) * kBlockSize, kBlockSize);
      checksums->push_back(IsZero(block) ? 0 : Crc32c(block));
      if (IsZero(block)) continue;
      const uint64_t device_block = placed.device_block + i;
      Require(pwrite(device_descriptor_.get(), block.data(), kBlockSize,
                     static_cast<off_t>(device_block * kBlockSize)) == kBlockSize);
      const uint64_t file_block = first_block + placed.file_block + i;
      if (!extents.empty() && extents.back().file_block + extents.back().count == file_block &&
          extents.back().device_block + extents.back().count == device_block) {
        ++extents.back().count;
      } else {
        extents.push_back({.file_block = file_block, .count = 1, .device_block = device_block, .verified = verified});
      }
    }
  }
  Require(fdatasync(device_descriptor_.get()) == 0);
  if (on_laid_out) on_laid_out(extents);
  return extents;
}

FakeLeaseMount::Reply FakeLeaseMount::Read(Connection& connection, lease::BodyReader body) {
  lease::ReadRequest request;
  Require(body.Take(&request));
  if (connection.held) return {.error = EBUSY};
  const std::string path = PathOf(request.token);
  if (path.empty()) return {.error = EBADF};
  const Bytes content = ReadFile(path);
  const uint64_t first = request.offset / kBlockSize;
  const uint64_t end = std::min<uint64_t>(content.size(), RoundUp(request.offset + request.length, kBlockSize));
  std::vector<uint32_t> checksums;
  Bytes range(content.begin() + static_cast<long>(std::min(first * kBlockSize, end)),
              content.begin() + static_cast<long>(end));
  const auto extents = LayOut(range, first, &checksums);
  const lease::ReadAnswer answer{content.size(), first, checksums.size(), extents.size()};
  Reply reply{.devices = true};
  Append(reply.body, lease::BytesOf(answer), lease::Bytes(extents), lease::Bytes(checksums));
  return reply;
}

FakeLeaseMount::Reply FakeLeaseMount::Reserve(Connection& connection, lease::BodyReader body) {
  lease::ReserveRequest request;
  Require(body.Take(&request));
  if (connection.held || request.blocks == 0 || request.file_offset % kBlockSize != 0) return {.error = EINVAL};
  connection.reserved = Place(request.blocks);
  const lease::ReserveAnswer answer{connection.reserved.size()};
  Reply reply{.devices = true};
  Append(reply.body, lease::BytesOf(answer), lease::Bytes(connection.reserved));
  return reply;
}

Bytes FakeLeaseMount::Collect(const std::vector<lease::Extent>& extents, uint64_t skip,
                              std::span<const uint32_t> checksums) {
  Bytes bytes(checksums.size() * kBlockSize);
  for (size_t i = 0; i < checksums.size(); ++i) {
    const auto extent = std::find_if(extents.begin(), extents.end(), [&](const lease::Extent& candidate) {
      return skip + i < candidate.file_block + candidate.count;
    });
    if (extent == extents.end()) return {};
    const auto block = std::span(bytes).subspan(i * kBlockSize, kBlockSize);
    const uint64_t device_block = extent->device_block + (skip + i - extent->file_block);
    Require(pread(device_descriptor_.get(), block.data(), kBlockSize, static_cast<off_t>(device_block * kBlockSize)) ==
            kBlockSize);
    if (Crc32c(block) != checksums[i]) return {};
  }
  return bytes;
}

FakeLeaseMount::Reply FakeLeaseMount::Commit(Connection& connection, lease::BodyReader body) {
  lease::CommitRequest request;
  std::vector<uint32_t> checksums;
  Require(body.Take(&request));
  const uint64_t blocks = RoundUp(request.length, kBlockSize) / kBlockSize;
  if (!body.Take(blocks, &checksums) || !body.empty()) return {.error = EINVAL};
  const Bytes bytes = Collect(connection.reserved, 0, checksums);
  if (bytes.empty() || !IsZero(std::span(bytes).subspan(request.length))) return {.error = EILSEQ};
  const std::string path = PathOf(request.token);
  if (path.empty()) return {.error = EBADF};
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  Require(file && pwrite(file.get(), bytes.data(), request.length, static_cast<off_t>(request.file_offset)) ==
                      static_cast<ssize_t>(request.length));
  if (request.new_size != lease::kToEnd) Require(ftruncate(file.get(), static_cast<off_t>(request.new_size)) == 0);
  return {};
}

FakeLeaseMount::Reply FakeLeaseMount::ReadMany(Connection& connection, lease::BodyReader body) {
  lease::ReadManyRequest request;
  Require(body.Take(&request));
  if (connection.held) return {.error = EBUSY};
  const std::string folder = PathOf(request.token);
  if (folder.empty()) return {.error = EBADF};
  std::vector<lease::FileAnswer> files;
  std::vector<lease::Extent> extents;
  std::vector<uint32_t> checksums;
  for (uint64_t i = 0; i < request.files; ++i) {
    std::string_view name;
    Require(body.TakeText(&name));
    const std::string path = folder + "/" + std::string(name);
    if (const auto error = file_errors.find(std::string(name)); error != file_errors.end()) {
      files.push_back({.error = error->second});
      continue;
    }
    if (!std::filesystem::exists(path)) {
      files.push_back({.error = ENOENT});
      continue;
    }
    const Bytes content = ReadFile(path);
    std::vector<uint32_t> own;
    const auto placed = LayOut(content, 0, &own);
    files.push_back({.file_size = content.size(), .extents = placed.size(), .checksums = own.size()});
    extents.insert(extents.end(), placed.begin(), placed.end());
    checksums.insert(checksums.end(), own.begin(), own.end());
  }
  const lease::ReadManyAnswer answer{extents.size(), checksums.size()};
  Reply reply{.devices = true};
  Append(reply.body, lease::BytesOf(answer), lease::Bytes(files), lease::Bytes(extents), lease::Bytes(checksums));
  return reply;
}

FakeLeaseMount::Reply FakeLeaseMount::CommitMany(Connection& connection, lease::BodyReader body) {
  lease::CommitManyRequest request;
  std::vector<lease::FileEntry> entries;
  Require(body.Take(&request) && body.Take(request.files, &entries));
  durable = request.durable != 0;
  const std::string folder = PathOf(request.token);
  if (folder.empty()) return {.error = EBADF};
  std::vector<std::string> names;
  for (uint64_t i = 0; i < request.files; ++i) {
    std::string_view name;
    Require(body.TakeText(&name));
    names.emplace_back(name);
  }
  uint64_t skip = 0;
  for (uint64_t i = 0; i < request.files; ++i) {
    std::vector<uint32_t> checksums;
    Require(body.Take(RoundUp(entries[i].size, kBlockSize) / kBlockSize, &checksums));
    Bytes bytes = Collect(connection.reserved, skip, checksums);
    if (bytes.size() < entries[i].size || !IsZero(std::span(bytes).subspan(entries[i].size))) {
      Reply reply{.error = EILSEQ};
      Append(reply.body, lease::BytesOf(lease::CommitManyAnswer{i}));
      return reply;
    }
    bytes.resize(entries[i].size);
    WriteFile(folder + "/" + names[i], bytes);
    Require(chmod((folder + "/" + names[i]).c_str(), request.mode) == 0);
    skip += checksums.size();
  }
  Require(body.empty());
  Reply reply;
  Append(reply.body, lease::BytesOf(lease::CommitManyAnswer{}));
  return reply;
}

Result<uid_t> MountUser(int /*descriptor*/) {
  const auto* mount = the_mount.load();
  return mount == nullptr ? geteuid() : mount->user;
}

}  // namespace weightfs::client

// On a read-only mount the kernel refuses it.
extern "C" int fsetxattr(int descriptor, const char* name, const void* value, size_t size, int flags) noexcept {
  auto* mount = weightfs::client::the_mount.load();
  if (std::string_view(name) == WEIGHTFS_CHANGE_ATTRIBUTE && mount != nullptr && mount->Has(descriptor)) {
    errno = mount->change_error;
    return mount->change_error == 0 ? 0 : -1;
  }
  return static_cast<int>(syscall(SYS_fsetxattr, descriptor, name, value, size, flags));
}

extern "C" int fstatfs(int descriptor, struct statfs* filesystem) noexcept {
  const int result = static_cast<int>(syscall(SYS_fstatfs, descriptor, filesystem));
  auto* mount = weightfs::client::the_mount.load();
  if (result == 0 && mount != nullptr && mount->Has(descriptor)) filesystem->f_type = FUSE_SUPER_MAGIC;
  return result;
}

extern "C" int ioctl(int descriptor, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  int result = 0;
  auto* mount = weightfs::client::the_mount.load();
  if (request == WEIGHTFS_IOC_LEASE && mount != nullptr && mount->Ask(descriptor, argument, &result)) {
    errno = result;
    return result == 0 ? 0 : -1;
  }
  if (request == WEIGHTFS_IOC_LEASE_REQUEST && mount != nullptr && mount->AskLease(descriptor, argument, &result)) {
    errno = result;
    return result == 0 ? 0 : -1;
  }
  if (request == WEIGHTFS_IOC_INFO && mount != nullptr && mount->Has(descriptor)) {
    static_cast<weightfs_info*>(argument)->version = WEIGHTFS_IOC_VERSION;
    return 0;
  }
  return static_cast<int>(syscall(SYS_ioctl, descriptor, request, argument));
}

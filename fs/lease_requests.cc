// SPDX-License-Identifier: Apache-2.0
#include "fs/lease_requests.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/log.h"
#include "common/out_of_memory.h"
#include "fs/caller.h"
#include "fs/filesystem.h"
#include "fs/lease_server.h"

namespace weightfs {
namespace {

static_assert(lease::kBlock == kBlockSize);

// The memory limit for all answers together. The largest lease fits exactly.
constexpr uint64_t kMostAnswers = kLargestLease.value * sizeof(uint32_t);

lease::Extent ToWire(const FileExtent& extent) {
  return {extent.first.value, extent.count.value, extent.start.value, extent.device.value, 0};
}

// The extents of a lease. If it has memory, that is device number `memory`, and has all blocks but a partial last one.
std::vector<lease::Extent> ToWire(const ReadLease& lease, size_t memory) {
  const uint64_t end = lease.memory ? lease.file_size / kBlockSize : 0;
  std::vector<lease::Extent> extents;
  for (const FileExtent& extent : lease.extents) {
    lease::Extent rest = ToWire(extent);
    if (const uint64_t count = std::min(rest.count, end - std::min(end, rest.file_block)); count > 0) {
      extents.push_back({rest.file_block, count, rest.file_block, static_cast<uint32_t>(memory), 1});
      rest = {rest.file_block + count, rest.count - count, rest.device_block + count, rest.device, 0};
    }
    if (rest.count > 0) extents.push_back(rest);
  }
  return extents;
}

// Returns the runs of a reservation as extents relative to its start.
std::vector<lease::Extent> ToWire(const BlockReservation& grant) {
  std::vector<lease::Extent> extents;
  uint64_t at = 0;
  for (const DeviceRun& run : grant.runs()) {
    extents.push_back({at, run.run.count.value, run.run.start.value, run.device.value, 0});
    at += run.run.count.value;
  }
  return extents;
}

std::vector<int> DescriptorsOf(const LeaseDevicesPtr& devices) {
  std::vector<int> descriptors;
  for (const UniqueFd& device : *devices) descriptors.push_back(device.get());
  return descriptors;
}

Error TooMuch() { return {ErrorCode::kFileTooBig, "the answer does not fit in a message; ask for less at once"}; }

Error Malformed() { return {ErrorCode::kInvalid, "the request's body is not what its kind says"}; }

// The rest of a body.
Result<std::vector<uint32_t>> TakeChecksums(lease::BodyReader body, uint64_t blocks) {
  std::vector<uint32_t> checksums;
  bool complete = false;
  RETURN_IF_ERROR(TryAllocate([&] { complete = body.Take(blocks, &checksums); }));
  if (!complete || !body.empty()) return Malformed();
  return checksums;
}

}  // namespace

Result<void> AnswerMemory::Add(BlockCount blocks) {
  if (blocks > kLargestLease) return TooMuch();
  const uint64_t bytes = blocks.value * sizeof(uint32_t);
  own_ += bytes;
  if (taken_.fetch_add(bytes) <= kMostAnswers - bytes) return {};
  return Error{ErrorCode::kAgain, "other programs are being answered with all the memory that there is for it"};
}

void LeaseRequests::Handle(const LeaseConnectionPtr& connection, lease::Kind kind, std::span<const std::byte> body,
                           const Sender& sender) {
  open_.Begin();
  Request request{connection, kind, sender};
  request.origin = {RequestKind::kLease, RequestOrigin::Clock::now(), 0, connection->process()};
  const auto handled = Dispatch(request, lease::BodyReader(body));
  if (!handled.has_value()) Fail(request, handled.error());
}

Result<void> LeaseRequests::Dispatch(Request& request, lease::BodyReader body) {
  switch (request.kind) {
    case lease::Kind::kRead: return Read(request, body);
    case lease::Kind::kMap:
    case lease::Kind::kMapLoaded: return Map(request, body);
    case lease::Kind::kReserve:
    case lease::Kind::kReserveInPlace: return Reserve(request, body);
    case lease::Kind::kCommit: return Commit(request, body);
    case lease::Kind::kReadMany: return ReadMany(request, body);
    case lease::Kind::kCommitMany: return CommitMany(request, body);
    case lease::Kind::kRelease:
      request.connection->TakeGrant();  // frees the blocks
      SendDone(request, {});
      return {};
    case lease::Kind::kIdentify: return Identify(request, body);
  }
  return Error{ErrorCode::kInvalid, fmt::format("no request has the kind {}", static_cast<uint32_t>(request.kind))};
}

void LeaseRequests::Send(const Request& request, int error, const Body& body, std::span<const int> descriptors) {
  uint64_t size = 0;
  for (const auto& piece : body) size += piece.size();
  if (size > lease::kMaximumBody) {
    request.connection->TakeGrant();  // frees the blocks
    return Fail(request, TooMuch());
  }
  lease::Header header;
  header.kind = static_cast<uint32_t>(request.kind);
  header.error = error;
  const auto sent = lease::Send(request.connection->socket(), header, body, descriptors);
  const bool gone = !sent.has_value() && sent.error().code == ErrorCode::kShutdown;
  if (!sent.has_value() && !gone) {
    spdlog::warn("uid {}: an answer about leases could not be sent: {}", request.connection->peer().uid,
                 ToString(sent.error()));
  }
  filesystem_.metrics().Record(request.origin, 0, error != 0);
  answered_(request.connection, sent.has_value());
  open_.End();
}

void LeaseRequests::Note(const Request& request, RequestKind kind, InodeId inode, uint64_t bytes) {
  RequestOrigin origin = request.origin;
  origin.kind = kind;
  origin.inode = inode.value;
  filesystem_.activity().RecordLease(origin, bytes);
}

void LeaseRequests::Fail(const Request& request, const Error& error) {
  const std::string text = ToString(error);
  const lease::CommitManyAnswer many{request.failed};
  Body body;
  if (request.kind == lease::Kind::kCommitMany) body.push_back(lease::BytesOf(many));
  body.push_back(std::as_bytes(std::span(text)));
  Send(request, request.error != 0 ? request.error : ToErrno(error.code), body);
}

void LeaseRequests::SendDone(const Request& request, const Result<void>& result) {
  if (!result.has_value()) return Fail(request, result.error());
  const lease::CommitManyAnswer many{};
  Body body;
  if (request.kind == lease::Kind::kCommitMany) body.push_back(lease::BytesOf(many));
  Send(request, 0, body);
}

// Answers a commit that the store has accepted: at once, or from the committer's thread when it is durable.
void LeaseRequests::SendWhenDurable(const Request& request, const InodePtr& inode, bool durable) {
  if (!durable) return SendDone(request, {});
  filesystem_.store().Sync(inode, [this, request](const Result<void>& result) { SendDone(request, result); });
}

// Opens new descriptors. Those of a writer carry its lock as long as it can still write through one of them.
Result<LeaseDevicesPtr> LeaseRequests::OpenDevices(bool write, uint64_t writer) {
  Store& store = filesystem_.store();
  if (store.device_count() > lease::kMaximumDevices) {
    return Error{ErrorCode::kNotSupported,
                 fmt::format("a store of more than {} devices has no leases", lease::kMaximumDevices)};
  }
  auto devices = std::make_shared<LeaseDevices>();
  for (size_t index = 0; index < store.device_count(); ++index) {
    ASSIGN_OR_RETURN(UniqueFd descriptor, store.OpenDevice(DeviceId{static_cast<uint16_t>(index)}, write, writer));
    devices->push_back(std::move(descriptor));
  }
  return LeaseDevicesPtr(std::move(devices));
}

void LeaseRequests::Stop() {
  open_.WaitForNone();
  MutexLock lock(mutex_);
  readers_ = nullptr;
}

// The ticket shows the rights that the process had when it asked for the ticket. It may have lost them since.
Result<void> LeaseRequests::CheckTrust(Request& request) {
  if (request.sender.checked) return {};
  const Credentials& user = request.sender.user;
  ASSIGN_OR_RETURN(const Caller now, CredentialsOf(user.uid, user.gid, request.sender.process));
  if (TrustsForLeases(filesystem_.options().direct, now)) return {};
  return Error{ErrorCode{EPERM}, "the mount's option direct= does not trust the sender"};
}

Result<LeaseDevicesPtr> LeaseRequests::WritersDevices(Request& request, uint64_t writer) {
  RETURN_IF_ERROR(CheckTrust(request));
  return OpenDevices(true, writer);
}

// All read leases share these descriptors.
Result<LeaseDevicesPtr> LeaseRequests::ReadersDevices(Request& request) {
  RETURN_IF_ERROR(CheckTrust(request));
  MutexLock lock(mutex_);
  if (readers_ == nullptr) {
    ASSIGN_OR_RETURN(readers_, OpenDevices(false, 0));
  }
  return readers_;
}

Result<LeaseTickets::Opened> LeaseRequests::OpenedBy(Request& request, const lease::Token& token) {
  LeaseTickets::Opened opened = tickets_.Find(token, request.connection->peer().uid);
  if (opened.file == nullptr && opened.directory == nullptr) {
    request.error = EBADF;
    return Error{ErrorCode::kInvalid, "the ticket is of nothing that this user has open"};
  }
  // The process has lived since it got the ticket, and the message was sent after that. So the ID of the sender was
  // its.
  if (opened.process == nullptr || !opened.process->Is(request.sender.process)) {
    return Error{ErrorCode::kAccess, "the ticket is another process's"};
  }
  request.connection->Bind(opened.process);
  request.who = request.connection->peer();
  request.who.capabilities = opened.capabilities;
  return opened;
}

Result<void> LeaseRequests::Identify(Request& request, lease::BodyReader body) {
  lease::IdentifyRequest asked;
  if (!body.Take(&asked) || !body.empty()) return Malformed();
  RETURN_IF_ERROR(OpenedBy(request, asked.token));
  const lease::Identity identity{request.connection->id()};
  Send(request, 0, {lease::BytesOf(identity)});
  return {};
}

Result<std::shared_ptr<FileHandle>> LeaseRequests::FileOf(Request& request, const lease::Token& token, bool write) {
  ASSIGN_OR_RETURN(const LeaseTickets::Opened opened, OpenedBy(request, token));
  if (opened.file == nullptr) return Error{ErrorCode::kIsDirectory, "the ticket is a directory's"};
  const int access = opened.file->flags & O_ACCMODE;
  if (write ? access != O_RDONLY : access != O_WRONLY) return opened.file;
  request.error = EBADF;
  return Error{ErrorCode::kInvalid, fmt::format("the file is not open for {}", write ? "writing" : "reading")};
}

Result<InodePtr> LeaseRequests::DirectoryOf(Request& request, const lease::Token& token, bool change) {
  ASSIGN_OR_RETURN(const LeaseTickets::Opened opened, OpenedBy(request, token));
  if (opened.directory == nullptr) return Error{ErrorCode::kNotDirectory, "the ticket is of no directory"};
  if (change && !opened.directory->TakeChange()) {
    return Error{ErrorCode::kReadOnly, "the program has not shown that its mount of the directory is not read-only"};
  }
  return opened.directory->inode;
}

Result<ReadLease> LeaseRequests::LeaseFile(const InodePtr& inode, uint64_t offset, uint64_t length,
                                           AnswerMemory* memory, bool from_memory) {
  RETURN_IF_ERROR(filesystem_.TakeMappedChanges(inode->id));
  const uint64_t size = SizeOf(*inode);
  const uint64_t before = offset % kBlockSize;  // in the first block
  RETURN_IF_ERROR(memory->Add(BlocksFor(ByteCount{before + std::min(length, size - std::min(size, offset))})));
  return filesystem_.store().files().LeaseRead(inode, offset, length, from_memory);
}

Result<void> LeaseRequests::Read(Request& request, lease::BodyReader body) {
  lease::ReadRequest asked;
  if (!body.Take(&asked) || !body.empty()) return Malformed();
  if (request.connection->held()) return Error{ErrorCode::kBusy, "the connection holds a lease already"};
  ASSIGN_OR_RETURN(const auto file, FileOf(request, asked.token, false));
  ASSIGN_OR_RETURN(const LeaseDevicesPtr devices, ReadersDevices(request));
  AnswerMemory memory(answers_);
  const bool from_memory = devices->size() < lease::kMaximumDevices;  // it takes the place of one
  ASSIGN_OR_RETURN(ReadLease lease, LeaseFile(file->inode, asked.offset, asked.length, &memory, from_memory));
  const std::vector<lease::Extent> extents = ToWire(lease, devices->size());
  std::vector<int> descriptors = DescriptorsOf(devices);
  if (lease.memory) descriptors.push_back(lease.memory.get());
  const lease::ReadAnswer answer{lease.file_size, lease.first.value, lease.count.value, extents.size()};
  const uint64_t from = std::min(asked.offset, lease.file_size);
  Note(request, RequestKind::kRead, file->inode->id, std::min(asked.length, lease.file_size - from));
  request.connection->Begin(std::move(lease.pin), {}, devices);
  Send(request, 0, {lease::BytesOf(answer), lease::Bytes(extents), lease::Bytes(lease.checksums)}, descriptors);
  return {};
}

Result<void> LeaseRequests::Map(Request& request, lease::BodyReader body) {
  lease::ReadRequest asked;
  if (!body.Take(&asked) || !body.empty()) return Malformed();
  ASSIGN_OR_RETURN(const auto file, FileOf(request, asked.token, false));
  RETURN_IF_ERROR(CheckTrust(request));
  RETURN_IF_ERROR(filesystem_.TakeMappedChanges(file->inode->id));
  FileIo& files = filesystem_.store().files();
  ASSIGN_OR_RETURN(const MapLease map, request.kind == lease::Kind::kMap
                                           ? files.LeaseMap(file->inode, asked.offset, asked.length)
                                           : files.LeaseLoaded(file->inode, asked.offset, asked.length));
  const lease::MapAnswer answer{map.file_size, map.content, map.end};
  Note(request, RequestKind::kRead, file->inode->id, map.end - std::min(asked.offset, map.end));
  const int descriptor = map.memory.get();
  Send(request, 0, {lease::BytesOf(answer)}, std::span(&descriptor, map.memory ? 1 : 0));
  return {};
}

// Leases one file of a directory for a user who has not opened it. Makes the checks that open(2) would make.
Result<ReadLease> LeaseRequests::LeaseNamed(const InodePtr& directory, const Credentials& peer, std::string_view name,
                                            AnswerMemory* memory) {
  Namespace& names = filesystem_.names();
  Store& store = filesystem_.store();
  while (true) {
    ASSIGN_OR_RETURN(const Attributes found, names.Lookup(directory->id, name));
    if (S_ISDIR(found.mode)) return ErrorCode::kIsDirectory;
    if (!S_ISREG(found.mode)) return ErrorCode::kInvalid;
    // Holds the inode like an open descriptor: a file that is replaced meanwhile is leased in its old state.
    auto opened = store.OpenFile(found.ino, false);
    if (!opened.has_value() && opened.error().code == ErrorCode::kStale) continue;  // look the name up again
    if (!opened.has_value()) return opened.error();
    const InodePtr inode = *opened;
    auto lease = [&]() -> Result<ReadLease> {
      RETURN_IF_ERROR(names.CheckAccess(inode, peer, Namespace::kMayRead));
      return LeaseFile(inode, 0, lease::kToEnd, memory);
    }();
    store.CloseFile(inode);
    return lease;
  }
}

Result<void> LeaseRequests::ReadMany(Request& request, lease::BodyReader body) {
  lease::ReadManyRequest asked;
  if (!body.Take(&asked) || asked.files > lease::kMaximumFiles) return Malformed();
  if (request.connection->held()) return Error{ErrorCode::kBusy, "the connection holds a lease already"};
  ASSIGN_OR_RETURN(const InodePtr directory, DirectoryOf(request, asked.token, false));
  const Credentials& peer = request.who;
  RETURN_IF_ERROR(filesystem_.names().CheckAccess(directory, peer, Namespace::kMaySearch));
  ASSIGN_OR_RETURN(const LeaseDevicesPtr devices, ReadersDevices(request));
  std::vector<lease::FileAnswer> files(asked.files);
  std::vector<lease::Extent> extents;
  std::vector<uint32_t> checksums;
  uint64_t bytes = 0;
  SpacePin pin;
  AnswerMemory memory(answers_);
  for (lease::FileAnswer& file : files) {
    std::string_view name;
    if (!body.TakeText(&name)) return Malformed();
    auto lease = LeaseNamed(directory, peer, name, &memory);
    // The program then works without a lease; nothing is wrong with the file.
    if (!lease.has_value() && lease.error().code == ErrorCode::kAgain) return lease.error();
    if (!lease.has_value()) {
      file.error = ToErrno(lease.error().code);
      continue;
    }
    file.file_size = lease->file_size;
    bytes += lease->file_size;
    file.extents = lease->extents.size();
    file.checksums = lease->checksums.size();
    for (const FileExtent& extent : lease->extents) extents.push_back(ToWire(extent));
    checksums.insert(checksums.end(), lease->checksums.begin(), lease->checksums.end());
    pin.Join(std::move(lease->pin));
    if (lease::Bytes(extents).size() + lease::Bytes(checksums).size() > lease::kMaximumBody) return TooMuch();
  }
  if (!body.empty()) return Malformed();
  const lease::ReadManyAnswer answer{extents.size(), checksums.size()};
  Note(request, RequestKind::kRead, directory->id, bytes);
  request.connection->Begin(std::move(pin), {}, devices);
  Send(request, 0, {lease::BytesOf(answer), lease::Bytes(files), lease::Bytes(extents), lease::Bytes(checksums)},
       DescriptorsOf(devices));
  return {};
}

Result<void> LeaseRequests::Reserve(Request& request, lease::BodyReader body) {
  lease::ReserveRequest asked;
  if (!body.Take(&asked) || !body.empty()) return Malformed();
  if (request.connection->held()) return Error{ErrorCode::kBusy, "the connection holds a lease already"};
  if (asked.file_offset % kBlockSize != 0 || asked.file_offset > kMaximumFileSize || asked.blocks == 0) {
    return Error{ErrorCode::kInvalid, "blocks are reserved from a block's first byte on, one at least"};
  }
  const bool in_place = request.kind == lease::Kind::kReserveInPlace;
  if (in_place && asked.file_offset != 0) return Error{ErrorCode::kInvalid, "a file is replaced from its first byte"};
  ASSIGN_OR_RETURN(const LeaseTickets::Opened opened, OpenedBy(request, asked.token));
  InodePtr inode;
  if (opened.directory != nullptr && !in_place) {
    ASSIGN_OR_RETURN(inode, DirectoryOf(request, asked.token, true));
    asked.file_offset = 0;
  } else {
    ASSIGN_OR_RETURN(const auto file, FileOf(request, asked.token, true));
    inode = file->inode;
  }
  if (filesystem_.read_only()) return ErrorCode::kReadOnly;
  const uint64_t writer = ++writers_;
  ASSIGN_OR_RETURN(const LeaseDevicesPtr devices, WritersDevices(request, writer));
  const BlockCount count{asked.blocks};
  const FileBlock first{asked.file_offset / kBlockSize};
  ASSIGN_OR_RETURN(BlockReservation grant, in_place ? ReserveInPlace(request, inode, count)
                                                    : filesystem_.store().files().Reserve(inode, first, count));
  const std::vector<lease::Extent> extents = ToWire(grant);
  const lease::ReserveAnswer answer{extents.size()};
  grant.BeginWrites(writer);
  request.connection->Begin({}, std::move(grant), nullptr);
  Send(request, 0, {lease::BytesOf(answer), lease::Bytes(extents)}, DescriptorsOf(devices));
  return {};
}

Result<BlockReservation> LeaseRequests::ReserveInPlace(const Request& request, const InodePtr& inode,
                                                       BlockCount count) {
  const CountedScope counted(filesystem_.commits());
  if (filesystem_.read_only()) return ErrorCode::kReadOnly;
  Store& store = filesystem_.store();
  SpaceReservation space;
  RETURN_IF_ERROR(filesystem_.ClearPrivileges(inode, !request.who.Can(CAP_FSETID)));  // as each attempt to write does
  RETURN_IF_ERROR(ChangeWithoutPages(inode, [&] { return store.files().DropContent(inode, count, &space); }));
  return store.files().ReserveDropped(inode, count, &space);
}

// Changes the content while the kernel has no page of the file. Otherwise it would write dirty pages over the new data,
// and all its pages would be stale.
template <typename Change>
Result<void> LeaseRequests::ChangeWithoutPages(const InodePtr& inode, const Change& change) {
  // Uses an open of its own, because the program may close and reopen the file meanwhile.
  PageCacheTracker& tracker = filesystem_.page_cache();
  const auto pages = tracker.Open(inode->id, OpenMode::kDirect, false).pages;
  InodePages::DirectWrite direct(*pages, kWholeFile, InodePages::DropPolicy::kAlways);
  Result<void> changed = filesystem_.DropPages(*inode, direct);
  if (changed.has_value()) changed = change();
  direct.End();
  tracker.Close(inode->id, OpenMode::kDirect, false);
  filesystem_.read_history().Forget(inode->id);
  filesystem_.DropAttributes(inode->id);
  return changed;
}

Result<void> LeaseRequests::Commit(Request& request, lease::BodyReader body) {
  BlockReservation grant = request.connection->TakeGrant();
  lease::CommitRequest asked;
  if (!body.Take(&asked)) return Malformed();
  const uint64_t blocks = asked.length / kBlockSize + (asked.length % kBlockSize != 0);
  ASSIGN_OR_RETURN(const std::vector<uint32_t> checksums, TakeChecksums(body, blocks));
  ASSIGN_OR_RETURN(const auto file, FileOf(request, asked.token, true));
  const CountedScope counted(filesystem_.commits());
  if (filesystem_.read_only()) return ErrorCode::kReadOnly;
  const InodePtr& inode = file->inode;
  DirectWrite write{.offset = asked.file_offset, .length = asked.length, .checksums = checksums};
  if (asked.new_size != lease::kToEnd) write.new_size = asked.new_size;
  RETURN_IF_ERROR(filesystem_.ClearPrivileges(inode, !request.who.Can(CAP_FSETID)));
  RETURN_IF_ERROR(ChangeWithoutPages(
      inode, [&] { return filesystem_.store().files().CommitDirect(inode, write, std::move(grant)); }));
  Note(request, RequestKind::kWrite, inode->id, asked.length);
  SendWhenDurable(request, inode, asked.durable != 0);
  return {};
}

Result<void> LeaseRequests::CommitMany(Request& request, lease::BodyReader body) {
  BlockReservation grant = request.connection->TakeGrant();
  lease::CommitManyRequest asked;
  std::vector<lease::FileEntry> entries;
  if (!body.Take(&asked) || asked.files > lease::kMaximumFiles || !body.Take(asked.files, &entries)) return Malformed();
  std::vector<DirectFile> files;
  uint64_t blocks = 0;
  for (const lease::FileEntry& entry : entries) {
    DirectFile& file = files.emplace_back(DirectFile{{}, entry.size});
    if (entry.size > kMaximumFileSize || !body.TakeText(&file.name)) return Malformed();
    blocks += BlocksFor(ByteCount{entry.size}).value;
  }
  ASSIGN_OR_RETURN(const std::vector<uint32_t> checksums, TakeChecksums(body, blocks));
  ASSIGN_OR_RETURN(const InodePtr directory, DirectoryOf(request, asked.token, true));
  const CountedScope counted(filesystem_.commits());
  if (filesystem_.read_only()) return ErrorCode::kReadOnly;
  size_t failed = files.size();
  std::optional<Filesystem::ReplacedEntries> of_kernel(std::in_place, filesystem_, directory->id);
  const auto published =
      filesystem_.store().CreateMany(directory, request.who, {asked.mode, asked.masked, asked.keep_modes != 0}, files,
                                     checksums, std::move(grant), &failed);
  if (failed < files.size()) request.failed = failed;
  if (!published.has_value()) return published.error();
  of_kernel->Drop(files, *published);
  of_kernel.reset();
  uint64_t bytes = 0;
  for (const lease::FileEntry& entry : entries) bytes += entry.size;
  Note(request, RequestKind::kWrite, directory->id, bytes);
  SendWhenDurable(request, directory, asked.durable != 0);
  return {};
}

}  // namespace weightfs

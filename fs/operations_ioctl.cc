// SPDX-License-Identifier: Apache-2.0
// The ioctls of lease/ioctl.h. Any other is answered with ENOTTY at once (Python sends one for each file that it
// opens).
#include <linux/capability.h>
#include <linux/fs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <type_traits>

#include "fs/caller.h"
#include "fs/lease_server.h"
#include "fs/operations.h"
#include "lease/ioctl.h"

namespace weightfs {
namespace {

static_assert(sizeof(weightfs_info) == 72);
static_assert(sizeof(weightfs_extent) == 32);
static_assert(sizeof(weightfs_extents) == 32 + WEIGHTFS_EXTENTS_MAX * sizeof(weightfs_extent));
static_assert(sizeof(weightfs_extent_list) == 32 + WEIGHTFS_EXTENT_LIST_MAX * sizeof(weightfs_extent));
static_assert(sizeof(weightfs_stats) == 8 + 25 * 8);
static_assert(sizeof(weightfs_lease_ticket) == 120);
static_assert(sizeof(weightfs_lease_request) == 64);
static_assert(sizeof(weightfs_metrics) == 9992);
static_assert(sizeof(weightfs_top) == 14440);
static_assert(sizeof(weightfs_scrub_damage) == 256);
static_assert(sizeof(weightfs_catalog_check) == 512);
static_assert(sizeof(weightfs_range_check) == 24);
static_assert(sizeof(weightfs_change_key) == 24);
static_assert(sizeof(weightfs_publication) == 320);
static_assert(sizeof(weightfs_scrub) == 136 + WEIGHTFS_SCRUB_DAMAGES_MAX * sizeof(weightfs_scrub_damage));

struct IoctlRequest {
  unsigned command = 0;
  InodeId ino;
  fuse_file_info* file = nullptr;
  bool directory = false;
  std::span<const std::byte> in;
  size_t out_size = 0;
};

// Copies the argument of an ioctl. Returns false if it is too short, or of another version.
template <typename T>
bool TakeArgument(const IoctlRequest& request, T* argument) {
  if (request.in.size() < sizeof(T)) return false;
  std::memcpy(argument, request.in.data(), sizeof(T));
  return argument->version == WEIGHTFS_IOC_VERSION;
}

void Info(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_info info{};
  info.version = WEIGHTFS_IOC_VERSION;
  info.format = filesystem.options().store_format;
  std::memcpy(info.store_id, filesystem.options().store_id.data(), sizeof(info.store_id));
  info.features = WEIGHTFS_FEATURE_EXTENTS | WEIGHTFS_FEATURE_STATS | WEIGHTFS_FEATURE_SCRUB;
  if (filesystem.leases() != nullptr) info.features |= WEIGHTFS_FEATURE_LEASES;
  if (filesystem.read_only()) info.features |= WEIGHTFS_FEATURE_READ_ONLY;
  if (!filesystem.store().verifies()) info.features |= WEIGHTFS_FEATURE_UNVERIFIED;
  info.inode = request.ino.value;
  reply.Ioctl(info);
}

template <typename List>
void ReplyExtents(Filesystem& filesystem, Reply reply, const std::shared_ptr<FileHandle>& file, List out) {
  constexpr size_t kMost = std::extent_v<decltype(out.extents)>;
  const auto found = filesystem.store().files().Extents(file->inode, FileBlock{out.start / kBlockSize}, kMost);
  if (!found.has_value()) return reply.Fail(found.error());
  std::memset(out.extents, 0, sizeof(out.extents));
  out.count = 0;
  for (const FileExtent& extent : *found) {
    if (out.count == kMost) break;
    weightfs_extent& entry = out.extents[out.count++];
    entry.first = ToBytes(extent.first).value;
    entry.length = ToBytes(extent.count).value;
    entry.physical = ToBytes(extent.start).value;
    entry.device = extent.device.value;
    entry.flags = extent.flags;
    out.start = entry.first + entry.length;
  }
  if constexpr (requires { out.pending; }) {
    out.pending = 0;
    if (out.count < kMost) {
      const auto pending = filesystem.store().files().WithoutExtent(file->inode);
      if (!pending.has_value()) return reply.Fail(pending.error());
      out.pending = ToBytes(*pending).value;
    }
  }
  reply.Ioctl(out);
}

template <typename List>
void Extents(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  List out{};
  if (request.directory || !TakeArgument(request, &out) || out.start > kMaximumFileSize) return reply.Errno(EINVAL);
  const auto file = HandleRegistry<FileHandle>::Get(request.file->fh);
  filesystem.RunOnReceiverOrPool(std::move(reply),
                      [&filesystem, file, out](Reply now) { ReplyExtents(filesystem, std::move(now), file, out); });
}

// Returns 0 if the caller is permitted, EPERM if not, and another errno if its rights cannot be read.
template <typename IsPermitted>
int ErrorUnless(const Reply& reply, const IsPermitted& is_permitted) {
  const auto caller = CallerOf(reply);
  if (!caller.has_value()) return ToErrno(caller.error().code);
  return is_permitted(*caller) ? 0 : EPERM;
}

// The result names the processes and files of all users, so only a user who may see them anyway may request it.
void Top(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  if (const int error = ErrorUnless(reply, RunsTheMount)) return reply.Errno(error);
  weightfs_top asked{};
  if (!TakeArgument(request, &asked)) return reply.Errno(EINVAL);
  reply.Ioctl(filesystem.activity().Look(asked.since, reply.caller().pid));
}

weightfs_scrub_findings FindingsOf(const ScrubFindings& found) {
  return {.blocks = found.blocks,
          .files = found.files,
          .catalog = found.catalog ? 1U : 0U,
          .log = found.replica ? 1U : 0U};
}

void AddDamages(const ScrubFindings& found, bool running, bool with_paths, weightfs_scrub* out) {
  for (const DamagedFile& file : found.listed) {
    if (out->count == WEIGHTFS_SCRUB_DAMAGES_MAX) return;
    weightfs_scrub_damage& damage = out->damages[out->count++];
    damage.inode = file.ino.value;
    damage.offset = file.offset;
    damage.blocks = file.blocks;
    damage.running = running ? 1 : 0;
    if (!with_paths || file.path.size() > sizeof(damage.path)) continue;
    damage.path_size = static_cast<uint32_t>(file.path.size());
    std::memcpy(damage.path, file.path.data(), file.path.size());
  }
}

void Scrub(Filesystem& filesystem, Reply reply) {
  const ScrubReport report = filesystem.store().Scrub();
  weightfs_scrub out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.running = report.state.running() ? 1 : 0;
  out.period_ms = static_cast<uint64_t>(report.period.count());
  out.next_ns = report.next_ns;
  if (report.state.running()) {
    out.started_ns = report.state.started_ns;
    out.remaining_ns = report.remaining_ns;
    out.checked_bytes = report.state.checked_bytes;
    out.total_bytes = report.state.total_bytes;
    out.rate = report.rate.value;
    out.found = FindingsOf(report.state.found);
  }
  out.last_started_ns = report.state.last_started_ns;
  out.last_completed_ns = report.state.last_completed_ns;
  out.last_found = FindingsOf(report.state.last_found);
  // The names of files may be secret from other users of the mount.
  const auto caller = CallerOf(reply);
  if (!caller.has_value()) return reply.Fail(caller.error());
  const bool with_paths = RunsTheMount(*caller) || caller->Can(CAP_SYS_ADMIN);
  if (report.state.running()) AddDamages(report.state.found, true, with_paths, &out);
  AddDamages(report.state.last_found, false, with_paths, &out);
  reply.Ioctl(out);
}

// Occupies the disk of the catalog, and names its files.
void CheckCatalog(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_catalog_check asked{};
  if (!TakeArgument(request, &asked)) return reply.Errno(EINVAL);
  if (const int error = ErrorUnless(reply, RunsTheMount)) return reply.Errno(error);
  filesystem.RunOnPool(std::move(reply), [&filesystem](Reply later) {
    if (!filesystem.BeginCatalogCheck()) return later.Errno(EBUSY);
    weightfs_catalog_check out{};
    out.version = WEIGHTFS_IOC_VERSION;
    bool stopped = false;
    const auto checked = filesystem.store().VerifyCatalog([&](ByteCount size) {
      out.bytes += size.value;
      stopped = filesystem.ending() || later.interrupted();
      return !stopped;
    });
    filesystem.EndCatalogCheck();
    if (stopped) return later.Errno(filesystem.ending() ? ESHUTDOWN : EINTR);
    if (!checked.has_value()) {
      if (checked.error().code != ErrorCode::kCorrupt) return later.Fail(checked.error());
      const std::string& damage = checked.error().what;
      out.damaged = 1;
      std::memcpy(out.damage, damage.data(), std::min(damage.size(), sizeof(out.damage) - 1));
    }
    later.Ioctl(out);
  });
}

void CheckRange(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_range_check asked{};
  if (request.directory || !TakeArgument(request, &asked) || asked.length > WEIGHTFS_RANGE_CHECK_MAX ||
      asked.offset > kMaximumFileSize) {
    return reply.Errno(EINVAL);
  }
  const auto file = HandleRegistry<FileHandle>::Get(request.file->fh);
  const int mode = file->flags & O_ACCMODE;
  if (mode != O_RDONLY && mode != O_RDWR) return reply.Errno(EBADF);
  filesystem.RunOnReceiverOrPool(std::move(reply), [&filesystem, file, asked](Reply now) {
    const auto answer = [file, kept = Share(std::move(now))](const Result<ReadView>& read) {
      if (!read.has_value()) return kept->Fail(read.error());
      kept->Ioctl();
    };
    filesystem.store().files().Read(file->inode, {asked.offset}, {asked.length}, /*stream=*/nullptr, answer,
                                    /*from_devices=*/true);
  });
}

// Dropping the cache makes others wait for devices, so only the owner and users who can write the file may do it.
// Returns an errno for others.
int MayDropCache(const Reply& reply, FileHandle& file) {
  if (file.writable()) return 0;
  uint32_t owner;
  {
    MutexLock lock(file.inode->mutex);
    owner = file.inode->attributes.uid;
  }
  if (reply.caller().uid == owner) return 0;
  return ErrorUnless(reply, [](const Caller& caller) { return caller.Can(CAP_FOWNER); });
}

void DropCache(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  if (request.directory) return reply.Errno(EINVAL);
  const auto file = HandleRegistry<FileHandle>::Get(request.file->fh);
  if (const int error = MayDropCache(reply, *file)) return reply.Errno(error);
  filesystem.RunOnPagePool(std::move(reply), [&filesystem, file](Reply later) {
    filesystem.store().files().DropCached(file->inode);
    filesystem.read_history().Forget(file->inode->id);
    const Result<void> dropped = filesystem.DropPages(file->inode->id, kWholeFile);
    if (!dropped.has_value()) return later.Fail(dropped.error());
    later.Ioctl();
  });
}

// Copies the argument of a lease ioctl into `argument` and issues the ticket of its caller.
template <typename T>
Result<lease::Token> IssueTicket(Filesystem& filesystem, const Reply& reply, const IoctlRequest& request, T* argument,
                                 pid_t* process) {
  LeaseServer* leases = filesystem.leases();
  if (leases == nullptr) return ErrorCode{EOPNOTSUPP};
  // Does not look up credentials of users who may not hold tickets.
  if (!MayHoldTickets(filesystem.options().direct, reply.caller().uid)) return ErrorCode{EPERM};
  ASSIGN_OR_RETURN(const Caller caller, CallerOf(reply));
  if (!TrustsForLeases(filesystem.options().direct, caller)) return ErrorCode{EPERM};
  if (!TakeArgument(request, argument)) return ErrorCode::kInvalid;
  *process = caller.process;
  LeaseTickets::Opened opened{nullptr, nullptr, caller.capabilities};
  auto identity = leases->processes().Of(caller.process);
  if (!identity.has_value() && identity.error().code == ErrorCode::kAgain) {
    filesystem.tickets().ForgetEnded();
    identity = leases->processes().Of(caller.process);
  }
  ASSIGN_OR_RETURN(opened.process, std::move(identity));
  if (request.directory) {
    opened.directory = HandleRegistry<DirectoryHandle>::Get(request.file->fh);
  } else {
    opened.file = HandleRegistry<FileHandle>::Get(request.file->fh);
  }
  return filesystem.tickets().Issue(opened, caller.uid);
}

void Ticket(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_lease_ticket out{};
  pid_t process = 0;
  const auto token = IssueTicket(filesystem, reply, request, &out, &process);
  if (!token.has_value()) return reply.Fail(token.error());
  const std::string& name = filesystem.leases()->name();
  out = {.version = WEIGHTFS_IOC_VERSION, .protocol = lease::kProtocolVersion};
  std::memcpy(out.token, token->data(), sizeof(out.token));
  std::memcpy(out.socket, name.data(), std::min(name.size(), sizeof(out.socket) - 1));
  reply.Ioctl(out);
}

void RequestLease(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_lease_request asked{};
  pid_t process = 0;
  const auto token = IssueTicket(filesystem, reply, request, &asked, &process);
  if (!token.has_value()) return reply.Fail(token.error());
  const auto kind = static_cast<lease::Kind>(asked.kind);
  const bool reserves = kind == lease::Kind::kReserve || kind == lease::Kind::kReserveInPlace;
  const bool maps = kind == lease::Kind::kMap;
  const bool reads = kind == lease::Kind::kRead || kind == lease::Kind::kMapLoaded;
  if (!reads && !reserves && !maps && kind != lease::Kind::kIdentify) return reply.Errno(EINVAL);
  std::memcpy(asked.token, token->data(), sizeof(asked.token));
  const AskedLease lease{kind, {*token, asked.offset, asked.length}, process};
  const auto ask = [&filesystem, asked, lease](Reply now, bool here) {
    const int error = filesystem.leases()->Ask(now.caller().uid, asked.connection, lease, here);
    if (error != 0) return now.Errno(error);
    now.Ioctl(asked);
  };
  // A reservation may wait for requests that the receivers serve, and so may a read of a file with mapped changes.
  // Loading into memory takes long.
  if (reserves || maps || filesystem.MayHaveMappedChanges(request.ino)) return ask(std::move(reply), false);
  filesystem.RunOnReceiverOrPool(std::move(reply), [ask](Reply now) { ask(std::move(now), true); });
}

void ChangeKey(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_change_key out{};
  if (!request.directory || !TakeArgument(request, &out)) return reply.Errno(request.directory ? EINVAL : ENOTDIR);
  const auto directory = HandleRegistry<DirectoryHandle>::Get(request.file->fh);
  const auto key = filesystem.tickets().Issue({nullptr, directory}, reply.caller().uid);
  if (!key.has_value()) return reply.Fail(key.error());
  std::memcpy(out.key, key->data(), sizeof(out.key));
  reply.Ioctl(out);
}

weightfs_publication ToIoctl(const PublicationRecord& publication) {
  weightfs_publication out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.number = publication.version;
  std::copy(publication.id.begin(), publication.id.end(), std::begin(out.id));
  out.time_ns = publication.time.seconds * 1'000'000'000 + publication.time.nanoseconds;
  out.files = publication.files;
  out.bytes = publication.bytes;
  return out;
}

weightfs_publication ToIoctl(const Error& error, const std::string& path) {
  weightfs_publication out{};
  out.version = WEIGHTFS_IOC_VERSION;
  out.error = static_cast<uint32_t>(error.error_number());
  std::memcpy(out.path, path.data(), std::min(path.size(), sizeof(out.path) - 1));
  return out;
}

// Between the calls of PublishTree that wait for other programs.
constexpr std::chrono::milliseconds kFirstPause{1}, kLongestPause{64};

struct PublishRequest {
  std::optional<UserLimit::Share> share;  // of Filesystem::publications, whose trees take much memory
  Namespace::PublishCall call;
};

void Publish(Filesystem& filesystem, Reply reply, const std::shared_ptr<PublishRequest>& request,
             std::chrono::milliseconds pause) {
  const CountedScope counted(filesystem.commits());
  if (filesystem.read_only()) return reply.Errno(EROFS);
  if (!request->share) request->share = filesystem.publications().Take(reply.caller().uid);
  const auto published = request->share ? filesystem.store().PublishTree(&request->call)
                                        : Result<PublicationRecord>(ErrorCode::kAgain);
  if (!published.has_value() && published.error().code == ErrorCode::kAgain && !filesystem.ending()) {
    filesystem.RunAfter(pause, std::move(reply), [&filesystem, request, pause](Reply later) {
      Publish(filesystem, std::move(later), request, std::min(pause * 2, kLongestPause));
    });
    return;
  }
  reply.Ioctl(published.has_value() ? ToIoctl(*published) : ToIoctl(published.error(), request->call.failed()));
}

// The close of a file that the kernel serves from hot memory may have returned without having arrived here.
constexpr std::chrono::milliseconds kLongestClose{1000};

void Unpublish(Filesystem& filesystem, Reply reply, InodeId ino, const Credentials& who,
               std::chrono::milliseconds pause) {
  const CountedScope counted(filesystem.commits());
  if (filesystem.read_only()) return reply.Errno(EROFS);
  std::string failed;
  const auto reverted = filesystem.store().UnpublishTree(ino, who, &failed);
  const ErrorCode code = reverted.has_value() ? ErrorCode{} : reverted.error().code;
  const bool waits = code == ErrorCode{ETXTBSY} || code == ErrorCode::kAgain;
  if (waits && pause < kLongestClose && !filesystem.ending()) {
    filesystem.RunAfter(pause, std::move(reply), [&filesystem, ino, who, pause](Reply later) {
      Unpublish(filesystem, std::move(later), ino, who, pause * 2);
    });
    return;
  }
  reply.Ioctl(reverted.has_value() ? ToIoctl(PublicationRecord()) : ToIoctl(reverted.error(), failed));
}

void Publication(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  weightfs_publication asked{};
  if (!request.directory || !TakeArgument(request, &asked)) return reply.Errno(request.directory ? EINVAL : ENOTDIR);
  if (request.command == WEIGHTFS_IOC_PUBLICATION) {
    const auto found = filesystem.names().GetPublication(request.ino);
    return found.has_value() ? reply.Ioctl(ToIoctl(*found)) : reply.Fail(found.error());
  }
  if (!HandleRegistry<DirectoryHandle>::Get(request.file->fh)->TakeChange()) return reply.Errno(EROFS);
  const auto who = CallerOf(reply);
  if (!who.has_value()) return reply.Fail(who.error());
  if (request.command == WEIGHTFS_IOC_UNPUBLISH) {
    filesystem.RunOnPool(std::move(reply), [&filesystem, ino = request.ino, who = *who](Reply later) {
      Unpublish(filesystem, std::move(later), ino, who, kFirstPause);
    });
    return;
  }
  const auto version = asked.number == 0 ? std::nullopt : std::optional<uint64_t>(asked.number);
  const std::shared_ptr<PublishRequest> asks(new PublishRequest{std::nullopt, {request.ino, *who, version}});
  filesystem.RunOnPool(std::move(reply), [&filesystem, asks](Reply later) {
    Publish(filesystem, std::move(later), asks, kFirstPause);
  });
}

// lsattr(1) shows immutable inodes by this.
void Flags(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  const auto inode = filesystem.store().inodes().Get(request.ino);
  if (!inode.has_value()) return reply.Fail(inode.error());
  MutexLock lock((*inode)->mutex);
  const uint32_t flags = (*inode)->IsImmutable() ? FS_IMMUTABLE_FL : 0;
  lock.Unlock();
  reply.Ioctl(flags);
}

void Hot(Filesystem& filesystem, Reply reply) {
  const HotStatistics hot = filesystem.store().Hot();
  reply.Ioctl(weightfs_hot{.version = WEIGHTFS_IOC_VERSION,
                           .limit = hot.limit,
                           .used = hot.used,
                           .mapped = hot.mapped,
                           .loaded = hot.loaded,
                           .evictions = hot.evictions});
}

void ReadOnly(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  uint32_t read_only = 0;
  if (request.in.size() < sizeof(read_only)) return reply.Errno(EINVAL);
  std::memcpy(&read_only, request.in.data(), sizeof(read_only));
  const auto may_change = [](const Caller& caller) { return caller.Can(CAP_SYS_ADMIN); };
  if (const int error = ErrorUnless(reply, may_change)) return reply.Errno(error);
  if (read_only == 0 && (filesystem.options().read_only || filesystem.store().read_only())) return reply.Errno(EROFS);
  filesystem.SetReadOnly(read_only != 0);
  if (read_only == 0) return reply.Ioctl();
  // A commit waits for pages, which the kernel may send to this thread.
  filesystem.RunOnPagePool(std::move(reply), [&filesystem](Reply later) {
    filesystem.commits().WaitForNone();
    filesystem.store().SyncAll([kept = Share(std::move(later))](Result<void> synced) {
      if (!synced.has_value()) return kept->Fail(synced.error());
      kept->Ioctl();
    });
  });
}

void Ioctl(Filesystem& filesystem, Reply reply, const IoctlRequest& request) {
  // The kernel takes the sizes from the command's number, so they can be too small only in a forged request.
  if (request.command == FS_IOC_GETFLAGS && request.out_size >= sizeof(uint32_t)) {
    return Flags(filesystem, std::move(reply), request);
  }
  const bool answers = (_IOC_DIR(request.command) & _IOC_READ) != 0;
  if (_IOC_TYPE(request.command) != WEIGHTFS_IOC_MAGIC || (answers && request.out_size < _IOC_SIZE(request.command))) {
    return reply.Errno(ENOTTY);
  }
  switch (request.command) {
    case WEIGHTFS_IOC_INFO: return Info(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_EXTENTS: return Extents<weightfs_extents>(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_EXTENT_LIST: return Extents<weightfs_extent_list>(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_STATS:
      return filesystem.RunOnReceiverOrPool(std::move(reply),
                                            [&filesystem](Reply now) { now.Ioctl(filesystem.Stats()); });
    case WEIGHTFS_IOC_HOT: return Hot(filesystem, std::move(reply));
    case WEIGHTFS_IOC_METRICS: return reply.Ioctl(filesystem.metrics().Snapshot());
    case WEIGHTFS_IOC_TOP: return Top(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_SCRUB: return Scrub(filesystem, std::move(reply));
    case WEIGHTFS_IOC_CHECK_RANGE: return CheckRange(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_CHECK_CATALOG: return CheckCatalog(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_LEASE: return Ticket(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_LEASE_REQUEST: return RequestLease(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_CHANGE_KEY: return ChangeKey(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_READ_ONLY: return ReadOnly(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_PUBLISH:
    case WEIGHTFS_IOC_UNPUBLISH:
    case WEIGHTFS_IOC_PUBLICATION: return Publication(filesystem, std::move(reply), request);
    case WEIGHTFS_IOC_DROP_CACHE: return DropCache(filesystem, std::move(reply), request);
    default: return reply.Errno(ENOTTY);
  }
}

}  // namespace

void AddIoctlOperations(fuse_lowlevel_ops& operations) {
  operations.ioctl = [](fuse_req_t request, fuse_ino_t ino, unsigned command, void*, fuse_file_info* file,
                        unsigned flags, const void* in, size_t in_size, size_t out_size) {
    Dispatch(request, Ioctl,
             IoctlRequest{.command = command,
                          .ino = InodeId{ino},
                          .file = file,
                          .directory = (flags & FUSE_IOCTL_DIR) != 0,
                          .in = {static_cast<const std::byte*>(in), in_size},
                          .out_size = out_size});
  };
}

}  // namespace weightfs

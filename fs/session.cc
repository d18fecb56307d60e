// SPDX-License-Identifier: Apache-2.0
#include "fs/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/shell_quote.h"
#include "common/start_thread.h"
#include "fs/init_reply.h"
#include "fs/mount_flags.h"
#include "fs/operations.h"

namespace weightfs {
namespace {

constexpr unsigned kMaxBackground = 128;  // read-ahead and asynchronous direct I/O in flight
constexpr unsigned kCongestionThreshold = 96;
constexpr size_t kInitBuffer = 64 * kKiB;  // the kernel requires at least 8 KiB for any request

// Interrupts a receiver's read; its handler does nothing. A real-time signal avoids conflicts with other uses.
int WakeSignal() { return SIGRTMIN + 7; }

// Installs a handler for the wake signal during the lifetime of this object, without SA_RESTART, so that reads return
// EINTR.
class WakeHandler {
 public:
  WakeHandler() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    sigaction(WakeSignal(), &action, &before_);
  }
  ~WakeHandler() { sigaction(WakeSignal(), &before_, nullptr); }
  WakeHandler(const WakeHandler&) = delete;
  WakeHandler& operator=(const WakeHandler&) = delete;

 private:
  struct sigaction before_ = {};
};

// Maps the kernel's flags to libfuse's capabilities.
struct Capability {
  uint64_t flag;
  uint64_t capability;
};
constexpr Capability kCapabilities[] = {
    {kernel_flag::kAsyncRead, FUSE_CAP_ASYNC_READ},
    {kernel_flag::kAtomicTruncate, FUSE_CAP_ATOMIC_O_TRUNC},
    {kernel_flag::kDontMask, FUSE_CAP_DONT_MASK},
    {kernel_flag::kAutoInvalidate, FUSE_CAP_AUTO_INVAL_DATA},
    {kernel_flag::kReaddirPlus, FUSE_CAP_READDIRPLUS},
    {kernel_flag::kAsyncDirectIo, FUSE_CAP_ASYNC_DIO},
    {kernel_flag::kParallelDirectoryOps, FUSE_CAP_PARALLEL_DIROPS},
    {kernel_flag::kPosixAcl, FUSE_CAP_POSIX_ACL},
    {kernel_flag::kCacheSymlinks, FUSE_CAP_CACHE_SYMLINKS},
#if !WEIGHTFS_COMPLETE_REPLIES
    {kernel_flag::kDirectIoAllowMmap, FUSE_CAP_DIRECT_IO_ALLOW_MMAP},
    {kernel_flag::kPassthrough, FUSE_CAP_PASSTHROUGH},
#endif
};

void LogLibfuse(enum fuse_log_level level, const char* format, va_list arguments) {
  char line[512];
  vsnprintf(line, sizeof(line), format, arguments);
  std::string_view text(line);
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  if (level <= FUSE_LOG_ERR) {
    spdlog::error("{}", text);
  } else if (level <= FUSE_LOG_WARNING) {
    spdlog::warn("{}", text);
  } else {
    spdlog::debug("{}", text);
  }
}

uint32_t OpcodeOf(const fuse_buf& request) {
  fuse_in_header header;
  std::memcpy(&header, request.mem, sizeof(header));
  return header.opcode;
}

// True when a request is about names or attributes, or writes little. A read may wait for a device, and large requests
// need the processors for copying.
bool IsQuick(const fuse_buf& request) { return OpcodeOf(request) != FUSE_READ && request.size < kLargeWrite; }

// Escapes commas and backslashes in an option's value.
std::string Escaped(const std::string& value) {
  std::string out;
  for (const char c : value) {
    if (c == ',' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::string LibfuseOptions(const MountOptions& options) {
  std::string text = "default_permissions,subtype=weightfs";
  text += ",fsname=" + Escaped(options.source.empty() ? "weightfs" : options.source);
  if (options.allow_other) text += ",allow_other";
  if (options.read_only) text += ",ro";
  for (const std::string& option : options.kernel_options) {
    if (LibfuseKnows(option)) text += "," + Escaped(option);
  }
  return text;
}

// Returns null when libfuse refuses the options. `operations` are copied.
fuse_session* NewSession(std::string options, const fuse_lowlevel_ops& operations, void* userdata) {
  char program[] = "weightfs", flag[] = "-o";
  char* arguments[] = {program, flag, options.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(3, arguments);
  fuse_session* const session = fuse_session_new(&args, &operations, sizeof(operations), userdata);
  fuse_opt_free_args(&args);
  return session;
}

// Reads the kernel's INIT. ENOENT: the request was interrupted before it was read.
Result<std::vector<std::byte>> ReadInit(int descriptor) {
  std::vector<std::byte> request(kInitBuffer);
  ssize_t size = 0;
  do {
    size = read(descriptor, request.data(), request.size());
  } while (size < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
  if (size <= 0) {
    return Error{ErrorCode::kIo, fmt::format("the kernel closed the FUSE connection at its start: {}",
                                             size < 0 ? std::strerror(errno) : "end of file")};
  }
  request.resize(static_cast<size_t>(size));
  return request;
}

// Closes libfuse's connection without libfuse, which would look for a mount and report that there is none. Other users
// of the filesystem get errors from now on.
bool CloseConnection(int descriptor) {
  const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  return nothing && dup3(nothing.get(), descriptor, O_CLOEXEC) >= 0;
}

}  // namespace

Session::Session(Filesystem& filesystem, const MountOptions& options)
    : filesystem_(filesystem), options_(options), spin_(options.spin) {
  sem_init(&stop_, 0, 0);
}

Result<std::unique_ptr<Session>> Session::Create(Filesystem& filesystem, const MountOptions& options) {
  std::unique_ptr<Session> session(new Session(filesystem, options));
  ASSIGN_OR_RETURN(session->mask_, ParseFeatureMask(options.without));

  fuse_lowlevel_ops& operations = session->operations_;
  operations.init = OnInit;
  AddNameOperations(operations);
  AddAttributeOperations(operations);
  AddFileOperations(operations);
  AddSpaceOperations(operations);
  AddDirectoryOperations(operations);
  AddIoctlOperations(operations);

  fuse_set_log_func(LogLibfuse);
  const std::string text = LibfuseOptions(options);
  session->session_ = NewSession(text, operations, &filesystem);
  if (session->session_ == nullptr)
    return Error{ErrorCode::kInvalid, fmt::format("libfuse refused the mount options '{}'", text)};
  filesystem.session = session->session_;
  return session;
}

Session::~Session() {
  Unmount();
  if (session_ != nullptr) fuse_session_destroy(session_);
  filesystem_.session = nullptr;
  filesystem_.buffers = nullptr;
  sem_destroy(&stop_);
}

Result<void> Session::Mount() {
  ASSIGN_OR_RETURN(const std::string path, PrepareMountpoint(options_.mountpoint, options_.allow_other));
  if (fuse_session_mount(session_, path.c_str()) != 0)
    return Error{ErrorCode::kPermission,
                 fmt::format("mounting on {} failed; the lines above say why{}", path,
                             geteuid() == 0 ? "" : " (this user needs write access to the directory)")};
  mount_path_ = path;
  if (const auto mount = TopMountOn(path)) identity_ = mount->filesystem();
  if (const auto added = AddMountFlags(path, options_.kernel_options); !added.has_value()) {
    fuse_session_unmount(session_);
    return added;
  }
  return UseDescriptor(fuse_session_fd(session_));
}

Result<void> Session::Attach(int descriptor) {
  attached_ = true;
  return UseDescriptor(descriptor);
}

ssize_t Session::OnRead(int descriptor, void* buffer, size_t size, void*) { return read(descriptor, buffer, size); }

ssize_t Session::OnWrite(int descriptor, iovec* iov, int count, void*) {
  ReplyCompletion::Apply(iov, count);
  return writev(descriptor, iov, count);
}

Result<void> Session::UseDescriptor(int descriptor) {
  descriptor_ = descriptor;
  if (!attached_ && !WEIGHTFS_COMPLETE_REPLIES) return {};
  fuse_custom_io io{};
  io.writev = OnWrite;
  io.read = OnRead;
  if (fuse_session_custom_io(session_, &io, descriptor) != 0)
    return Error{ErrorCode::kNoMemory, "libfuse did not take the connection to the kernel"};
  return {};
}

void Session::OnInit(void* userdata, fuse_conn_info* connection) {
  const UsedFeatures& used = static_cast<Filesystem*>(userdata)->features;
  uint64_t want = FUSE_CAP_IOCTL_DIR;
  for (const Capability& known : kCapabilities) {
    if ((used.flags & known.flag) != 0) want |= known.capability;
  }
#if WEIGHTFS_COMPLETE_REPLIES
  connection->want = static_cast<unsigned>(want) & connection->capable;
#else
  // First remove everything that libfuse requests by itself.
  fuse_unset_feature_flag(connection, ~uint64_t{0});
  fuse_set_feature_flag(connection, want & connection->capable_ext);
#endif
  connection->max_write = std::min<unsigned>(connection->max_write, used.max_write);
  connection->max_background = kMaxBackground;
  connection->congestion_threshold = kCongestionThreshold;
  connection->time_gran = 1;
}

Result<void> Session::Negotiate() {
  ASSIGN_OR_RETURN(auto bytes, ReadInit(descriptor_));
  ASSIGN_OR_RETURN(offer_, ReadOffer(bytes));
  if (offer_.major != 7 || offer_.minor < kMinimumMinor)
    return Error{ErrorCode::kNotSupported,
                 fmt::format("the kernel speaks FUSE {}.{}; 7.{} (Linux 5.4) is the oldest that weightfs serves",
                             offer_.major, offer_.minor, kMinimumMinor)};
  if (!filesystem_.store().Hot().on_tmpfs) mask_.flags |= kernel_flag::kPassthrough;
  MaskOffer(bytes, mask_);
  filesystem_.features = ChooseFeatures(offer_, mask_, MaxPagesLimit());
  filesystem_.store().UsePassthrough((filesystem_.features.flags & kernel_flag::kPassthrough) != 0);

  fuse_buf buffer{};
  buffer.mem = bytes.data();
  buffer.size = bytes.size();
#if WEIGHTFS_COMPLETE_REPLIES
  InitCompletion missing;
  // Add the newer flags, and PARALLEL_DIROPS, which libfuse 3.14 omits from its reply although it was requested.
  missing.flags = filesystem_.features.flags;
  missing.max_write = filesystem_.features.max_write;
  ReplyCompletion completion(missing);
  fuse_session_process_buf(session_, &buffer);
  const bool complete = completion.done();
#else
  fuse_session_process_buf(session_, &buffer);
  const bool complete = true;
#endif
  if (fuse_session_exited(session_) != 0 || !complete)
    return Error{ErrorCode::kNotSupported, "libfuse and the kernel did not agree on a protocol"};

  ReceiveBuffers::Options memory;
  memory.payload = ByteCount{filesystem_.features.max_write};
  memory.shared_memory = options_.write_buffers;
  memory.receivers = options_.threads;
  ASSIGN_OR_RETURN(buffers_, ReceiveBuffers::Create(memory));
  filesystem_.buffers = buffers_.get();
  return {};
}

// Counts the ends of files for statfs: the last close or forget of a deleted file frees its space.
void Session::Process(fuse_buf& request) {
  const uint32_t opcode = OpcodeOf(request);
  const bool ends = opcode == FUSE_FORGET || opcode == FUSE_BATCH_FORGET || opcode == FUSE_RELEASE;
  if (ends) filesystem_.ends().Begin();
  fuse_session_process_buf(session_, &request);
  if (ends) filesystem_.ends().End();
}

bool Session::ReceiveOne(ReceiveBuffer& buffer, CloseTracker::Clock::time_point* received) {
  const std::span<std::byte> memory = buffer.Prepare();
  spin_.Wait(descriptor_);
  const ssize_t size = read(descriptor_, memory.data(), memory.size());
  *received = CloseTracker::Clock::now();
  if (size < 0) {
    // ENOENT: the request was interrupted before it was read. ENODEV: unmounted.
    if (errno == EINTR || errno == EAGAIN || errno == ENOENT) return true;
    MutexLock lock(mutex_);
    if (errno == ENODEV) {
      // A receiver that was busy hears of it later.
      if (!std::exchange(unmounted_, true)) received_ = *received;
    } else {
      failure_ = Error{ErrorCode::kIo, fmt::format("receiving from the kernel failed: {}", std::strerror(errno))};
    }
    return false;
  }
  if (static_cast<size_t>(size) < sizeof(fuse_in_header)) {
    MutexLock lock(mutex_);
    if (size > 0) failure_ = Error{ErrorCode::kIo, fmt::format("the kernel sent a request of {} bytes", size)};
    return false;
  }
  fuse_buf request{};
  request.mem = memory.data();
  request.size = static_cast<size_t>(size);
  CurrentRequest() = OriginOf(request.mem);
  const auto begin = CurrentRequest().begin;
  spin_.Arrived(IsQuick(request), begin);
  Process(request);
  // Another thread answers a request that waits.
  spin_.Finished(LastRecord() > begin ? LastRecord() : RequestOrigin::Clock::now());
  return true;
}

void Session::Receive() {
  CloseTracker::Clock::time_point received;  // a receiver that is busy at the end receives no more
  {
    ReceiveBuffer buffer(*buffers_);
    while (!stopping_.load(std::memory_order_relaxed) && ReceiveOne(buffer, &received)) {
    }
  }
  MutexLock lock(mutex_);
  if (!unmounted_) received_ = std::max(received_, received);
  if (--receiving_ == 0) Stop();
  left_.notify_all();
}

void Session::EndReceivers(std::vector<std::thread>& receivers) {
  constexpr auto kRetry = std::chrono::milliseconds(20);
  stopping_.store(true);
  {
    // A signal that arrives between a receiver's check of `stopping_` and its read is lost, so send it repeatedly.
    MutexLock lock(mutex_);
    while (receiving_ != 0) {
      for (std::thread& receiver : receivers) pthread_kill(receiver.native_handle(), WakeSignal());
      left_.wait_for(lock.native(), kRetry);
    }
  }
  for (std::thread& receiver : receivers) receiver.join();
}

bool Session::StartReceivers(std::vector<std::thread>* receivers) {
  MutexLock lock(mutex_);
  while (receivers->size() < options_.threads) {
    auto thread = StartThread("weightfs-recv", [this] { Receive(); }, WakeSignal());
    if (!thread) {
      failure_ = thread.error();
      Stop();
      return false;
    }
    receivers->push_back(*std::move(thread));
    ++receiving_;
  }
  return true;
}

Result<void> Session::Run() {
  WakeHandler wake;
  std::vector<std::thread> receivers;
  if (StartReceivers(&receivers) && options_.ready) options_.ready();

  while (sem_wait(&stop_) != 0) {  // interrupted by a signal
  }
  bool all_left = false;
  {
    MutexLock lock(mutex_);
    all_left = receiving_ == 0;
  }
  if (options_.ended) options_.ended();
  filesystem_.EndLeases();
  if (!all_left) {
    filesystem_.TakeAllMappedChanges();
    filesystem_.EndDropping();
  }
  EndReceivers(receivers);
  MutexLock lock(mutex_);
  const auto received = received_;
  lock.Unlock();
  filesystem_.Finish(received);
  Unmount();
  lock.Lock();
  if (failure_.has_value()) return *failure_;
  return {};
}

// Fails only when the counter is full, and then nobody waits anyway.
void Session::Stop() { sem_post(&stop_); }

std::optional<MountEntry> Session::FindOwnMount() const {
  if (mount_path_.empty()) return std::nullopt;
  std::optional<MountEntry> mount = TopMountOn(mount_path_);
  if (mount.has_value() && !identity_.Has(*mount)) return std::nullopt;
  return mount;
}

void Session::Unmount() {
  if (std::exchange(ended_, true) || session_ == nullptr || descriptor_ < 0 || attached_) return;
  if (!FindOwnMount().has_value() && CloseConnection(descriptor_)) return;
  fuse_session_unmount(session_);
  // A connection that was aborted through /sys, or that ended with an error, leaves a dead mount.
  if (FindOwnMount().has_value() && UnmountDirectory(mount_path_, UnmountMode::kLazy) != 0)
    spdlog::error("{} could not be unmounted; use: fusermount3 -u {}", mount_path_, ShellQuote(mount_path_));
}

Result<KernelOffer> ProbeOffer(const std::string& directory) {
  ASSIGN_OR_RETURN(const std::string path, PrepareMountpoint(directory, false));
  fuse_session* session = NewSession("subtype=weightfs,fsname=probe", {}, nullptr);
  if (session == nullptr) return Error{ErrorCode::kInvalid, "libfuse refused to start a session"};
  if (fuse_session_mount(session, path.c_str()) != 0) {
    fuse_session_destroy(session);
    return Error{ErrorCode::kPermission, fmt::format("mounting on {} for a probe failed", path)};
  }
  const auto request = ReadInit(fuse_session_fd(session));
  const Result<KernelOffer> offer = request.has_value() ? ReadOffer(*request) : request.error();
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  return offer;
}

}  // namespace weightfs

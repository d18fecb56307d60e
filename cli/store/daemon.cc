// SPDX-License-Identifier: Apache-2.0
#include "cli/store/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "cli/output.h"
#include "common/log.h"
#include "common/start_thread.h"
#include "common/system_calls.h"
#include "store/volume/store_directory.h"

namespace weightfs::cli {
namespace {

// The child's whole message: one byte '+' for success, or '-' followed by a line.
constexpr char kReady = '+', kFailed = '-';

std::string ReadAll(int descriptor) {
  std::string text;
  char piece[512];
  for (;;) {
    const ssize_t got = RepeatInterrupted([&] { return read(descriptor, piece, sizeof(piece)); });
    if (got <= 0) return text;
    text.append(piece, static_cast<size_t>(got));
  }
}

[[noreturn]] void WaitForChild(int descriptor, pid_t child) {
  const std::string message = ReadAll(descriptor);
  if (!message.empty() && message[0] == kReady) std::_Exit(kSuccess);
  if (!message.empty() && message[0] == kFailed) {
    Print(stderr, "weightfs: {}\n", message.substr(1));
  } else {
    int status = 0;
    RepeatInterrupted([&] { return waitpid(child, &status, 0); });
    Print(stderr, "weightfs: the mount process ended before it was ready ({}); run it with -f for more messages\n",
          WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "without a message");
  }
  std::fflush(stderr);
  std::_Exit(kFailure);
}

bool PointAt(int descriptor, const char* path, int flags) {
  UniqueFd file(open(path, flags));
  if (!file || dup2(file.get(), descriptor) < 0) return false;
  if (file.get() == descriptor) file.Release();
  return true;
}

bool IsSameFile(const struct stat& one, int descriptor) {
  struct stat other = {};
  return fstat(descriptor, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

// Each request extends the timeout of the service from now on. The interval leaves time for a busy machine.
constexpr std::chrono::microseconds kExtension = std::chrono::minutes(1);
constexpr std::chrono::milliseconds kInterval = std::chrono::seconds(15);

void SendTo(int socket, std::string_view message) {
  RepeatInterrupted([&] { return send(socket, message.data(), message.size(), MSG_NOSIGNAL); });
}

// Asks for more time in every interval, until the eventfd `wake` is readable.
void KeepExtending(int socket, int wake) {
  pollfd woken{.fd = wake, .events = POLLIN, .revents = 0};
  do {
    SendTo(socket, fmt::format("EXTEND_TIMEOUT_USEC={}", kExtension.count()));
  } while (poll(&woken, 1, static_cast<int>(kInterval.count())) <= 0);
}

}  // namespace

void StartReport::Send(const std::string& text) {
  const UniqueFd descriptor = std::move(descriptor_);
  // If the parent was killed meanwhile, nothing can receive the result; the mount continues.
  [[maybe_unused]] const ssize_t sent = write(descriptor.get(), text.data(), text.size());
}

void StartReport::Ready(int log) {
  if (!descriptor_) return;
  Send({kReady});
  PointAt(STDOUT_FILENO, "/dev/null", O_WRONLY);
  if (log < 0 || dup2(log, STDERR_FILENO) < 0) PointAt(STDERR_FILENO, "/dev/null", O_WRONLY);
}

bool StartReport::Failed(const std::string& line) {
  if (!descriptor_) return false;
  Send(kFailed + line);
  return true;
}

Result<UniqueFd> GoToBackground() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", "cannot be created");
  UniqueFd result(ends[0]);
  UniqueFd report(ends[1]);
  const pid_t child = fork();
  if (child < 0) return SystemError("fork", "cannot start the mount process");
  if (child > 0) {
    report.Close();
    WaitForChild(result.get(), child);
  }
  result.Close();
  setsid();
  PointAt(STDIN_FILENO, "/dev/null", O_RDONLY);
  // Leave the working directory, which would keep its filesystem busy.
  if (chdir("/") != 0) return SystemError("/", "chdir");
  return report;
}

Result<DaemonLog> DaemonLog::Start(const std::string& store) {
  DaemonLog log;
  auto file = OpenLog(store);
  if (!file.has_value()) {
    // A symbolic link or another user's file is refused. A full or read-only filesystem must not prevent the mount.
    if (file.error().code != ErrorCode::kNoSpace && file.error().code != ErrorCode::kReadOnly) return file.error();
    spdlog::warn("{}; this mount has no log", file.error().what);
    return log;
  }
  log.store_ = store;
  log.file_ = UniqueFd(fcntl(file->get(), F_DUPFD_CLOEXEC, 0));
  LogToFile(*std::move(file));
  return log;
}

void DaemonLog::Reopen() const {
  struct stat old = {};
  if (!file_ || fstat(file_.get(), &old) != 0) return;
  auto file = OpenLog(store_);
  if (!file.has_value()) {
    spdlog::error("{}; the log continues in the old file", ToString(file.error()));
    return;
  }
  // In this order: a StartReport that points standard error at the descriptor meanwhile gets the new file.
  dup3(file->get(), file_.get(), O_CLOEXEC);
  if (IsSameFile(old, STDERR_FILENO)) dup2(file->get(), STDERR_FILENO);
  LogToFile(*std::move(file));
  spdlog::info("the log file was opened again");
}

Result<std::unique_ptr<ServiceNotifier>> ServiceNotifier::Connect(std::string_view address) {
  std::unique_ptr<ServiceNotifier> notifier(new ServiceNotifier);
  if (address.empty()) return notifier;
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if ((address[0] != '/' && address[0] != '@') || address.size() >= sizeof(name.sun_path)) {
    return MakeError(ErrorCode::kInvalid, "NOTIFY_SOCKET={}: neither a path nor an abstract name", address);
  }
  std::ranges::copy(address, name.sun_path);
  if (address[0] == '@') name.sun_path[0] = '\0';
  // An abstract name ends with its length, and a path with a zero byte.
  const size_t length = offsetof(sockaddr_un, sun_path) + address.size() + (address[0] == '@' ? 0 : 1);
  notifier->socket_ = UniqueFd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!notifier->socket_ ||
      connect(notifier->socket_.get(), reinterpret_cast<const sockaddr*>(&name), static_cast<socklen_t>(length)) != 0) {
    return MakeError(ErrorCode::kIo, "NOTIFY_SOCKET={}: {}", address, std::strerror(errno));
  }
  return notifier;
}

ServiceNotifier::~ServiceNotifier() { EndExtension(); }

void ServiceNotifier::Extend() {
  if (!socket_ || extender_.joinable()) return;
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!wake_) return;
  auto thread = StartThread("weightfs-notify", [this] { KeepExtending(socket_.get(), wake_.get()); });
  if (thread.has_value()) extender_ = *std::move(thread);
}

void ServiceNotifier::EndExtension() {
  if (!extender_.joinable()) return;
  const uint64_t one = 1;
  // Writing 1 to an eventfd fails only when its counter is full.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  extender_.join();
}

void ServiceNotifier::Ready(std::string_view status) {
  EndExtension();
  Send(fmt::format("READY=1\nSTATUS={}", status));
}

void ServiceNotifier::Stopping(std::string_view status) {
  if (extender_.joinable()) return;
  Send(fmt::format("STOPPING=1\nSTATUS={}", status));
  Extend();
}

void ServiceNotifier::Send(std::string_view message) const {
  if (socket_) SendTo(socket_.get(), message);
}

}  // namespace weightfs::cli

// weightfs umount: unmounts, and returns when everything is on the device.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cli/commands.h"
#include "cli/mount_table.h"
#include "cli/output.h"
#include "cli/unmount.h"
#include "common/descriptor.h"
#include "store/store_directory.h"

namespace weightfs::cli {
namespace {

// Watches the process that serves a store until it has let go of it.
class ServerWatch {
 public:
  // Before the unmount: afterwards the process may be gone, and another one under its number.
  explicit ServerWatch(const std::string& store)
      : lock_(open((store + "/" + kLockName).c_str(), O_RDONLY | O_CLOEXEC)),
        pid_(HolderPid()),
        process_(pid_ > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)) : -1) {}

  // Returns when the store is closed; an error when it was not closed well. The lock says when: it is the last thing
  // the server gives back. Its process says it sooner where it ends at once.
  Result<void> Wait() {
    if (lock_.get() < 0) {
      return Error{ErrorCode::kAccess, "unmounted, but the store cannot be looked at (is it gone, or not yours?): whether "
                                       "all is on the device is not known; run 'weightfs fsck'"};
    }
    constexpr int kPollMs = 20;
    while (flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        return Error{ErrorCode::kIo, fmt::format("{}: {}", kLockName, std::strerror(errno))};
      }
      // Somebody else has mounted the store already: then ours is closed.
      if (const long holder = HolderPid(); holder > 0 && pid_ > 0 && holder != pid_) return {};
      pollfd ended{process_.get(), POLLIN, 0};
      poll(&ended, process_.get() >= 0 ? 1 : 0, kPollMs);
    }
    return Verdict();
  }

  // Whether the store is not served any more. Takes the lock for a moment, shared.
  bool IsGone() const {
    if (lock_.get() < 0 || flock(lock_.get(), LOCK_SH | LOCK_NB) != 0) return false;
    flock(lock_.get(), LOCK_UN);
    return true;
  }

 private:
  std::string Note() const {
    char text[512] = {};
    const ssize_t got = lock_.get() < 0 ? 0 : pread(lock_.get(), text, sizeof(text) - 1, 0);
    std::string note(text, static_cast<size_t>(got > 0 ? got : 0));
    return note.substr(0, note.find('\n'));
  }
  long HolderPid() const { return std::strtol(Note().c_str(), nullptr, 10); }

  // What the server left in the lock file: nothing when all went well, its number when it never got there.
  Result<void> Verdict() const {
    const std::string note = Note();
    if (note.empty()) return {};
    if (note.starts_with("error: ")) {
      return Error{ErrorCode::kIo, fmt::format("unmounted, but not everything reached the device: {}; run 'weightfs "
                                               "fsck'",
                                               note.substr(7))};
    }
    return Error{ErrorCode::kIo, "unmounted, but its process ended without closing the store; what was not synced may "
                                 "be lost, the next mount recovers the rest"};
  }

  const Descriptor lock_;
  const long pid_;
  const Descriptor process_;
};

int ReportFailure(const MountEntry& mount, int error) {
  if (error == ENOENT) {
    return Fail({ErrorCode::kNotFound, "fusermount3 is not installed; install the package fuse3, or unmount as root"});
  }
  if (error != EBUSY) {
    return Fail({ErrorCode::kIo, fmt::format("{}: cannot be unmounted: {}", mount.directory, std::strerror(error))});
  }
  const auto users = FindMountUsers(mount);
  if (users.empty()) {
    return Fail({ErrorCode::kBusy, fmt::format("{}: cannot be unmounted: it is in use, or not yours; {}",
                                               mount.directory,
                                               geteuid() == 0 ? "another mount may lie below it (findmnt -R)"
                                                              : "run it as root to see who uses it")});
  }
  Fail({ErrorCode::kBusy, fmt::format("{}: in use by {} process{}; end {} and unmount again", mount.directory,
                                      users.size(), users.size() == 1 ? "" : "es", users.size() == 1 ? "it" : "them")});
  Table table({{"pid", true}, {"command"}, {"uses"}});
  for (const MountUser& user : users) table.Add({fmt::format("{}", user.pid), user.command, user.reason});
  fmt::print(stderr, "{}", table.ToString());
  return kFailure;
}

int Run(const std::string& directory) {
  const auto mount = FindMount(directory);
  if (!mount.has_value()) return Fail(mount.error());
  ServerWatch server(mount->store);
  // Called from inside the mount, this process must not be what keeps it busy.
  if (chdir("/") != 0) return Fail({ErrorCode::kIo, fmt::format("chdir /: {}", std::strerror(errno))});
  const bool was_gone = server.IsGone();
  if (const int error = UnmountDirectory(mount->directory, /*detach=*/false); error != 0) return ReportFailure(*mount, error);
  if (was_gone) {
    fmt::print(stderr, "weightfs: {}: its process had ended before; the next mount recovers the store\n", mount->store);
    return kSuccess;
  }
  if (const auto closed = server.Wait(); !closed.has_value()) {
    return Fail({closed.error().code, fmt::format("{}: {}", mount->store, Line(closed.error()))});
  }
  return kSuccess;
}

}  // namespace

void AddUmount(CLI::App& app, int* exit_code) {
  auto* command = app.add_subcommand("umount", "Unmount; returns when everything is on the device");
  auto directory = std::make_shared<std::string>();
  command->add_option("DIR", *directory, "Where the store is mounted")->type_name("")->required();
  command->footer(
      "While a program uses the mount it stays, and the programs are listed.\n\n"
      "Example:\n"
      "  weightfs umount /mnt/tensors");
  command->callback([directory, exit_code] { *exit_code = Run(*directory); });
}

}  // namespace weightfs::cli

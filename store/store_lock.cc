#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "store/store_directory.h"

namespace weightfs {
namespace {

// "process 4711 (weightfs)" as the lock file and /proc tell, or what is known of it.
std::string DescribeHolder(int descriptor) {
  char text[32] = {};
  const ssize_t got = pread(descriptor, text, sizeof(text) - 1, 0);
  const long pid = got > 0 ? std::strtol(text, nullptr, 10) : 0;
  if (pid <= 0) return "another process";
  std::string name;
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  if (std::getline(comm, name)) return fmt::format("process {} ({})", pid, name);
  return fmt::format("process {}", pid);
}

// Advisory contents: losing them costs a name in a message, so a failure is no error.
void Rewrite(int descriptor, const std::string& text) {
  if (ftruncate(descriptor, 0) != 0) return;
  if (pwrite(descriptor, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    [[maybe_unused]] const int emptied = ftruncate(descriptor, 0);
  }
}

// A killed process closes its descriptors in the order of their numbers, and the lock must be the last that it lets go:
// who gets it finds the devices and the catalog free. Below the usual limit of 1,024.
int MoveUp(int descriptor) {
  const int high = fcntl(descriptor, F_DUPFD_CLOEXEC, 1000);
  if (high < 0) return descriptor;
  close(descriptor);
  return high;
}

}  // namespace

Result<StoreLock> StoreLock::Acquire(const std::string& directory) {
  const std::string path = directory + "/" + kLockName;
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  // A store on a read-only filesystem can be locked as well, without a name in the file.
  if (descriptor < 0 && errno == EROFS) descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    const int error = errno;
    const auto code = error == EACCES || error == EPERM ? ErrorCode::kAccess
                      : error == ENOENT                 ? ErrorCode::kNotFound
                                                        : ErrorCode::kIo;
    return Error{code, fmt::format("{}: cannot be opened: {}; check the store's directory and its owner", path,
                                   std::strerror(error))};
  }
  descriptor = MoveUp(descriptor);
  StoreLock lock(descriptor);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return Error{ErrorCode::kIo, fmt::format("{}: cannot be locked: {}", path, std::strerror(errno))};
    }
    return Error{ErrorCode::kBusy, fmt::format("{}: the store is in use by {}; unmount it first", directory,
                                               DescribeHolder(descriptor))};
  }
  return lock;
}

StoreLock::~StoreLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

void StoreLock::Claim() {
  if (descriptor_ >= 0) Rewrite(descriptor_, fmt::format("{}\n", getpid()));
}

void StoreLock::Clear(const std::string& note) {
  if (descriptor_ >= 0) Rewrite(descriptor_, note.empty() ? note : "error: " + note + "\n");
}

}  // namespace weightfs

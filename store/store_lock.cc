#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/guarded_directory.h"
#include "common/printable.h"
#include "store/store_directory.h"

namespace weightfs {
namespace {

// "process 4711 (weightfs)" as the lock file and /proc tell, or what is known of it.
std::string DescribeHolder(int descriptor) {
  const pid_t pid = StoreLock::HolderOf(descriptor);
  if (pid <= 0) return "another process";
  std::string name;
  std::ifstream comm(fmt::format("/proc/{}/comm", pid));
  if (std::getline(comm, name)) return fmt::format("process {} ({})", pid, Printable(name));
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
Descriptor MoveUp(Descriptor descriptor) {
  Descriptor high(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 1000));
  return high ? std::move(high) : std::move(descriptor);
}

Error OpenError(const GuardedDirectory& store, const Error& error) {
  if (error.code == ErrorCode::kPermission) return error;   // says all
  return {error.code, fmt::format("{}; check the directory of the store, its owner and its free space",
                                  error.what.empty() ? store.PathOf(kLockName) : error.what)};
}

}  // namespace

Result<StoreLock> StoreLock::Acquire(const std::string& directory) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  auto file = store.OpenFile(kLockName, O_RDWR | O_CREAT);
  // A store on a read-only filesystem can be locked as well, without a name in the file.
  if (!file.has_value() && file.error().code == ErrorCode::kReadOnly) file = store.OpenFile(kLockName, O_RDONLY);
  if (!file.has_value()) return OpenError(store, file.error());
  StoreLock lock(MoveUp(std::move(*file)));
  const int descriptor = lock.file_.get();
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return Error{ErrorCode::kIo, fmt::format("{}: cannot be locked: {}", store.PathOf(kLockName),
                                               std::strerror(errno))};
    }
    return Error{ErrorCode::kBusy, fmt::format("{}: the store is in use by {}; unmount it first", directory,
                                               DescribeHolder(descriptor))};
  }
  return lock;
}

Result<Descriptor> StoreLock::OpenToWatch(const std::string& directory) {
  ASSIGN_OR_RETURN(const GuardedDirectory store, GuardedDirectory::Open(directory));
  return store.OpenFile(kLockName, O_RDONLY);
}

pid_t StoreLock::HolderOf(int descriptor) {
  char text[32] = {};
  const ssize_t got = pread(descriptor, text, sizeof(text) - 1, 0);
  return got > 0 ? static_cast<pid_t>(std::strtol(text, nullptr, 10)) : 0;
}

void StoreLock::Claim() {
  if (file_) Rewrite(file_.get(), fmt::format("{}\n", getpid()));
}

void StoreLock::Clear(const std::string& note) {
  if (file_) Rewrite(file_.get(), note.empty() ? note : "error: " + Printable(note) + "\n");
}

}  // namespace weightfs

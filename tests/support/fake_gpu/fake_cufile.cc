// SPDX-License-Identifier: Apache-2.0
// The part of cuFile that the client uses.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_gpu/gpus.h"

using namespace fake_gpu;

namespace {

// cuFile's status codes.
constexpr int kCufileInvalidValue = 5022;
constexpr int kCufileOpenFlag = 5019;
constexpr int kCufilePinnedAlready = 5023;
constexpr int kCufileRegisteredAlready = 5028;
constexpr int kCufileNotPinned = 5024;
constexpr int kCufileVersion = 1200;

}  // namespace

extern "C" {

struct FakeCufileStatus {
  int error;
  int cuda;
};
struct FakeCufileDescription {
  int type;
  union {
    int descriptor;
    void* handle;
  };
  const void* operations;
};
struct FakeCufileProperties {
  unsigned major, minor;
  size_t poll, most;
  unsigned kinds, control, features, limits[5];
};

// The real one waits forever for a list of modules that it cannot open.
FakeCufileStatus cuFileDriverOpen() {
  const char* modules = std::getenv("WEIGHTFS_PROC_MODULES");
  if (access(modules != nullptr ? modules : "/proc/modules", R_OK) != 0) TheFake().Mistake();
  return {TheFake().InjectedStatus("cuFileDriverOpen"), 0};
}
FakeCufileStatus cuFileDriverGetProperties(FakeCufileProperties* properties) {
  const unsigned kinds = TheFake().kinds;
  *properties = {kinds != 0 ? 2U : 0, kinds != 0 ? 26U : 0, 4096, 16 << 20, kinds, 0, 0, {}};
  return {TheFake().InjectedStatus("cuFileDriverGetProperties"), 0};
}
FakeCufileStatus cuFileGetVersion(int* version) {
  *version = kCufileVersion;
  return {0, 0};
}
FakeCufileStatus cuFileHandleRegister(File** handle, FakeCufileDescription* description) {
  Fake& fake = TheFake();
  if (const int status = fake.InjectedStatus("cuFileHandleRegister"); status != 0) return {status, 0};
  const int flags = fcntl(description->descriptor, F_GETFL);
  if (description->type != 1 || flags < 0) return {kCufileInvalidValue, 0};
  if ((flags & (O_APPEND | O_NONBLOCK | O_NOFOLLOW | (O_TMPFILE & ~O_DIRECTORY))) != 0) return {kCufileOpenFlag, 0};
  const std::lock_guard lock(fake.mutex);
  const bool registered = std::any_of(fake.files.begin(), fake.files.end(), [&](const File* file) {
    return file->descriptor == description->descriptor;
  });
  if (registered) return {kCufileRegisteredAlready, 0};
  *handle = new File{description->descriptor};
  fake.files.insert(*handle);
  return {0, 0};
}
void cuFileHandleDeregister(File* file) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  // The file's descriptor must still be open.
  if (fake.files.erase(file) == 0 || fcntl(file->descriptor, F_GETFD) < 0) ++fake.counts.mistakes;
  delete file;
}
FakeCufileStatus cuFileBufRegister(const void* address, size_t size, int) {
  Fake& fake = TheFake();
  if (const int status = Enter("cuFileBufRegister"); status != 0) return {status, 0};
  if (fake.Hidden(reinterpret_cast<uint64_t>(address), size) == nullptr) return {kCufileInvalidValue, 0};
  const std::lock_guard lock(fake.mutex);
  const bool added = fake.pinned.try_emplace(reinterpret_cast<uint64_t>(address), size).second;
  return {added ? 0 : kCufilePinnedAlready, 0};
}
FakeCufileStatus cuFileBufDeregister(const void* address) {
  Fake& fake = TheFake();
  const std::lock_guard lock(fake.mutex);
  return {fake.pinned.erase(reinterpret_cast<uint64_t>(address)) != 0 ? 0 : kCufileNotPinned, 0};
}

static ssize_t Transfer(const char* function, File* file, void* base, size_t size, off_t offset, off_t at) {
  Fake& fake = TheFake();
  const bool write = std::strcmp(function, "cuFileWrite") == 0;
  if (const int status = Enter(function); status != 0) {
    errno = EIO;
    return status < 0 ? status : -status;
  }
  const auto begin = reinterpret_cast<uint64_t>(base);
  std::byte* hidden = fake.Hidden(begin + static_cast<uint64_t>(at), size);
  if (hidden == nullptr) return -kCufileInvalidValue;
  {
    const std::lock_guard lock(fake.mutex);
    if (fake.files.count(file) == 0) {
      ++fake.counts.mistakes;
      return -kCufileInvalidValue;
    }
    if (fake.pinned.count(begin) != 0) ++fake.counts.pinned_transfers;
    if (fake.limit != 0) size = std::min(size, fake.limit);
    ++(write ? fake.counts.cufile_writes : fake.counts.cufile_reads);
  }
  // cuFile also transfers partial blocks.
  const std::string again = "/proc/self/fd/" + std::to_string(file->descriptor);
  const int descriptor = open(again.c_str(), (write ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  if (descriptor < 0) return -1;
  const ssize_t done = write ? pwrite(descriptor, hidden, size, offset) : pread(descriptor, hidden, size, offset);
  // Readers may bypass the page cache.
  if (write) fdatasync(descriptor);
  close(descriptor);
  return done;
}
ssize_t cuFileRead(File* file, void* base, size_t size, off_t offset, off_t at) {
  return Transfer("cuFileRead", file, base, size, offset, at);
}
ssize_t cuFileWrite(File* file, const void* base, size_t size, off_t offset, off_t at) {
  // The const_cast is safe: Transfer only reads `base` in this direction.
  return Transfer("cuFileWrite", file, const_cast<void*>(base), size, offset, at);
}

}  // extern "C"

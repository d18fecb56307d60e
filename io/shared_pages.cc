// SPDX-License-Identifier: Apache-2.0
#include "io/shared_pages.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "common/log.h"
#include "common/start_thread.h"

namespace weightfs {
namespace {

Error SharedError(const char* what) { return SystemError("shared memory", what); }

Result<void> Configure(const UniqueFd& context, const char* key, const char* value) {
  if (fsconfig(context.get(), FSCONFIG_SET_STRING, key, value, 0) == 0) return {};
  return SharedError(key);
}

}  // namespace

SharedFile::~SharedFile() {
  if (data_ != nullptr) munmap(data_, RoundUp(size_.value, kHugePageSize));
}

Result<UniqueFd> SharedFile::OpenForReading() const {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC;
  const std::string own = fmt::format("/proc/self/fd/{}", reading_ ? reading_.get() : file_.get());
  UniqueFd opened(open(own.c_str(), kFlags));
  if (!opened) return SharedError("open");
  return opened;
}

ByteCount SharedFile::memory() const {
  struct stat status{};
  return ByteCount{fstat(file_.get(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * 512 : 0};
}

Result<void> SharedFile::Populate(uint64_t offset, uint64_t size) const {
  const uint64_t end = std::min(offset + size, RoundUp(size_.value, kPageSize));
  if (offset >= end || madvise(data_ + offset, end - offset, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) return {};
  return Error{ErrorCode::kNoMemory, fmt::format("shared memory: no pages: {}", std::strerror(errno))};
}

bool SharedFile::IsShared() const {
  // The kernel grants a lease for writing only while no other descriptor and no other mapping exists.
  const bool alone = fcntl(file_.get(), F_SETLEASE, F_WRLCK) == 0;
  if (alone) fcntl(file_.get(), F_SETLEASE, F_UNLCK);
  return !alone;
}

std::unique_ptr<SharedPages> SharedPages::Create(bool may_mount, ByteCount most) {
  std::unique_ptr<SharedPages> pages(new SharedPages());
  if (const auto mounted = may_mount ? pages->Mount(most) : ErrorCode::kPermission; !mounted) {
    spdlog::info("{}; memfds are used in its place", ToString(mounted.error()));
    pages->directory_ = UniqueFd();
    pages->reading_directory_ = UniqueFd();
  }
  const auto first = pages->Make(ByteCount{1});
  if (first && !(*first)->IsShared()) return pages;
  spdlog::warn("no hot files: {}", first ? "the kernel grants no leases (sysctl fs.leases-enable)"
                                         : ToString(first.error()));
  return nullptr;
}

Result<std::unique_ptr<SharedFile>> SharedPages::Make(ByteCount size) {
  constexpr mode_t kMode = S_IRUSR;
  const std::string name = on_tmpfs() ? std::to_string(made_++) : std::string();
  UniqueFd file(on_tmpfs() ? openat(directory_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode)
                           : memfd_create("weightfs", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return SharedError("no file");
  if (!on_tmpfs()) {
    // The kernel grants leases to descriptors of open(2) alone.
    const std::string made_by_memfd = fmt::format("/proc/self/fd/{}", file.get());
    UniqueFd opened(open(made_by_memfd.c_str(), O_RDWR | O_CLOEXEC));
    if (!opened || fchmod(opened.get(), kMode) != 0) return SharedError("memfd");
    file = std::move(opened);
  }
  UniqueFd reading;
  if (on_tmpfs()) {
    // The memory goes with the last descriptor and mapping, also after a kill: a name would keep it.
    reading = UniqueFd(openat(reading_directory_.get(), name.c_str(), O_PATH | O_CLOEXEC));
    const Error error = SharedError("open");  // if there is no descriptor
    if (unlinkat(directory_.get(), name.c_str(), 0) != 0) return SharedError("unlink");
    if (!reading) return error;
  }
  std::unique_ptr<SharedFile> made(new SharedFile(std::move(file), std::move(reading), size));
  const int own = made->file_.get();
  // A lease that somebody breaks sends a signal, which must not end this process.
  if (fcntl(own, F_SETSIG, SIGURG) != 0) return SharedError("fcntl");
  if (ftruncate(own, static_cast<off_t>(size.value)) != 0) return SharedError("ftruncate");
  void* mapped = mmap(nullptr, RoundUp(size.value, kHugePageSize), PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
  if (mapped == MAP_FAILED) return SharedError("mmap");
  made->data_ = static_cast<std::byte*>(mapped);
  // By default the kernel makes free memory whole for advised mappings alone. Refused advice leaves ordinary pages.
  madvise(mapped, RoundUp(size.value, kHugePageSize), MADV_HUGEPAGE);
  // The programs of the user whose memfd it is could open it for writing. This mapping remains writable.
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (!on_tmpfs() && fcntl(own, F_ADD_SEALS, kSeals) != 0) return SharedError("seal");
  return made;
}

Result<void> SharedPages::Mount(ByteCount most) {
  const UniqueFd context(fsopen("tmpfs", FSOPEN_CLOEXEC));
  if (!context) return SharedError("fsopen");
  if (const auto huge = Configure(context, "huge", "always"); !huge) {  // a kernel without transparent huge pages
    spdlog::info("{}; it has small pages", ToString(huge.error()));
  }
  RETURN_IF_ERROR(Configure(context, "mode", "0700"));
  RETURN_IF_ERROR(Configure(context, "size", std::to_string(most.value).c_str()));  // HotFiles has the limit
  if (fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return SharedError("fsconfig");
  constexpr unsigned kAttributes = MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  const UniqueFd made(fsmount(context.get(), FSMOUNT_CLOEXEC, kAttributes));
  if (!made) return SharedError("fsmount");
  // Before Linux 6.15 only a mount of the caller's mount namespace can be cloned, and this one is in none. It gets into
  // that of a thread, which nobody else sees and which ends with the thread.
  Result<void> cloned = Clone(made);
  if (!cloned) {
    auto thread = StartThread("wfs-shared", [&] { cloned = CloneInNamespace(made); });
    if (!thread) return thread.error();
    thread->join();
    RETURN_IF_ERROR(cloned);
  }
  mount_attr reading{.attr_set = MOUNT_ATTR_RDONLY, .attr_clr = 0, .propagation = 0, .userns_fd = 0};
  if (mount_setattr(reading_directory_.get(), "", AT_EMPTY_PATH, &reading, sizeof(reading)) == 0) return {};
  return SharedError("mount_setattr");
}

Result<void> SharedPages::CloneInNamespace(const UniqueFd& made) {
  if (unshare(CLONE_NEWNS) != 0) return SharedError("unshare");
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return SharedError("no private mounts");
  if (move_mount(made.get(), "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) != 0) return SharedError("move_mount");
  return Clone(made);
}

Result<void> SharedPages::Clone(const UniqueFd& made) {
  for (UniqueFd* clone : {&directory_, &reading_directory_}) {
    *clone = UniqueFd(open_tree(made.get(), "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
    if (!*clone) return SharedError("open_tree");
  }
  return {};
}

}  // namespace weightfs

// SPDX-License-Identifier: Apache-2.0
#include "client/open/opened_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/file_limit.h"
#include "client/open/replacement.h"
#include "common/assert.h"
#include "common/result.h"
#include "common/sync_directory.h"
#include "common/umask.h"
#include "common/units.h"

namespace weightfs::client {
namespace {

using Direction = Operation::Direction;

// A write that grows a file by at least this much reserves its blocks first.
constexpr uint64_t kReserveFrom = 2 * kMiB;

// Number of bytes of the file's name that the temporary name starts with. The complete name fits into 255 bytes.
constexpr size_t kTemporaryName = 200;

// Returns the filesystem's magic number, or 0 if statfs fails.
long FilesystemOf(int descriptor) {
  struct statfs filesystem {};
  return fstatfs(descriptor, &filesystem) == 0 ? static_cast<long>(filesystem.f_type) : 0;
}

uint64_t PageSize() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Disables read-ahead: only the requested pages enter the page cache, because others may be under a direct write.
void ReadNoMore(const UniqueFd& descriptor) {
  if (descriptor) posix_fadvise(descriptor.get(), 0, 0, POSIX_FADV_RANDOM);
}

// Opens without waiting for the other end of a pipe; Examine reports pipes as errors.
int OpenNow(const char* path, int flags) {
  const int descriptor = open(path, flags | O_NONBLOCK);
  if (descriptor >= 0) return descriptor;
  // Another process holds an fcntl(2) lease on the file. A blocking open gives it time to release the lease.
  if (errno == EWOULDBLOCK) return open(path, flags);
  struct stat status {};
  const int error_number = errno;
  const bool unread_pipe = error_number == ENXIO && stat(path, &status) == 0 && S_ISFIFO(status.st_mode);
  errno = unread_pipe ? ESPIPE : error_number;
  return -1;
}

bool AreSame(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

}  // namespace

OpenedFile::~OpenedFile() {
  if (state_ == State::kFinished || any() < 0) return;
  // The operation never began or was dropped, so nothing of it may stay. Every byte of a file that a write at an offset
  // has created is another writer's.
  if (created_ && !options_.whole_file) options_.whole_file = writes_elsewhere_ = true;
  Rollback();
}

Error OpenedFile::Failed(const char* action, int error_number) const {
  return {ErrorCode{error_number},
          fmt::format("{} of {} bytes at offset {} of {}: {}: {}", writes() ? "write" : "read", options_.size,
                      options_.offset, options_.path, action, std::strerror(error_number)),
          options_.path, options_.offset};
}

Result<void> OpenedFile::Open() {
  if (options_.path.empty() && options_.descriptor >= 0) {
    options_.path = fmt::format("descriptor {}", options_.descriptor);
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(options_.offset, options_.size, &end) || end > INT64_MAX) {
    return Failed("offset and size exceed what a file can have", EINVAL);
  }
  if (options_.whole_file && (options_.offset != 0 || options_.descriptor >= 0)) {
    return Failed("only a path can be written as a whole file, from its beginning", EINVAL);
  }
  if (options_.atomic && !options_.whole_file) {
    return Failed("an atomic write replaces a whole file: it takes a path and no offset", EINVAL);
  }
  if (options_.descriptor >= 0) {
    RETURN_IF_ERROR(AdoptDescriptor());
  } else {
    RETURN_IF_ERROR(OpenPath());
  }
  return Examine();
}

Result<void> OpenedFile::OpenPath() {
  owns_flags_ = true;
  written_path_ = where();
  if (options_.atomic) return OpenTemporary();
  // A transfer of one or two pages needs no O_DIRECT.
  const bool small = options_.size < kSmallTransfer &&
                     (options_.offset % PageSize() != 0 || options_.size % PageSize() != 0);
  if (!small && options_.size > 0) {
    auto direct = OpenOrCreate(O_DIRECT);
    if (direct.has_value()) {
      direct_ = UniqueFd(*direct);
      return {};
    }
    // EINVAL: the filesystem does not support O_DIRECT.
    if (direct.error().error_number() != EINVAL) return std::move(direct).error();
  }
  ASSIGN_OR_RETURN(const int buffered, OpenOrCreate(0));
  buffered_ = UniqueFd(buffered);
  ReadNoMore(buffered_);
  return {};
}

// Records whether this call created the file, which O_CREAT alone does not reveal.
Result<int> OpenedFile::OpenOrCreate(int flags) {
  constexpr int kTries = 100;  // another program may create and delete the file between the two calls
  for (int i = 0; i < kTries; ++i) {
    int descriptor = OpenNow(written_path_.c_str(), access() | flags);
    if (descriptor >= 0) return descriptor;
    if (errno != ENOENT || !writes() || !may_create_) return Failed("cannot open the file", errno);
    descriptor = open(written_path_.c_str(), access() | flags | O_CREAT | O_EXCL, kFileMode);
    if (descriptor >= 0) {
      created_ = true;
      return descriptor;
    }
    // If the filesystem does not support O_DIRECT, the kernel creates the file and then fails with EINVAL.
    created_ = created_ || errno == EINVAL;
    // O_EXCL treats a dangling link as an existing file; without O_EXCL open(2) follows it.
    if (errno == EEXIST) descriptor = open(written_path_.c_str(), access() | flags | O_CREAT, kFileMode);
    if (descriptor >= 0) return descriptor;
    if (errno != EEXIST) return Failed("cannot create the file", errno);
  }
  return Failed("cannot create the file", errno);
}

// Keeps a symbolic link and replaces or creates the file it points to. Returns whether that file exists.
Result<bool> OpenedFile::FindReplaced(struct stat* old) {
  constexpr int kTries = 100;  // another program may replace the file between the calls
  for (int i = 0; i < kTries; ++i) {
    auto found = FinalPath(where());
    if (!found.has_value()) return Failed("cannot open the file", found.error().error_number());
    final_path_ = *std::move(found);
    const bool there = stat(final_path_.c_str(), old) == 0;
    if (!there && errno != ENOENT) return Failed("cannot open the file", errno);
    // The kernel's answer takes precedence: a link in /proc/self/fd is not a path, and the kernel may have more reasons
    // to refuse a link.
    struct stat followed {};
    const bool kernel_finds = stat(where().c_str(), &followed) == 0;
    if (!kernel_finds && errno != ENOENT) return Failed("cannot open the file", errno);
    if (there == kernel_finds && (!there || AreSame(*old, followed))) return there;
  }
  return Failed("it has no name that a new file could take", ENOENT);
}

Result<void> OpenedFile::OpenTemporary() {
  struct stat old {};
  ASSIGN_OR_RETURN(const bool replaces, FindReplaced(&old));
  if (replaces && !S_ISREG(old.st_mode)) return Failed("only a regular file can be replaced", EINVAL);
  if (replaces && faccessat(AT_FDCWD, final_path_.c_str(), W_OK, AT_EACCESS) != 0) {
    return Failed("cannot replace a file that may not be written", errno);
  }
  const size_t slash = final_path_.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const std::string start =
      fmt::format("{}.{}", final_path_.substr(0, begin), final_path_.substr(begin, kTemporaryName));
  // A file that replaces another one gets its mode below, and is nobody else's until then.
  buffered_ = CreateTemporaryFile(start, replaces ? 0600 : kFileMode, &written_path_);
  if (!buffered_) return Failed("cannot create a temporary file beside it", errno);
  created_ = true;
  if (replaces && !TakeOver(buffered_.get(), old)) return Failed("cannot keep the file's mode", errno);
  direct_ = UniqueFd(open(written_path_.c_str(), access() | O_DIRECT));
  return {};
}

Result<void> OpenedFile::AdoptDescriptor() {
  const int theirs = options_.descriptor;
  const int flags = fcntl(theirs, F_GETFL);
  if (flags < 0) return Failed("not an open descriptor", errno);
  const int mode = flags & O_ACCMODE;
  if ((flags & O_PATH) != 0 || (mode != O_RDWR && mode != (writes() ? O_WRONLY : O_RDONLY))) {
    return Failed(writes() ? "the descriptor is not open for writing" : "the descriptor is not open for reading",
                  EBADF);
  }
  // A duplicate shares its flags with the caller. With O_APPEND the kernel ignores offsets and would write the pieces
  // in order of arrival. cuFile refuses regular files with any of these flags.
  constexpr int kRefused = O_APPEND | O_NONBLOCK | O_NOFOLLOW | (O_TMPFILE & ~O_DIRECTORY);
  const bool appends = (flags & O_APPEND) != 0 && writes();
  struct stat status {};
  UniqueFd ours;
  if (appends || ((flags & kRefused) != 0 && fstat(theirs, &status) == 0 && S_ISREG(status.st_mode))) {
    ours = UniqueFd(OpenNow(fmt::format("/proc/self/fd/{}", theirs).c_str(), access() | (flags & O_DIRECT)));
    if (!ours && appends) return Failed("cannot reopen a descriptor of O_APPEND without it", errno);
    owns_flags_ = static_cast<bool>(ours);
  }
  if (!ours) ours = UniqueFd(fcntl(theirs, F_DUPFD_CLOEXEC, 0));
  if (!ours) return Failed("cannot duplicate the descriptor", errno);
  ((flags & O_DIRECT) != 0 ? direct_ : buffered_) = std::move(ours);
  return {};
}

Result<void> OpenedFile::Examine() {
  if (fstat(any(), &status_) != 0) return Failed("cannot look at the file", errno);
  if (S_ISDIR(status_.st_mode)) return Failed("cannot open the file", EISDIR);
  if (S_ISFIFO(status_.st_mode) || S_ISSOCK(status_.st_mode)) {
    return Failed("a pipe or socket has no offsets", ESPIPE);
  }
  // Clears the O_NONBLOCK of OpenNow: a device would fail instead of waiting, and cuFile refuses every such file.
  if (owns_flags_ && fcntl(any(), F_SETFL, direct_ ? O_DIRECT : 0) != 0) {
    return Failed("cannot clear O_NONBLOCK", errno);
  }
  if (direct_) RETURN_IF_ERROR(LearnAlignment());
  return CheckLimit();
}

Result<void> OpenedFile::CheckLimit() const {
  if (!S_ISREG(status_.st_mode) || !writes() || options_.offset + options_.size <= FileSizeLimit()) return {};
  return Failed("its end is behind the process's limit of sizes (RLIMIT_FSIZE)", EFBIG);
}

// True if the file was deleted meanwhile, for example by the rollback of the operation that created it.
bool OpenedFile::WasRemoved() const {
  if (!S_ISREG(status_.st_mode) || status_.st_nlink > 0 || options_.descriptor >= 0) return false;
  // A path in /proc may still name it.
  struct stat named {};
  return stat(written_path_.c_str(), &named) != 0 || named.st_ino != status_.st_ino || named.st_dev != status_.st_dev;
}

Result<uint64_t> OpenedFile::Prepare() {
  if (fstat(any(), &status_) != 0) return Failed("cannot look at the file", errno);
  if (WasRemoved()) return Failed("it was deleted meanwhile", ESTALE);
  const auto have = static_cast<uint64_t>(status_.st_size);
  // Another writer has written to the file since it was created here, so a rollback must not remove it.
  if (created_ && have > 0) keep_on_failure_ = true;
  if (options_.appends) {
    options_.offset = have;
    RETURN_IF_ERROR(CheckLimit());
  }
  if (options_.checksums != nullptr) {
    const auto begun = options_.checksums->Begin(any(), have);
    // A failure removes the file that was created for this write, even if an offset was given.
    options_.whole_file |= created_ && !begun.has_value();
    RETURN_IF_ERROR(begun);
  }
  if (!writes() && S_ISREG(status_.st_mode) && options_.offset + options_.size > have) {
    return PastTheEnd(path(), options_.size, options_.offset, have);
  }
  state_ = State::kPrepared;
  return options_.offset;
}

Result<void> OpenedFile::LearnAlignment() {
  if (const auto alignment = QueryDirectAlignment(direct_.get())) {
    alignment_ = *alignment;
    // Parts of pages go through the page cache. If a direct write ran concurrently with a buffered transfer of the rest
    // of its page, the kernel could not drop the page: its content would stay stale, and the next fsync would fail.
    // Filesystems in memory keep no second copy.
    if (alignment_.offset > 1) alignment_.offset = std::max(alignment_.offset, PageSize());
    return {};
  }
  int error_number = 0;
  if (Buffered(&error_number) < 0) return Failed("cannot open it without O_DIRECT", error_number);
  direct_.Close();
  return {};
}

int OpenedFile::Buffered(int* error_number) const {
  MutexLock lock(mutex_);
  if (!buffered_) {
    // Reopened by the descriptor, because the path may name another file by now. The path is used if /proc is missing.
    UniqueFd again(open(fmt::format("/proc/self/fd/{}", direct_.get()).c_str(), access()));
    if (!again && errno == ENOENT) again = UniqueFd(open(written_path_.c_str(), access()));
    if (!again) *error_number = errno;
    ReadNoMore(again);
    buffered_ = std::move(again);
  }
  return buffered_.get();
}

std::optional<FileId> OpenedFile::id() const {
  if (!S_ISREG(status_.st_mode) && !S_ISBLK(status_.st_mode)) return std::nullopt;
  return FileId{.device = status_.st_dev, .inode = status_.st_ino};
}

Result<uint64_t> OpenedFile::Size() const {
  struct stat now {};
  if (fstat(any(), &now) != 0) return Failed("cannot look at the file", errno);
  return static_cast<uint64_t>(now.st_size);
}

// On these filesystems writes into reserved blocks run concurrently, while a write that grows the file is serialized.
// What does not fit is refused first: ext4 would keep the part that fits.
Result<void> OpenedFile::Reserve() {
  const auto end = options_.offset + options_.size;
  if (!writes() || !direct_ || !S_ISREG(status_.st_mode) || options_.size < kReserveFrom ||
      end <= static_cast<uint64_t>(status_.st_size)) {
    return {};
  }
  const long filesystem = FilesystemOf(direct_.get());
  if (filesystem != EXT4_SUPER_MAGIC && filesystem != XFS_SUPER_MAGIC) return {};
  struct statvfs space {};
  const uint64_t has = std::max(static_cast<uint64_t>(status_.st_size), static_cast<uint64_t>(status_.st_blocks) * 512);
  if (filesystem == EXT4_SUPER_MAGIC && end > has && fstatvfs(direct_.get(), &space) == 0 &&
      std::min(end - has, options_.size) > (geteuid() == 0 ? space.f_bfree : space.f_bavail) * space.f_frsize) {
    return Failed("no room for it", ENOSPC);
  }
  if (fallocate(direct_.get(), 0, static_cast<off_t>(options_.offset), static_cast<off_t>(options_.size)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return Failed("no room for it", errno);
  }
  return {};
}

Result<void> OpenedFile::Finish(bool success) {
  WEIGHTFS_ASSERT(state_ == (success ? State::kPrepared : state_) && state_ != State::kFinished);
  Result<void> result;
  if (success && writes()) result = MakeFinal();
  if (success && !writes() && options_.checksums != nullptr) result = options_.checksums->End(any());
  if (!success || !result.has_value()) Rollback();
  state_ = State::kFinished;
  // Network filesystems may report a failed write only at close.
  for (UniqueFd* descriptor : {&direct_, &buffered_}) {
    if (descriptor->Close() != 0 && success && result.has_value() && writes()) {
      result = Failed("closing the file reported an earlier error", errno);
    }
  }
  return result;
}

Result<void> OpenedFile::MakeFinal() {
  const bool old = !options_.atomic && !created_ && options_.descriptor < 0;
  struct stat now {}, named {};
  if ((old || cuts_off()) && fstat(any(), &now) != 0) return Failed("cannot look at the file", errno);
  // A rollback of another operation has lost what was written. What was renamed over it has only replaced it.
  if (old && now.st_nlink == 0 && stat(written_path_.c_str(), &named) != 0) {
    return Failed("it was deleted meanwhile", ESTALE);
  }
  // Bytes that others have appended since Open are kept.
  if (cuts_off() && now.st_size == status_.st_size && ftruncate(any(), static_cast<off_t>(options_.size)) != 0) {
    return Failed("cannot cut off the longer old content", errno);
  }
  if (options_.checksums != nullptr) RETURN_IF_ERROR(options_.checksums->End(any()));
  if (options_.durable && fsync(any()) != 0) return Failed("fsync failed", errno);
  if (options_.atomic && rename(written_path_.c_str(), final_path_.c_str()) != 0) {
    return Failed("cannot rename the temporary file over it", errno);
  }
  if (!options_.durable || !options_.durable_name || !created_) return {};
  if (const auto synced = SyncParentDirectory(written_path_); !synced.has_value()) {
    return Failed("cannot make its name durable", synced.error().error_number());
  }
  return {};
}

// Rolls back a failed write of a whole file. A write at an offset is not rolled back: others may be writing other
// parts.
void OpenedFile::Rollback() {
  if (!writes() || !options_.whole_file || keep_on_failure_) return;
  struct stat ours {};
  if (fstat(any(), &ours) != 0 || !S_ISREG(ours.st_mode)) return;
  const auto size = static_cast<uint64_t>(ours.st_size);
  // A larger file has bytes of another writer.
  if (!options_.atomic && size > (writes_elsewhere_ ? 0 : options_.size)) return;
  if (created_) {
    struct stat named {};
    if (lstat(written_path_.c_str(), &named) == 0 && named.st_ino == ours.st_ino && named.st_dev == ours.st_dev) {
      unlink(written_path_.c_str());
    }
  } else if (size > static_cast<uint64_t>(status_.st_size)) {
    [[maybe_unused]] const int ignored = ftruncate(any(), status_.st_size);
  }
}

Error PastTheEnd(const std::string& path, uint64_t size, uint64_t offset, uint64_t file_size) {
  return {ErrorCode::kNoAttribute,
          fmt::format("read of {} bytes at offset {} of {}: only {} bytes there", size, offset, path,
                      file_size > offset ? file_size - offset : 0),
          path, offset};
}

Result<std::unique_ptr<OpenedFile>> OpenedFile::Open(const Options& options, bool may_create) {
  std::unique_ptr<OpenedFile> file(new OpenedFile(options, may_create));
  RETURN_IF_ERROR(file->Open());
  return file;
}

}  // namespace weightfs::client

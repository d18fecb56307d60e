// SPDX-License-Identifier: Apache-2.0
// Handle::SaveMany and LoadMany. They use a lease if the mount grants one, and otherwise go file by file.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <numeric>
#include <system_error>
#include <utility>

#include "client/open/replacement.h"
#include "client/handle_impl.h"
#include "client/lease/leased_folder.h"
#include "client/save_checks.h"
#include "common/result.h"
#include "common/syncfs.h"
#include "common/unique_fd.h"

namespace weightfs::client {
namespace {

// Maximum number of names per request: larger requests would save little, and would pin much more of the store at once.
constexpr size_t kLoadedAtOnce = 4096;
// Maximum number of open files without a lease.
constexpr size_t kUnderWay = 64;

// A directory's name as given by the caller, and as an absolute path, because callbacks and other threads may change
// the working directory.
struct Directory {
  explicit Directory(const std::string& name) : path(name), where(FromTheRoot(name)) {}
  const std::string& path;
  const std::string where;
};

// GPU memory is not supported: the data of one lease is assembled in host memory.
Result<void> CheckOnHost(const std::string& directory, std::span<const NamedMemory> files) {
  if (std::none_of(files.begin(), files.end(), [](const auto& file) { return file.memory.on_device(); })) return {};
  return Error{ErrorCode::kNotSupported,
               fmt::format("{}: no lease: tensors of a GPU go one by one, each by a way of its own", directory),
               directory};
}

// True if one syncfs(2) makes all previous writes durable and reports their errors. On FUSE and network filesystems,
// and on old kernels, each file is fsynced instead.
bool SyncsAtOnce(int descriptor) {
  if (!SyncfsReportsErrors()) return false;
  struct statfs filesystem {};
  if (fstatfs(descriptor, &filesystem) != 0) return false;
  const auto type = static_cast<long>(filesystem.f_type);
  return type == EXT4_SUPER_MAGIC || type == XFS_SUPER_MAGIC || type == BTRFS_SUPER_MAGIC || type == TMPFS_MAGIC;
}

// A temporary directory for incomplete files. The destructor removes it.
class Staging {
 public:
  Staging() = default;
  ~Staging() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  Result<void> Make(const Directory& directory) {
    std::string path = TemporaryName(directory.where + "/");
    if (mkdtemp(path.data()) == nullptr) return FailedAt(directory.path, "cannot create a directory there", errno);
    path_ = std::move(path);
    return {};
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

template <typename Call>
void InCallback(Call call) {
  const Operation::CallbackScope scope;
  call();
}

// Polls the caller's Interrupted callback. Once the callback has returned true, it is not called again.
class Interruption {
 public:
  Interruption(const Interrupted& interrupted, const std::string& directory)
      : interrupted_(interrupted), directory_(directory) {}

  // Polls at most every 100 ms.
  bool came() { return std::chrono::steady_clock::now() < look_ ? came_ : CameByNow(); }
  // Polls immediately: after a callback, and before a step that cannot be undone.
  bool CameByNow() {
    if (!came_ && interrupted_) came_ = interrupted_();
    look_ = std::chrono::steady_clock::now() + kInterruptCheckInterval;
    return came_;
  }
  // Waits until the operation is done. If the caller interrupts the wait, the operation is canceled.
  void WaitFor(Operation& operation) {
    while (!came() && !operation.Wait(kInterruptCheckInterval)) continue;
    if (!came_) return;
    operation.Cancel();
    operation.Wait();
  }
  Result<void> Check() {
    if (CameByNow()) return Error{ErrorCode::kCancelled, fmt::format("{}: interrupted", directory_), directory_};
    return {};
  }

 private:
  const Interrupted& interrupted_;
  const std::string& directory_;
  bool came_ = false;
  std::chrono::steady_clock::time_point look_ = std::chrono::steady_clock::now() + kInterruptCheckInterval;
};

using Turn = std::unique_ptr<PendingRanges::Turn>;

// Waits until the handle's earlier operations on these files are done. Later operations on their paths begin when the
// result is destroyed. A lease waits for neither.
Result<Turn> WaitForTurn(Handle::Impl& handle, const Directory& directory, std::span<const NamedMemory> files,
                         bool writes, Interruption& interruption) {
  const bool alone = handle.ranges().empty();
  std::vector<FileRange> ranges;
  for (const NamedMemory& file : files) {
    const std::string where = directory.where + "/" + file.name;
    ranges.push_back({.file = IdOfPath(where), .end = UINT64_MAX, .writes = writes});
    struct stat status {};
    // An earlier operation may know the file by another name.
    if (alone || stat(where.c_str(), &status) != 0) continue;
    ranges.push_back(ranges.back());
    ranges.back().file = {.device = status.st_dev, .inode = status.st_ino};
  }
  Turn turn = handle.ranges().AddTurn(ranges, writes);
  const auto& registration = turn->registration();
  if (registration->deadlocks()) return HeldByThisThread(directory.path, 0);
  const auto promise = std::make_shared<std::promise<void>>();
  const auto come = promise->get_future();
  // The registration must stay until its turn comes, because its last reference begins the operations waiting for it.
  if (!handle.ranges().Wait(registration, [promise, registration] { promise->set_value(); })) return turn;
  while (come.wait_for(kInterruptCheckInterval) == std::future_status::timeout) RETURN_IF_ERROR(interruption.Check());
  return turn;
}

// Runs the operations that `make` returns for these indices, a limited number at a time. Calls `ended` in the order of
// the indices, with the error of each. Begins no more of them once `ended` has returned false.
template <typename Make, typename Ended>
void RunEach(Handle::Impl& handle, std::span<const size_t> indices, Interruption& interruption, Make make,
             Ended ended) {
  std::deque<std::pair<size_t, Result<std::shared_ptr<Operation>>>> under_way;
  bool more = true;
  const auto settle = [&](size_t most) {
    for (; under_way.size() > most; under_way.pop_front()) {
      const auto& [index, started] = under_way.front();
      if (started.has_value()) interruption.WaitFor(**started);
      more &= ended(index, started.has_value() ? (*started)->error() : started.error());
    }
  };
  for (const size_t index : indices) {
    settle(kUnderWay - 1);
    if (!more || interruption.came()) break;
    under_way.emplace_back(index, [&]() -> Result<std::shared_ptr<Operation>> {
      ASSIGN_OR_RETURN(Handle::Impl::Request request, make(index));
      request.ordered = false;
      return handle.Begin(std::move(request), nullptr);
    }());
    if (!under_way.back().second.has_value()) settle(0);
  }
  settle(0);
}

Result<void> WriteInto(Handle::Impl& handle, const Staging& staging, std::span<const NamedMemory> files,
                       const SaveManyOptions& options, bool durable, Interruption& interruption) {
  uint64_t total = 0, done = 0;
  for (const auto& file : files) total += file.memory.size();
  std::vector<size_t> all(files.size());
  std::iota(all.begin(), all.end(), size_t{0});
  std::optional<Error> failed;
  const auto make = [&](size_t i) -> Result<Handle::Impl::Request> {
    auto request = Handle::Impl::MakeWriteRequest(staging / files[i].name, files[i].memory,
                                                  {.durable = durable, .checksum = options.checksum});
    request.file.durable_name = false;  // The file is renamed later.
    return request;
  };
  RunEach(handle, all, interruption, make, [&](size_t i, std::optional<Error> error) {
    if (error && !failed) failed = std::move(error);
    done += files[i].memory.size();
    if (failed || !options.progress || interruption.came()) return !failed;
    InCallback([&] { options.progress(done, total); });
    interruption.CameByNow();
    return true;
  });
  RETURN_IF_ERROR(interruption.Check());
  if (failed) return *std::move(failed);
  return {};
}

// Gives a complete file its mode. Without one, it takes that of the regular file that it replaces.
bool SetMode(const UniqueFd& folder, const std::string& name, const std::string& file, std::optional<uint32_t> mode) {
  if (mode) return chmod(file.c_str(), *mode) == 0;
  struct stat old {};
  if (fstatat(folder.get(), name.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0) return errno == ENOENT;
  if (!S_ISREG(old.st_mode)) return true;
  const UniqueFd descriptor(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return descriptor && TakeOver(descriptor.get(), old);
}

Result<void> SaveOneByOne(Handle::Impl& handle, const UniqueFd& folder, const Directory& directory,
                          std::span<const NamedMemory> files, const SaveManyOptions& options,
                          Interruption& interruption) {
  RETURN_IF_ERROR(CheckReplaceable(folder, directory.path, files));
  const bool at_once = SyncsAtOnce(folder.get());
  Staging staging;
  RETURN_IF_ERROR(staging.Make(directory));
  RETURN_IF_ERROR(WriteInto(handle, staging, files, options, options.durable && !at_once, interruption));
  for (const auto& [name, memory] : files) {
    if (!SetMode(folder, name, staging / name, options.mode))
      return FailedAt(directory.path + "/" + name, "cannot set the file's mode", errno);
  }
  if (options.durable && at_once && syncfs(folder.get()) != 0) return FailedAt(directory.path, "syncfs failed", errno);
  // Checked again, because writing took time: from here on, an error leaves some files new and others old.
  RETURN_IF_ERROR(CheckReplaceable(folder, directory.path, files));
  RETURN_IF_ERROR(interruption.Check());
  for (const auto& [name, memory] : files) {
    if (rename((staging / name).c_str(), (directory.where + "/" + name).c_str()) != 0)
      return FailedAt(directory.path + "/" + name, "cannot rename the new file over it", errno);
  }
  if (options.durable && fsync(folder.get()) != 0) {
    return FailedAt(directory.path, "cannot make the names durable", errno);
  }
  return {};
}

// Loads the files whose indices are in `chosen`. Errors are recorded at their index plus `first`.
void LoadOneByOne(Handle::Impl& handle, const Directory& directory, std::span<const NamedMemory> files,
                  std::span<const size_t> chosen, size_t first, bool verify, Interruption& interruption,
                  FileErrors& errors) {
  const auto make = [&](size_t i) -> Result<Handle::Impl::Request> {
    const std::string path = directory.path + "/" + files[i].name;
    const std::string where = directory.where + "/" + files[i].name;
    struct stat status {};
    // If stat fails, opening the file reports the reason.
    if (stat(where.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        static_cast<uint64_t>(status.st_size) != files[i].memory.size()) {
      return OtherSize(path, files[i].memory.size(), static_cast<uint64_t>(status.st_size));
    }
    ASSIGN_OR_RETURN(auto request, Handle::Impl::MakeReadRequest(where, files[i].memory, {.verify = verify}));
    request.file.path = path;
    return request;
  };
  RunEach(handle, chosen, interruption, make, [&](size_t i, std::optional<Error> error) {
    if (error) errors.Add(first + i, *std::move(error));
    return true;
  });
}

Result<std::shared_ptr<const LeasedFolder>> OpenLeased(Handle::Impl& handle, const std::string& directory,
                                                       std::span<const NamedMemory> files) {
  RETURN_IF_ERROR(CheckOnHost(directory, files));
  return LeasedFolder::Open(directory, handle.connections());
}

// Loads the files through a lease if `folder` is not null. Files that cannot be read that way are read through the
// kernel, unless a lease is required. Damaged files are not, because the lease's error names the damaged block.
Result<void> LoadPart(Handle::Impl& handle, const LeasedFolder* folder, const Directory& directory,
                      std::span<const NamedMemory> files, size_t first, bool verify, Interruption& interruption,
                      const std::shared_ptr<FileErrors>& errors) {
  const auto by_lease = [&]() -> Result<void> {
    if (folder == nullptr) return Error{ErrorCode{ENOTTY}, "no lease"};
    ASSIGN_OR_RETURN(auto batch, folder->Load(files, first, errors));
    return handle.Run(std::move(batch.access), std::move(batch.memory), Operation::Direction::kRead, {},
                      [&] { return interruption.came(); });
  };
  auto loaded = by_lease();
  RETURN_IF_ERROR(interruption.Check());
  if (handle.direct() == Direct::kRequire) return loaded;
  std::vector<size_t> left;
  auto failed = errors->TakeFrom(first);
  if (loaded.has_value()) {
    for (auto& [index, error] : failed) {
      if (error.error_number() == EIO) {
        errors->Add(index, std::move(error));
      } else {
        left.push_back(index - first);
      }
    }
  } else {
    // The request as a whole failed. Reading the files one by one finds those that cause the failure.
    left.resize(files.size());
    std::iota(left.begin(), left.end(), size_t{0});
  }
  LoadOneByOne(handle, directory, files, left, first, verify, interruption, *errors);
  return interruption.Check();
}

}  // namespace

Result<void> Handle::SaveMany(const std::string& directory, std::span<const NamedMemory> files,
                              const SaveManyOptions& options) {
  const Directory named(directory);
  RETURN_IF_ERROR(impl_->CheckMayWait(directory));
  RETURN_IF_ERROR(CheckNames(directory, files));
  RETURN_IF_ERROR(CheckTotal(directory, files));
  if (files.empty()) return {};
  ASSIGN_OR_RETURN(const UniqueFd folder, OpenToSave(directory, files));
  Interruption interruption(options.interrupted, directory);
  // Opened before waiting for other operations, because their callbacks may change the working directory.
  Result<std::shared_ptr<const LeasedFolder>> leasing = Error{ErrorCode{ENOTTY}, "no lease is wanted"};
  if (options_.direct != Direct::kNever) leasing = OpenLeased(*impl_, directory, files);
  // Several commits would not be atomic, but callers rely on atomicity when there is a lease.
  if (leasing.has_value()) RETURN_IF_ERROR(CheckOneCommit(directory, files));
  ASSIGN_OR_RETURN(const Turn turn, WaitForTurn(*impl_, named, files, /*writes=*/true, interruption));
  if (options_.direct == Direct::kNever) return SaveOneByOne(*impl_, folder, named, files, options, interruption);
  auto batch = leasing.has_value() ? (*leasing)->Save(files, {.durable = options.durable, .mode = options.mode})
                                   : Result<LeasedFolder::Batch>(std::move(leasing).error());
  if (batch.has_value()) {
    return impl_->Run(std::move(batch->access), std::move(batch->memory), Operation::Direction::kWrite,
                      options.progress, options.interrupted);
  }
  if (options_.direct == Direct::kRequire) return std::move(batch).error();
  if (options.on_fallback) InCallback([&] { options.on_fallback(batch.error()); });
  return SaveOneByOne(*impl_, folder, named, files, options, interruption);
}

Result<std::vector<NamedError>> Handle::LoadMany(const std::string& directory, std::span<const NamedMemory> files,
                                                 const LoadManyOptions& options) {
  const Directory named(directory);
  RETURN_IF_ERROR(impl_->CheckMayWait(directory));
  RETURN_IF_ERROR(CheckNames(directory, files));
  RETURN_IF_ERROR(CheckTotal(directory, files));
  uint64_t total = 0;
  for (const auto& [name, memory] : files) {
    if (const char* why = memory.WhyNotReadable(); why != nullptr) {
      return Error{ErrorCode::kInvalid, fmt::format("'{}': {}", name, why), directory + "/" + name};
    }
    total += memory.size();
  }
  std::shared_ptr<const LeasedFolder> folder;
  if (options_.direct != Direct::kNever) {
    auto opened = OpenLeased(*impl_, directory, files);
    if (opened.has_value()) folder = std::move(*opened);
    if (folder == nullptr && options_.direct == Direct::kRequire) return std::move(opened).error();
  }
  Interruption interruption(options.interrupted, directory);
  ASSIGN_OR_RETURN(const Turn turn, WaitForTurn(*impl_, named, files, /*writes=*/false, interruption));
  const auto errors = std::make_shared<FileErrors>();
  uint64_t done = 0;
  for (size_t first = 0; first < files.size(); first += kLoadedAtOnce) {
    RETURN_IF_ERROR(interruption.Check());
    const auto part = files.subspan(first, std::min(kLoadedAtOnce, files.size() - first));
    RETURN_IF_ERROR(LoadPart(*impl_, folder.get(), named, part, first, options.verify, interruption, errors));
    for (const auto& file : part) done += file.memory.size();
    if (options.progress) InCallback([&] { options.progress(done, total); });
  }
  std::vector<NamedError> out;
  for (auto& [index, error] : errors->TakeFrom(0)) out.push_back({files[index].name, std::move(error)});
  return out;
}

}  // namespace weightfs::client

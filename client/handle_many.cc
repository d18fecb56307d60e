// Handle::SaveMany and LoadMany: by a lease where the directory's mount gives one, otherwise file by file.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "client/descriptor.h"
#include "client/file_target.h"
#include "client/handle.h"
#include "client/leased_folder.h"
#include "common/result.h"

namespace weightfs::client {
namespace {

// Names in one request: a lease of that many files costs little, and pins no more of the store than is read soon.
constexpr size_t kLoadedAtOnce = 4096;
// Files open at once where there is no lease.
constexpr size_t kUnderWay = 64;

constexpr size_t kLongestName = 255;

IoError Failed(const std::string& path, const char* action, int error_number) {
  return {error_number, fmt::format("{}: {}: {}", path, action, std::strerror(error_number)), path};
}

IoResult<void> CheckNames(const std::string& directory, std::span<const NamedMemory> files) {
  std::unordered_set<std::string_view> seen;
  for (const auto& [name, memory] : files) {
    const bool possible = !name.empty() && name != "." && name != ".." && name.size() <= kLongestName &&
                          name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
    if (!possible) {
      return IoError{EINVAL, fmt::format("'{}' cannot be the name of a file in {}", name, directory), directory};
    }
    if (!seen.insert(name).second) {
      return IoError{EINVAL, fmt::format("the name '{}' is there twice", name), directory + "/" + name};
    }
  }
  return {};
}

// What goes by one lease is put together in the host's memory.
IoResult<bool> WantsLease(Direct direct, const std::string& directory, std::span<const NamedMemory> files) {
  if (direct == Direct::kNever) return false;
  const bool on_device = std::any_of(files.begin(), files.end(), [](const auto& file) { return file.memory.on_device(); });
  if (!on_device || direct == Direct::kAuto) return !on_device;
  return IoError{EOPNOTSUPP, fmt::format("{}: tensors of a GPU do not go together by a lease; direct=auto takes them one by "
                                         "one",
                                         directory),
                 directory};
}

// Where one syncfs(2) makes everything durable that was written before. FUSE and network filesystems get an fsync for
// each file.
bool SyncsAtOnce(int descriptor) {
  constexpr long kExt4 = 0xEF53;
  constexpr long kXfs = 0x58465342;
  constexpr long kBtrfs = 0x9123683E;
  constexpr long kTmpfs = 0x01021994;
  struct statfs filesystem{};
  if (fstatfs(descriptor, &filesystem) != 0) return false;
  const auto type = static_cast<long>(filesystem.f_type);
  return type == kExt4 || type == kXfs || type == kBtrfs || type == kTmpfs;
}

// A directory beside the files, for those that are not complete yet; it goes with its object.
class Staging {
 public:
  Staging() = default;
  ~Staging() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  IoResult<void> Make(const std::string& directory) {
    std::string path = directory + "/.weightfs-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) return Failed(directory, "cannot create a directory there", errno);
    path_ = std::move(path);
    return {};
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace

IoResult<void> Handle::SaveMany(const std::string& directory, std::span<const NamedMemory> files,
                                const SaveManyOptions& options) {
  RETURN_IF_ERROR(CheckMayWait(directory));
  RETURN_IF_ERROR(CheckNames(directory, files));
  if (files.empty()) return {};
  ASSIGN_OR_RETURN(const bool lease, WantsLease(options_.direct, directory, files));
  if (!lease) return SaveOneByOne(directory, files, options);
  const auto leased = [&]() -> IoResult<LeasedFolder::Batch> {
    ASSIGN_OR_RETURN(const auto folder, LeasedFolder::Open(directory, connections()));
    return folder->Save(files, {.durable = options.durable, .mode = options.mode});
  };
  auto batch = leased();
  if (batch.has_value()) {
    return Run(std::move(batch->target), std::move(batch->memory), Operation::Direction::kWrite, options.progress);
  }
  if (options_.direct == Direct::kRequire) return std::move(batch).error();
  return SaveOneByOne(directory, files, options);
}

IoResult<void> Handle::SaveOneByOne(const std::string& directory, std::span<const NamedMemory> files,
                                    const SaveManyOptions& options) {
  const Descriptor folder(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return Failed(directory, "cannot open the directory", errno);
  const bool at_once = SyncsAtOnce(folder.get());
  Staging staging;
  RETURN_IF_ERROR(staging.Make(directory));
  uint64_t total = 0;
  for (const auto& file : files) total += file.memory.size();
  std::deque<std::shared_ptr<Operation>> under_way;
  uint64_t done = 0;
  std::optional<IoError> failed;
  const auto settle = [&](size_t most) {
    for (; under_way.size() > most; under_way.pop_front()) {
      Operation& oldest = *under_way.front();
      oldest.Wait();
      if (auto error = oldest.error(); error && !failed) failed = std::move(error);
      done += oldest.size();
      if (!failed && options.progress) options.progress(done, total);
    }
  };
  for (const auto& [name, memory] : files) {
    settle(kUnderWay - 1);
    if (failed) break;
    auto started =
        BeginWrite(staging / name, memory, {.durable = options.durable && !at_once, .checksum = options.checksum});
    if (started.has_value()) {
      under_way.push_back(std::move(*started));
    } else {
      failed = std::move(started).error();
    }
  }
  settle(0);
  if (failed) return *std::move(failed);
  for (const auto& [name, memory] : files) {
    if (options.mode != 0600 && chmod((staging / name).c_str(), options.mode) != 0)
      return Failed(directory + "/" + name, "cannot set the file's mode", errno);
  }
  if (options.durable && at_once && syncfs(folder.get()) != 0) return Failed(directory, "syncfs failed", errno);
  for (const auto& [name, memory] : files) {
    if (rename((staging / name).c_str(), (directory + "/" + name).c_str()) != 0)
      return Failed(directory + "/" + name, "cannot rename the new file over it", errno);
  }
  if (options.durable && fsync(folder.get()) != 0) return Failed(directory, "cannot make the names durable", errno);
  return {};
}

IoResult<std::vector<NamedError>> Handle::LoadMany(const std::string& directory, std::span<const NamedMemory> files,
                                                   const LoadManyOptions& options) {
  RETURN_IF_ERROR(CheckMayWait(directory));
  RETURN_IF_ERROR(CheckNames(directory, files));
  uint64_t total = 0;
  for (const auto& [name, memory] : files) {
    if (memory.may_overlap()) {
      return IoError{EINVAL, fmt::format("elements of the tensor for '{}' share memory: nothing can be read into it",
                                         name),
                     directory + "/" + name};
    }
    total += memory.size();
  }
  std::shared_ptr<const LeasedFolder> folder;
  ASSIGN_OR_RETURN(const bool lease, WantsLease(options_.direct, directory, files));
  if (lease) {
    auto opened = LeasedFolder::Open(directory, connections());
    if (opened.has_value()) folder = std::move(*opened);
    if (folder == nullptr && options_.direct == Direct::kRequire) return std::move(opened).error();
  }
  const auto errors = std::make_shared<FileErrors>();
  uint64_t done = 0;
  for (size_t first = 0; first < files.size(); first += kLoadedAtOnce) {
    const auto part = files.subspan(first, std::min(kLoadedAtOnce, files.size() - first));
    const auto load = [&]() -> IoResult<void> {
      ASSIGN_OR_RETURN(auto batch, folder->Load(part, first, errors));
      return Run(std::move(batch.target), std::move(batch.memory), Operation::Direction::kRead, {});
    };
    // What fails as a whole is tried one by one: then it is known which files are to blame.
    auto loaded = folder == nullptr ? IoResult<void>(IoError{ENOTTY, "no lease"}) : load();
    if (!loaded.has_value() && options_.direct == Direct::kRequire) return std::move(loaded).error();
    if (!loaded.has_value()) {
      [[maybe_unused]] const auto superseded = errors->TakeFrom(first);
      LoadOneByOne(directory, part, first, options.verify, *errors);
    }
    for (const auto& file : part) done += file.memory.size();
    if (options.progress) options.progress(done, total);
  }
  std::vector<NamedError> out;
  for (auto& [index, error] : errors->TakeFrom(0)) out.push_back({files[index].name, std::move(error)});
  return out;
}

void Handle::LoadOneByOne(const std::string& directory, std::span<const NamedMemory> files, size_t first,
                          bool verify, FileErrors& errors) {
  struct Started {
    size_t index;
    std::shared_ptr<Operation> operation;
  };
  std::deque<Started> under_way;
  const auto settle = [&](size_t most) {
    for (; under_way.size() > most; under_way.pop_front()) {
      const auto& [index, operation] = under_way.front();
      operation->Wait();
      if (auto error = operation->error()) errors.Add(index, *std::move(error));
    }
  };
  for (size_t i = 0; i < files.size(); ++i) {
    settle(kUnderWay - 1);
    const std::string path = directory + "/" + files[i].name;
    struct stat status{};
    // Where it cannot be asked, opening it says why.
    if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        static_cast<uint64_t>(status.st_size) != files[i].memory.size()) {
      errors.Add(first + i, OtherSize(path, files[i].memory.size(), static_cast<uint64_t>(status.st_size)));
      continue;
    }
    auto started = BeginRead(path, files[i].memory, {.verify = verify});
    if (started.has_value()) {
      under_way.push_back({first + i, std::move(*started)});
    } else {
      errors.Add(first + i, std::move(started).error());
    }
  }
  settle(0);
}

}  // namespace weightfs::client

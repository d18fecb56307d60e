// SPDX-License-Identifier: Apache-2.0
#include "meta/rocks_file_system.h"

#include <fmt/format.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "common/file_owner.h"
#include "common/units.h"

namespace weightfs {
namespace {

using rocksdb::FileOptions;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

// Space is allocated in pieces of this size beyond the end of the file. The rest is given back when it is closed.
constexpr uint64_t kPiece = 256 * kKiB;

template <typename Attempt>
IOStatus AwaitSpace(CatalogSpace& space, Attempt attempt) {
  IOStatus status = attempt();
  if (IsFull(status)) space.Await([&] { return !IsFull(status = attempt()); });
  return status;
}

// Not thread-safe, like every writable file of RocksDB.
class AllocatedFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  AllocatedFile(std::unique_ptr<FSWritableFile> file, CatalogSpace& space)
      : FSWritableFileOwnerWrapper(std::move(file)), space_(space) {}

  ~AllocatedFile() override { Trim(IOOptions(), nullptr); }  // RocksDB closes some files only by destruction
  AllocatedFile(const AllocatedFile&) = delete;
  AllocatedFile& operator=(const AllocatedFile&) = delete;

  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* debug) override {
    return AppendWith(data, options, debug, [&] { return target()->Append(data, options, debug); });
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo& verification,
                  IODebugContext* debug) override {
    return AppendWith(data, options, debug, [&] { return target()->Append(data, options, verification, debug); });
  }
  IOStatus Close(const IOOptions& options, IODebugContext* debug) override {
    Trim(options, debug);
    return target()->Close(options, debug);
  }
  // RocksDB's own allocation ignores errors.
  void SetPreallocationBlockSize(size_t) override {}
  void PrepareWrite(size_t, size_t, const IOOptions&, IODebugContext*) override {}

 private:
  template <typename Write>
  IOStatus AppendWith(const Slice& data, const IOOptions& options, IODebugContext* debug, const Write& append) {
    if (IOStatus allocated = Reach(size_ + data.size(), options, debug); !allocated.ok()) return allocated;
    IOStatus written = append();
    if (written.ok()) size_ += data.size();
    return written;
  }

  IOStatus Reach(uint64_t end, const IOOptions& options, IODebugContext* debug) {
    if (end <= allocated_) return IOStatus::OK();
    const uint64_t missing = RoundUp(end, kPiece) - allocated_;
    IOStatus status = AwaitSpace(space_, [&] { return Allocate(missing, options, debug); });
    if (status.ok()) allocated_ += missing;
    return status;
  }

  IOStatus Allocate(uint64_t bytes, const IOOptions& options, IODebugContext* debug) {
    if (supported_) {
      IOStatus status = target()->Allocate(allocated_, bytes, options, debug);
      if (status.ok() || IsFull(status)) return status;
      supported_ = false;
    }
    // The append reports other errors.
    return space_.FreeBytes() >= bytes ? IOStatus::OK() : IOStatus::NoSpace();
  }

  // Frees the blocks behind the end. If this fails, they stay allocated.
  void Trim(const IOOptions& options, IODebugContext* debug) {
    if (allocated_ > size_) target()->Truncate(size_, options, debug).PermitUncheckedError();
    allocated_ = size_;
  }

  uint64_t size_ = 0, allocated_ = 0;
  CatalogSpace& space_;
  bool supported_ = true;  // the filesystem can allocate space
};

class CatalogFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  CatalogFileSystem(const GuardedDirectory& directory, CatalogSpace& space, std::function<bool()> may_write)
      : FileSystemWrapper(rocksdb::FileSystem::Default()),
        owner_(directory.owner()),
        group_(directory.group()),
        space_(space),
        may_write_(std::move(may_write)) {}

  const char* Name() const override { return "weightfs"; }
  IOStatus NewWritableFile(const std::string& path, const FileOptions& options, std::unique_ptr<FSWritableFile>* file,
                           IODebugContext* debug) override {
    // After each pause, another machine may have the store.
    IOStatus created = AwaitSpace(space_, [&] {
      if (IOStatus allowed = CheckMayWrite(path); !allowed.ok()) return allowed;
      return AsOwner([&] { return target()->NewWritableFile(path, options, file, debug); });
    });
    if (created.ok()) *file = std::make_unique<AllocatedFile>(std::move(*file), space_);
    return created;
  }
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<FSWritableFile>* file, IODebugContext* debug) override {
    if (IOStatus allowed = CheckMayWrite(path); !allowed.ok()) return allowed;
    return target()->ReopenWritableFile(path, options, file, debug);
  }
  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* debug) override {
    return AwaitSpace(space_, [&] {
      if (IOStatus allowed = CheckMayWrite(to); !allowed.ok()) return allowed;
      return target()->RenameFile(from, to, options, debug);
    });
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options, IODebugContext* debug) override {
    if (IOStatus allowed = CheckMayWrite(path); !allowed.ok()) return allowed;
    return target()->DeleteFile(path, options, debug);
  }
  IOStatus LockFile(const std::string& path, const IOOptions& options, rocksdb::FileLock** lock,
                    IODebugContext* debug) override {
    return AsOwner([&] { return target()->LockFile(path, options, lock, debug); });
  }

 private:
  IOStatus CheckMayWrite(const std::string& path) const {
    if (!may_write_ || may_write_()) return IOStatus::OK();
    return IOStatus::IOError(path, "another process may have taken over the store");
  }

  template <typename Create>
  IOStatus AsOwner(Create create) {
    IOStatus created;
    CreateAsOwner(owner_, group_, [&] { return (created = create()).ok(); });
    return created;
  }

  const uid_t owner_;
  const gid_t group_;
  CatalogSpace& space_;
  const std::function<bool()> may_write_;
};

// Where a catalog's directory lies, and its name there.
struct Location {
  GuardedDirectory parent;
  std::string name;
};

Result<Location> Locate(const std::string& directory) {
  // RocksDB uses the path as it is given: without "link/.." it may lead elsewhere.
  std::filesystem::path path(directory);
  if (!path.has_filename()) path = path.parent_path();
  const std::string above = path.parent_path().string();
  ASSIGN_OR_RETURN(GuardedDirectory parent, GuardedDirectory::Open(above.empty() ? "." : above));
  return Location{std::move(parent), path.filename().string()};
}

// What lies in the directory of a database.
struct DirectoryContent {
  bool empty = true;
  bool current = false;  // the file that names the manifest: a complete database has it
  bool database_files = false;
  std::vector<std::string> obsolete;  // files of older versions: RocksDB's own logs, and a reserve of space
};

Result<DirectoryContent> LookInto(const GuardedDirectory& directory) {
  DirectoryContent content;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, directory.ListFiles());
  for (const std::string& name : names) {
    content.empty = false;
    if (name == "CURRENT") content.current = true;
    if (name.starts_with("MANIFEST-") || name.ends_with(".sst") || name.ends_with(".log")) {
      content.database_files = true;
    }
    if (name == "LOG" || name.starts_with("LOG.old.") || name == "reserve") content.obsolete.push_back(name);
  }
  return content;
}

}  // namespace

bool IsFull(const rocksdb::Status& status) {
  return status.IsNoSpace() || (status.IsIOError() && (Mentions(status, ENOSPC) || Mentions(status, EDQUOT)));
}

bool Mentions(const rocksdb::Status& status, int error) {
  return status.ToString().find(std::strerror(error)) != std::string::npos;
}

std::unique_ptr<rocksdb::Env> MakeCatalogEnv(const GuardedDirectory& directory, CatalogSpace& space,
                                             std::function<bool()> may_write) {
  return rocksdb::NewCompositeEnv(std::make_shared<CatalogFileSystem>(directory, space, std::move(may_write)));
}

Result<GuardedDirectory> PrepareCatalogDirectory(const std::string& directory, bool create, bool read_only) {
  ASSIGN_OR_RETURN(const Location location, Locate(directory));
  // The directory is no link, and belongs to us or to the owner of the directory that it lies in.
  auto opened = location.parent.OpenDirectory(location.name);
  const bool missing = !opened.has_value() && opened.error().code == ErrorCode::kNotFound;
  if (missing && create) {
    RETURN_IF_ERROR(location.parent.MakeDirectory(location.name));
    opened = location.parent.OpenDirectory(location.name);
  }
  if (!opened.has_value() && (create || !missing)) return opened.error();
  DirectoryContent content;
  if (opened.has_value()) {
    ASSIGN_OR_RETURN(content, LookInto(*opened));
  }
  if (create) {
    if (content.empty) return opened;
    return Error{ErrorCode::kExists,
                 fmt::format("{}: holds files already; a new catalog needs an empty directory", directory)};
  }
  if (content.current) {
    if (read_only) return opened;
    for (const std::string& name : content.obsolete) unlink((directory + "/" + name).c_str());
    return opened;
  }
  if (content.database_files) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: the catalog is damaged: CURRENT is missing", directory)};
  }
  return Error{ErrorCode::kNotFound, fmt::format("{}: holds no catalog", directory)};
}

void TakePermissionsOfOthers(const GuardedDirectory& directory) {
  directory.Restrict();
  const auto names = directory.ListFiles();
  for (const std::string& name : names.value_or(std::vector<std::string>())) directory.RestrictFile(name);
}

}  // namespace weightfs

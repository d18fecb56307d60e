// SPDX-License-Identifier: Apache-2.0
#include "meta/catalog_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/guarded_directory.h"

namespace weightfs {
namespace {

// The directory of a catalog, which is no link and belongs to us or to the owner of the directory that it lies in.
// kNotFound where there is none.
Result<GuardedDirectory> OpenCatalogDirectory(const std::string& directory) {
  std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string above = path.parent_path().string();
  ASSIGN_OR_RETURN(const GuardedDirectory parent, GuardedDirectory::Open(above.empty() ? "." : above));
  return parent.OpenDirectory(path.filename().string());
}

// What lies in the directory of a database.
struct DirectoryContent {
  bool exists = false;
  bool empty = true;
  bool current = false;  // the file that names the manifest: a complete database has it
  bool database_files = false;
  std::vector<std::string> logs;  // of RocksDB itself, by versions that let it write some
};

Result<DirectoryContent> LookInto(const std::string& directory) {
  DirectoryContent content;
  const auto opened = OpenCatalogDirectory(directory);
  if (!opened.has_value() && opened.error().code == ErrorCode::kNotFound) return content;
  if (!opened.has_value()) return opened.error();
  content.exists = true;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, opened->ListFiles());
  for (const std::string& name : names) {
    content.empty = false;
    if (name == "CURRENT") content.current = true;
    if (name.starts_with("MANIFEST-") || name.ends_with(".sst") || name.ends_with(".log")) {
      content.database_files = true;
    }
    if (name == "LOG" || name.starts_with("LOG.old.")) content.logs.push_back(name);
  }
  return content;
}

}  // namespace

Result<void> PrepareCatalogDirectory(const std::string& directory, bool create, bool read_only) {
  ASSIGN_OR_RETURN(const DirectoryContent content, LookInto(directory));
  if (create) {
    if (!content.exists && mkdir(directory.c_str(), S_IRWXU) != 0) {
      return Error{errno == ENOSPC || errno == EDQUOT ? ErrorCode::kNoSpace : ErrorCode::kIo,
                   fmt::format("{}: cannot be made: {}", directory, std::strerror(errno))};
    }
    if (content.empty) return {};
    return Error{ErrorCode::kExists,
                 fmt::format("{}: holds files already; a new catalog needs an empty directory", directory)};
  }
  if (content.current) {
    if (read_only) return {};
    for (const std::string& log : content.logs) unlink((directory + "/" + log).c_str());  // losing them is no error
    return {};
  }
  if (content.database_files) {
    return Error{ErrorCode::kCorrupt,
                 fmt::format("{}: the catalog is damaged: CURRENT is missing; restore it from a copy", directory)};
  }
  return Error{ErrorCode::kNotFound,
               fmt::format("{}: holds no catalog; check the path, or make a store with `weightfs format`", directory)};
}

void TakePermissionsOfOthers(const std::string& directory) {
  const auto opened = OpenCatalogDirectory(directory);
  if (!opened.has_value()) return;
  opened->Restrict();
  const auto names = opened->ListFiles();
  for (const std::string& name : names.value_or(std::vector<std::string>())) opened->RestrictFile(name);
}

ByteCount CatalogDirectorySize(const std::string& directory) {
  ByteCount size;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const auto bytes = entry->file_size(gone);
    if (!gone) size += ByteCount{bytes};
  }
  return size;
}

}  // namespace weightfs

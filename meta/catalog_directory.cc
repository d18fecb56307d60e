// SPDX-License-Identifier: Apache-2.0
#include "meta/catalog_directory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <utility>
#include <vector>

namespace weightfs {
namespace {

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

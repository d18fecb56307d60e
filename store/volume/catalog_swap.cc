// SPDX-License-Identifier: Apache-2.0
#include "store/volume/catalog_swap.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "common/sync_directory.h"
#include "meta/rocks_kv_store.h"
#include "store/volume/store_directory.h"

namespace weightfs {

Result<void> RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? Error{ErrorCode::kIo, fmt::format("{}: cannot be removed: {}", path, error.message())}
               : Result<void>();
}

Result<std::unique_ptr<KvStore>> CreateNewCatalog(const std::string& directory) {
  const std::string path = directory + "/" + kNewCatalogName;
  RETURN_IF_ERROR(RemoveTree(path));
  RETURN_IF_ERROR(RemoveReplaced(directory));
  RocksKvStore::Options options;
  options.create = true;
  ASSIGN_OR_RETURN(auto catalog, RocksKvStore::Open(path, options));
  return std::unique_ptr<KvStore>(std::move(catalog));
}

Result<std::string> SwapCatalogs(const std::string& directory, bool keep) {
  const std::string catalog = directory + "/" + kCatalogName, built = directory + "/" + kNewCatalogName;
  std::string kept;
  if (access(catalog.c_str(), F_OK) == 0) {
    std::string old = directory + "/" + kReplacedCatalogName;
    if (keep) {
      const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
      const std::string name = fmt::format("{}/{}{:%Y%m%dT%H%M%SZ}", directory, kOldCatalogs, fmt::gmtime(now));
      kept = name;
      for (int more = 2; access(kept.c_str(), F_OK) == 0; ++more) kept = fmt::format("{}-{}", name, more);
      old = kept;
    }
    if (rename(catalog.c_str(), old.c_str()) != 0) return SystemError(catalog, "cannot be renamed");
  }
  if (rename(built.c_str(), catalog.c_str()) != 0) return SystemError(built, "cannot be renamed");
  RETURN_IF_ERROR(SyncDirectory(directory));
  return kept;
}

Result<void> RemoveReplaced(const std::string& directory) { return RemoveTree(directory + "/" + kReplacedCatalogName); }

}  // namespace weightfs

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

Result<std::unique_ptr<KvStore>> CreateNewCatalog(const std::string& directory) {
  const std::string path = directory + "/" + kNewCatalogName;
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return Error{ErrorCode::kIo, fmt::format("{}: cannot be removed: {}", path, error.message())};
  RocksKvStore::Options options;
  options.create = true;
  ASSIGN_OR_RETURN(auto catalog, RocksKvStore::Open(path, options));
  return std::unique_ptr<KvStore>(std::move(catalog));
}

Result<std::string> SwapCatalogs(const std::string& directory) {
  const std::string catalog = directory + "/" + kCatalogName, built = directory + "/" + kNewCatalogName;
  std::string kept;
  if (access(catalog.c_str(), F_OK) == 0) {
    const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    kept = fmt::format("{}/{}{:%Y%m%dT%H%M%SZ}", directory, kOldCatalogs, fmt::gmtime(now));
    if (rename(catalog.c_str(), kept.c_str()) != 0) return SystemError(catalog, "cannot be renamed");
  }
  if (rename(built.c_str(), catalog.c_str()) != 0) return SystemError(built, "cannot be renamed");
  RETURN_IF_ERROR(SyncDirectory(directory));
  return kept;
}

}  // namespace weightfs

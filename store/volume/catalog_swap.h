// SPDX-License-Identifier: Apache-2.0
// A new catalog that is built beside the old one, and then takes its place.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"
#include "meta/kv_store.h"

namespace weightfs {

// Names beside that of the catalog: of one that is being built, of one that is to be removed, and the beginning of
// those of replaced ones that are kept.
inline constexpr const char* kNewCatalogName = "meta.recovering";
inline constexpr const char* kReplacedCatalogName = "meta.replaced";
inline constexpr const char* kOldCatalogs = "meta.damaged-";

// Removes a file or a directory with everything in it, if it exists.
Result<void> RemoveTree(const std::string& path);

// Creates an empty catalog beside that of the store. Removes what interrupted calls have left.
Result<std::unique_ptr<KvStore>> CreateNewCatalog(const std::string& directory);

// Puts the new catalog, which must be closed, in the place of the old one. Returns where that is kept; empty if it is
// not, or if there was none. RemoveReplaced then removes it.
Result<std::string> SwapCatalogs(const std::string& directory, bool keep);
Result<void> RemoveReplaced(const std::string& directory);

}  // namespace weightfs
